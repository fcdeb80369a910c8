// connect({}): a server of one's own, and that nothing of it is left.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { connect, SpawnError } from '../../../client/js/src/node/index.js';
import { findBinary, spawnServer } from '../../../client/js/src/node/spawn.js';
import { BIN, gone, until } from '../lib/server.mjs';

process.env.CONFLUX_BIN = BIN;
const ENTRY = fileURLToPath(new URL('../../../client/js/src/node/index.js', import.meta.url));
const temporary = () => mkdtemp(path.join(tmpdir(), 'conflux-e2e-'));
// The state folder of the server with this pid, from its arguments.
const stateOf = async pid => {
  const args = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0');
  return args[args.indexOf('--state') + 1];
};
const exists = name => readdir(name).then(() => true, () => false);

test('it is started with a token of its own, works, and is gone after dispose', async () => {
  const workspace = await temporary();
  const c = await connect({ spawn: { workspace } });
  assert.match(c.baseUrl, /^http:\/\/127\.0\.0\.1:\d+$/);
  assert.match(c.token, /^[0-9a-f]{48}$/);
  assert.equal((await fetch(`${c.baseUrl}/api/ping`)).status, 401);
  const keeper = Number((await c.exec('echo $PPID')).stdout);
  assert.equal((await c.exec('pwd; env | grep -c TOKEN')).stdout, `${workspace}\n0\n`);
  const { pid } = await c.startProcess('sleep 1000');
  await c.dispose();
  await gone(pid);
  await assert.rejects(fetch(`${c.baseUrl}/healthz`));
  await gone(keeper);
  await rm(workspace, { recursive: true });
});

test('the handle: baseUrl, token, pid; TERM ends it; its state goes with it; the token is not to be read anywhere', async () => {
  const server = await spawnServer({ token: 'a-token-of-mine', workspace: tmpdir() });
  assert.equal(server.token, 'a-token-of-mine');
  const state = await stateOf(server.pid);
  assert.ok(await exists(state));
  for (const file of ['environ', 'cmdline']) assert.doesNotMatch(await readFile(`/proc/${server.pid}/${file}`, 'latin1'), /a-token-of-mine/);
  const c = await connect({ baseUrl: server.baseUrl, token: server.token });
  assert.equal(await c.ping(), 'healthy');
  await c.dispose();
  assert.equal((await fetch(`${server.baseUrl}/healthz`)).status, 200); // it was not that client's
  await Promise.all([server.dispose(), server.dispose()]);
  await gone(server.pid);
  assert.equal(await exists(state), false);
});

test('two at once do not meet', async () => {
  const [a, b] = await Promise.all([connect(), connect({})]);
  assert.notEqual(a.baseUrl, b.baseUrl);
  await Promise.all([a.exec('true'), b.exec('true')]);
  await Promise.all([a.dispose(), b.dispose()]);
});

// A program that starts a server and tells its pids, then does what `end` says.
async function host(end) {
  const script = `import { connect } from ${JSON.stringify(ENTRY)};
    const c = await connect({ spawn: { workspace: ${JSON.stringify(tmpdir())} } });
    const server = Number((await c.exec('echo $PPID')).stdout);
    const { pid } = await c.startProcess('sleep 1000');
    console.log(JSON.stringify([server, pid]));
    ${end}`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exit = once(child, 'exit');
  let text = '';
  for await (const data of child.stdout) { text += data; if (text.includes('\n')) break; }
  const [server, pid] = JSON.parse(text);
  return { child, exit, server, pid };
}
for (const [how, end, signal] of [
  ['comes to its end', '', null], ['calls process.exit', 'process.exit(0);', null], ['throws', 'throw 5;', null],
  ['is killed', 'setInterval(() => {}, 1000);', 'SIGKILL'], ['is interrupted', 'setInterval(() => {}, 1000);', 'SIGINT'],
]) test(`the server ends when its host ${how}`, async () => {
  const h = await host(end.replace('throw 5', 'process.stderr.write = () => {}; process.on("uncaughtException", () => process.exit(7)); throw 5'));
  const state = await stateOf(h.server).catch(() => null);
  if (signal) h.child.kill(signal);
  await h.exit;
  await until(() => readFile(`/proc/${h.server}/stat`, 'utf8').then(stat => / Z /.test(stat), () => true), 'the server to end');
  await until(() => readFile(`/proc/${h.pid}/stat`, 'utf8').then(stat => / Z /.test(stat), () => true), 'its process to end');
  if (state && !signal) assert.equal(await exists(state), false);
  if (state && signal) await rm(state, { recursive: true, force: true });
});

test('a program that does not start, ends or never answers: an error that says why, and nothing is left', async () => {
  const dir = await temporary();
  const script = async (name, text) => { await writeFile(path.join(dir, name), `#!/bin/sh\n${text}\n`); await chmod(path.join(dir, name), 0o755); return path.join(dir, name); };
  await assert.rejects(connect({ spawn: { binary: path.join(dir, 'none') } }), e => e instanceof SpawnError && /none/.test(e.message));
  await assert.rejects(connect({ spawn: { binary: await script('fails', 'echo it is broken >&2; exit 3') } }), e => e instanceof SpawnError && /exit code 3/.test(e.message) && /it is broken/.test(e.message));
  const pidFile = path.join(dir, 'pid');
  const silent = await script('silent', `trap '' TERM; echo $$ >${pidFile}; exec sleep 1000`);
  await assert.rejects(connect({ spawn: { binary: silent, timeout: 300, grace: 200 } }), e => e instanceof SpawnError && /timeout after 300 ms/.test(e.message));
  await gone(Number(await readFile(pidFile, 'utf8'))); // TERM is ignored: it took KILL
  await assert.rejects(connect({ spawn: { args: ['--no-such-option'] } }), e => e instanceof SpawnError && /no-such-option/.test(e.message));
  const lines = [];
  await assert.rejects(connect({ transport: 'pigeon', spawn: { log: line => lines.push(line) } }), /transport must be/);
  await assert.rejects(fetch(/http:\S+/.exec(lines.join(' '))[0])); // it is gone
  await assert.rejects(connect({ spawn: false }), /baseUrl/);
  await assert.rejects(connect({ spawn: true, baseUrl: 'http://127.0.0.1:1' }), /either/);
  await rm(dir, { recursive: true });
});

test('the program: option, CONFLUX_BIN, PATH', async () => {
  const dir = await temporary(), { CONFLUX_BIN, PATH } = process.env;
  try {
    assert.equal(findBinary('/bin/sh'), '/bin/sh');
    assert.equal(findBinary(), CONFLUX_BIN);
    delete process.env.CONFLUX_BIN;
    await mkdir(path.join(dir, 'bin'));
    await symlink('/bin/sh', path.join(dir, 'bin', 'conflux'));
    process.env.PATH = `${path.join(dir, 'bin')}:${PATH}`;
    assert.equal(findBinary(), path.join(dir, 'bin', 'conflux'));
    process.env.PATH = dir;
    assert.throws(() => findBinary(), e => e instanceof SpawnError && /CONFLUX_BIN/.test(e.message));
  } finally {
    Object.assign(process.env, { CONFLUX_BIN, PATH });
    await rm(dir, { recursive: true });
  }
});

test('what the server says: to a function, or nowhere', async () => {
  const lines = [];
  const c = await connect({ spawn: { log: line => lines.push(line) } });
  await c.dispose();
  assert.ok(lines.some(line => /listening on http/.test(line)));
  assert.ok(lines.every(line => !line.includes(c.token)));
});
