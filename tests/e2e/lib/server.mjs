// Starts the real program on a free port with folders of its own, and ends it.
import { spawn } from 'node:child_process';
import { chmod, chown, mkdtemp, rm, readFile, readdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../..');
export const BIN = process.env.CONFLUX_BIN ?? path.join(root, 'build/conflux');

// How much of something where a slow build (with sanitizers) finds the same with less.
export const few = (n, slow) => (process.env.CONFLUX_TEST_SLOW === '1' ? slow : n);

// A folder of a server that runs, with all that is in it: what is put in meanwhile goes too.
export const takeAway = p => rm(p, { recursive: true, force: true, maxRetries: 50, retryDelay: 1 });

// Waits until fn() yields something truthy; the deadline is a bound against hanging, not a measure.
export async function until(fn, what = 'condition', ms = 30000) {
  const end = Date.now() + ms;
  for (;;) {
    const v = await fn();
    if (v) return v;
    if (Date.now() > end) throw new Error(`timed out waiting for ${what}`);
    await new Promise(r => setTimeout(r, 10));
  }
}

// What run(ms, mark) gives, whose command runs `mark` when it has done what it is to do before its time is over: tried with
// longer and longer times until it did.
export async function afterTimeout(run) {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-mark-')), file = path.join(dir, 'in-time');
  await chmod(dir, 0o777);
  try {
    for (let ms = 200; ms < 60000; ms *= 2) {
      const r = await run(ms, `: >${file}`);
      if (await rm(file).then(() => true, () => false)) return r;
    }
    throw new Error('the command never came as far as its mark');
  } finally { await takeAway(dir); }
}

// The search for leaks at the end of a program takes longer than most programs do.
export const NO_LEAKS = [process.env.ASAN_OPTIONS, 'detect_leaks=0'].filter(Boolean).join(':');
// Only the first servers of a file are searched, which do most; with ./dev test --all every one.
const SEARCHED = process.env.CONFLUX_TEST_ALL ? Infinity : 2;
let started = 0;

// opts: args, env, command (serve -- CMD), workspace (default: a folder of its own), prefix (a program that runs ours),
// user (numeric; needs root)
export async function start(opts = {}) {
  const dir = opts.dir ?? await mkdtemp(path.join(tmpdir(), 'conflux-e2e-'));
  const workspace = opts.workspace ?? path.join(dir, 'workspace');
  const args = ['serve', '--port', String(opts.port ?? 0), '--state', path.join(dir, 'state'), '--workspace', workspace, ...(opts.args ?? [])];
  if (opts.command) args.push('--', ...opts.command);
  const env = { ...process.env, ...(started++ < SEARCHED ? {} : { ASAN_OPTIONS: NO_LEAKS }), ...opts.env };
  const whole = [...(opts.prefix ?? []), BIN, ...args];
  if (opts.user) {
    await chown(dir, opts.user, opts.user);
    whole.unshift('setpriv', `--reuid=${opts.user}`, `--regid=${opts.user}`, '--clear-groups');
  }
  const child = spawn(whole[0], whole.slice(1), { env, stdio: ['pipe', 'pipe', 'pipe'] });
  const s = { child, dir, workspace, stdout: '', stderr: '', exited: null };
  s.exit = new Promise(resolve => child.on('exit', (code, signal) => { s.exited = { code, signal }; resolve(s.exited); }));
  child.stdout.on('data', d => { s.stdout += d; });
  child.stderr.on('data', d => { s.stderr += d; });
  await until(() => /listening on http:\/\/\S+/.test(s.stdout) || s.exited, 'the listening line');
  const m = /listening on (http:\/\/(\S+):(\d+))/.exec(s.stdout);
  if (m) [, s.base, s.host, s.port] = m;
  s.ws = s.base?.replace(/^http/, 'ws');
  s.stop = async () => {
    if (!s.exited) child.kill('SIGTERM');
    await s.exit;
    if (!opts.dir) await rm(dir, { recursive: true, force: true });
  };
  return s;
}

export const json = async r => ({ status: r.status, headers: r.headers, body: await r.json() });
export const post = async (s, p, body, headers = {}) =>
  json(await fetch(s.base + p, { method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body: typeof body === 'string' ? body : JSON.stringify(body) }));
export const get = async (s, p, headers = {}) => json(await fetch(s.base + p, { headers }));
export const del = async (s, p, headers = {}) => json(await fetch(s.base + p, { method: 'DELETE', headers }));

// Dead, and reaped: a zombie is not gone.
export const gone = pid => until(() => { try { process.kill(pid, 0); return false; } catch { return true; } }, `pid ${pid} to be gone`);

// The pid of the server process: the keeper's child named conflux-server. Asked for in loops: the kernel's list of the keeper's
// children is one file. It may leave some out while others end, and not every kernel has it: then all processes are looked at.
export async function serverPid(s) {
  const isServer = async pid => {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
    const m = /^\d+ \((.*)\) (\S) (\d+)/s.exec(stat);
    return m && m[1].startsWith('conflux-server'.slice(0, 15)) && Number(m[3]) === s.child.pid && m[2] !== 'Z';
  };
  const keeper = s.child.pid, children = await readFile(`/proc/${keeper}/task/${keeper}/children`, 'utf8').catch(() => '');
  for (const list of [() => children.split(' '), () => readdir('/proc')])
    for (const e of await list()) if (/^\d+$/.test(e) && await isServer(e)) return Number(e);
  return null;
}

// Events of an SSE body.
export async function* sse(response) {
  let buf = '';
  const dec = new TextDecoder();
  for await (const chunk of response.body) {
    buf += dec.decode(chunk, { stream: true });
    for (let i; (i = buf.indexOf('\n\n')) >= 0; buf = buf.slice(i + 2)) {
      const ev = { id: undefined, data: undefined };
      for (const line of buf.slice(0, i).split('\n')) {
        if (line.startsWith('data: ')) ev.data = JSON.parse(line.slice(6));
        else if (line.startsWith('id: ')) ev.id = line.slice(4);
        else throw new Error('unexpected SSE line: ' + line);
      }
      yield ev;
    }
  }
  if (buf) throw new Error('SSE body ends inside an event: ' + buf.slice(0, 100));
}
