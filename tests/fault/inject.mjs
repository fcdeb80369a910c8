// Each call that can fail fails once: for want of descriptors, disk, threads, processes, memory. One run of a main path
// after another meets the next fault (as SQLite tests itself), over both doors, in the server and in the keeper. Each
// call has one answer, which is the right one or a typed error; nobody dies; the same call works when tried again; no
// descriptor is lost, and no temporary file; and at the end the sanitizers have nothing to say.
//
//   node tests/fault/inject.mjs [--seed N --seconds N] [--trace] [--only PATH]
//
// CONFLUX_BIN: a build with CONFLUX_FAULTS (the preset "debug"). A path runs once to tell where its calls come from
// (the sites: inject.c), and then once more for each of these, with the first call from there failing, and with the
// last; what other paths have met AS_OFTEN is passed over. With --seconds, sites are drawn at random, with the seed.
// --trace: stderr shows where each fault was met.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, openSync, readFileSync, readSync, readdirSync, readlinkSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { connect } from '../e2e/lib/mux.mjs';
import { BIN, serverPid, start, until } from '../e2e/lib/server.mjs';
import { random } from './lib/load.mjs';

const argv = process.argv.slice(2);
const option = (name, otherwise) => { const i = argv.indexOf(name); return i < 0 ? otherwise : argv[i + 1]; };
const seed = Number(option('--seed', Date.now() % 1e9)), seconds = Number(option('--seconds', 0)), only = option('--only');
const ANSWER_MS = 30000, AS_OFTEN = 3, WORKERS = 4, FD_SLACK = 8, SOCKETS_AND_PIPES = 2 * WORKERS + 24, OFF = '__DISABLE_SESSION__';
const LARGE = 5e6; // more than any piece of a fixed size (inject.c)
const PROGRAMS = { keeper: 1, server: 2 };
// A connection that cannot be taken cannot be answered on either.
const TAKES_CONNECTIONS = new Set(['accept4', 'calloc', 'epoll_ctl', 'F_DUPFD', 'dup3']);

const schema = readFileSync(path.join(path.dirname(fileURLToPath(import.meta.url)), '../../schema/errors.def'), 'utf8');
const CODES = new Set([...schema.matchAll(/^X\((\w+)/gm)].map(m => m[1]));

// ---- the control file: struct control of inject.c ----

const [ARMED, LEFT, FIRED, PROGRAM, CALL, SITE, NSITES, FRAMES, SITE_TABLE] = [0, 4, 8, 12, 16, 48, 52, 56, 152];
const FAIL = 1, RECORD = 2, SIZE = 65536;
const control = path.join(tmpdir(), `conflux-faults-${process.pid}`);
writeFileSync(control, Buffer.alloc(SIZE));
const fd = openSync(control, 'r+');
const read = (at, n) => { const b = Buffer.alloc(n); readSync(fd, b, 0, n, at); return b; };
const read32 = at => read(at, 4).readUInt32LE();
const write32 = (at, v) => { const b = Buffer.alloc(4); b.writeUInt32LE(v >>> 0); writeSync(fd, b, 0, 4, at); };
const word = b => b.toString('latin1', 0, b.indexOf(0));
function arm(program, mode, site = 0, left = 0) {
  write32(LEFT, left);
  write32(SITE, site);
  write32(PROGRAM, PROGRAMS[program]);
  write32(ARMED, mode);
}
// Where and in what the call has failed since there were `before`; undefined: none.
function disarm(before) {
  write32(ARMED, 0);
  if (read32(FIRED) === before) return undefined;
  const frames = read(FRAMES, SITE_TABLE - FRAMES), offsets = [];
  for (let i = 0; i < frames.length && frames.readUInt32LE(i); i += 4) offsets.push(frames.readUInt32LE(i));
  return { call: word(read(CALL, 32)), offsets };
}
// What `run` calls: [{hash, count, call}]
async function record(program, run) {
  write32(NSITES, 0);
  arm(program, RECORD);
  await run();
  write32(ARMED, 0);
  const sites = [];
  for (let i = 0; i < read32(NSITES); i++) {
    const b = read(SITE_TABLE + 32 * i, 32);
    sites.push({ hash: b.readUInt32LE(0), count: b.readUInt32LE(4), call: word(b.subarray(8)) });
  }
  return sites;
}

const names = new Map(); // of the functions, by program and offset
function functions(program, offsets) {
  const bin = program === 'server' ? BIN + '-server' : BIN, key = o => program + o, fresh = offsets.filter(o => !names.has(key(o)));
  try {
    if (fresh.length) execFileSync('addr2line', ['-fe', bin, ...fresh.map(o => (o - 1).toString(16))], { encoding: 'utf8' }).split('\n')
      .forEach((line, i) => { if (i % 2 === 0 && fresh[i / 2]) names.set(key(fresh[i / 2]), line); });
  } catch {} // without binutils: the offsets
  const ours = /^(its_turn|fails|no_memory|__wrap_\w+)$/; // inject.c's own
  return offsets.map(o => names.get(key(o)) ?? '0x' + o.toString(16)).filter(f => !ours.test(f)).slice(0, 8).join(' < ');
}

// ---- the doors ----

class Refused extends Error {}
class Lost extends Error {}
class Cut extends Lost {} // within an answer

// A socket that is closed because there is no memory for what comes has said so.
const gone = (m, e) => m.closed?.code === 1013 ? new Refused('closed: ' + m.closed.reason) : new Lost(e.message);

const within = (promise, what) => {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`no answer: ${what}`)), ANSWER_MS); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

function typed(status, body) {
  if (status < 400) return body;
  assert.ok(body && CODES.has(body.code), `not a typed error: ${status} ${JSON.stringify(body)}`);
  throw new Refused(body.code + ': ' + body.message);
}

const httpBytes = (s, method, url, body, headers = {}) => within(new Promise((resolve, reject) => {
  const lost = e => reject(new Lost(e.message));
  const rq = http.request(s.base + url, { method, agent: false, headers: { 'Content-Type': 'application/json', 'Content-Length': body?.length ?? 0, ...headers } }, res => {
    const parts = [];
    res.on('data', d => parts.push(d));
    res.on('error', e => reject(new Cut(e.message)));
    res.on('end', () => resolve({ status: res.statusCode, bytes: Buffer.concat(parts) }));
  });
  rq.on('error', lost);
  rq.end(body);
}), `${method} ${url}`);

const sseEvents = text => text.split('\n\n').filter(Boolean).map(e => JSON.parse(/^data: (.*)$/m.exec(e)[1]));

const doors = {
  http: s => ({
    async call(method, url, body) {
      const r = await httpBytes(s, method, url, body && Buffer.from(JSON.stringify(body)));
      return typed(r.status, JSON.parse(r.bytes));
    },
    async stream(url, body) {
      const r = await httpBytes(s, 'POST', url, Buffer.from(JSON.stringify(body)));
      if (r.status !== 200) typed(r.status, JSON.parse(r.bytes));
      return sseEvents(r.bytes.toString());
    },
    // Until an event that is wanted; then the stream is left.
    live(method, url, body, wanted) {
      return within(new Promise((resolve, reject) => {
        const text = body && Buffer.from(JSON.stringify(body)), lost = e => reject(new Lost(e.message));
        const rq = http.request(s.base + url, { method, agent: false, headers: { 'Content-Type': 'application/json', 'Content-Length': text?.length ?? 0 } }, res => {
          let got = '';
          res.setEncoding('utf8');
          res.on('error', lost);
          res.on('data', d => {
            got += d;
            if (res.statusCode !== 200 || !sseEvents(got.slice(0, got.lastIndexOf('\n\n') + 2)).some(wanted)) return;
            resolve();
            rq.destroy();
          });
          res.on('end', () => { try { reject(new Error('the stream ended: ' + JSON.stringify(typed(res.statusCode, JSON.parse(got))))); } catch (e) { reject(e); } });
        });
        rq.on('error', lost);
        rq.end(text);
      }), `${method} ${url}`);
    },
    async raw(method, url, body, headers) {
      const r = await httpBytes(s, method, url, body, headers);
      return r.status < 400 ? r.bytes : typed(r.status, JSON.parse(r.bytes));
    },
    close() {},
  }),
  ws: s => ({
    m: null,
    async open() {
      this.m = this.m && !this.m.closed ? this.m : await within(connect(s), 'upgrade').catch(e => { throw e.status ? new Refused(e.message) : new Lost(e.message); });
      return this.m;
    },
    async request(method, url, body) {
      await this.open();
      const m = this.m;
      const r = await within(m.request(method, url, body).catch(e => { throw gone(m, e); }), `ws ${method} ${url}`);
      return { ...r, body: r.type === 'error' ? { code: r.code, message: r.message } : r.body };
    },
    async call(method, url, body) { const r = await this.request(method, url, body); return typed(r.status, r.body); },
    async stream(url, body) { const r = await this.request('POST', url, body); typed(r.status, r.body); return r.events; },
    async live(method, url, body, wanted) {
      const m = await this.open();
      let seen;
      const event = new Promise(resolve => { seen = resolve; });
      const done = m.request(method, url, body, {}, e => { if (wanted(e)) seen(); });
      const first = await within(Promise.race([event, done.catch(e => { throw new Lost(e.message); })]), `ws ${method} ${url}`);
      if (first) throw new Error('the stream ended: ' + JSON.stringify(typed(first.status, first.type === 'error' ? { code: first.code, message: first.message } : first.body)));
      m.send({ type: 'cancel', id: done.id });
      await within(done, 'the end of a stream that was cancelled');
    },
    close() { this.m?.ws.terminate(); this.m = null; },
  }),
};

// ---- the main paths: n makes names that nobody has used ----

const post = (d, url, body) => d.call('POST', url, body);
const text = (n, size = 300000) => `${n}:`.padEnd(size, 'abc\n');
// A stream that began ends with its result, or with an error that has a code.
function ending(events) {
  const last = events.at(-1);
  assert.ok(last, 'a stream without an event');
  if (last.type === 'error') { assert.ok(!last.code || CODES.has(last.code), JSON.stringify(last)); throw new Refused(last.error ?? last.message); }
  return last;
}

let unfinished = 0; // uploads

// A loss that is declared is no success.
function whole(r) {
  if (r.stdoutTruncated) throw new Refused('output is missing, as the answer says');
  return r.stdout;
}

const paths = {
  async ping(d) { assert.equal((await d.call('GET', '/api/ping')).status, 'healthy'); },
  async exec(d, n) { assert.equal(whole(await post(d, '/api/execute', { command: `echo ${n}`, sessionId: OFF })), `${n}\n`); },
  async execArgs(d, n) { assert.equal(whole(await post(d, '/api/execute', { args: ['/bin/echo', `${n}`], env: { A: 'b' }, sessionId: OFF })), `${n}\n`); },
  async execMuch(d) { assert.equal(whole(await post(d, '/api/execute', { command: 'head -c 600000 /dev/zero | tr "\\0" x', sessionId: OFF })).length, 600000); },
  async execSession(d, n) {
    assert.equal(whole(await post(d, '/api/execute', { command: `X=${n}; echo $X`, sessionId: 'steady' })), `${n}`);
  },
  async execId(d, n) {
    const r = await post(d, '/api/execute', { command: 'echo a; exit 3', sessionId: OFF, executionId: `e${n}` });
    assert.equal(r.exitCode, 3);
    assert.equal((await d.call('GET', `/api/execution/e${n}`)).exitCode, 3);
  },
  async stream(d, n) {
    const events = await d.stream('/api/execute/stream', { command: `echo ${n}; exit 4`, sessionId: OFF });
    assert.equal(ending(events).exitCode, 4);
    assert.equal(events.filter(e => e.type === 'stdout').map(e => e.data).join(''), `${n}\n`);
  },
  async process(d, n) {
    const id = `p${n}`;
    await post(d, '/api/process/start', { command: 'echo up; sleep 100', processId: id, sessionId: OFF });
    try {
      assert.match((await d.call('GET', `/api/process/${id}/wait?for=log&pattern=up&timeoutMs=20000`)).line, /up/);
      assert.equal((await d.call('GET', `/api/process/${id}/logs`)).stdout, 'up\n');
    } finally {
      await d.call('DELETE', `/api/process/${id}`).catch(() => d.call('DELETE', `/api/process/${id}`)); // the first may meet the fault
    }
  },
  async session(d, n) {
    const id = `s${n}`;
    await post(d, '/api/session/create', { id, env: { A: `${n}` } });
    try { assert.equal(whole(await post(d, '/api/execute', { command: 'echo $A', sessionId: id })), `${n}`); } finally {
      const remove = () => post(d, '/api/session/delete', { sessionId: id });
      await remove().catch(remove);
    }
  },
  async write(d, n) {
    await post(d, '/api/write', { path: `w/${n % 7}`, content: text(n) });
    assert.equal((await post(d, '/api/read', { path: `w/${n % 7}` })).content, text(n));
  },
  async replace(d, n) {
    await post(d, '/api/write', { path: `edit-${n}`, content: 'one two' });
    await post(d, '/api/files/replace', { path: `edit-${n}`, edits: [{ old: 'two', new: `${n}` }] });
    assert.equal((await post(d, '/api/read', { path: `edit-${n}` })).content, `one ${n}`);
    await post(d, '/api/delete', { path: `edit-${n}` });
  },
  async list(d) { // what cannot be entered is counted
    const l = await post(d, '/api/list-files', { path: 'tree', options: { recursive: true } });
    assert.ok(l.files.length >= 5 || l.skipped >= 1, JSON.stringify(l));
  },
  async copy(d, n) {
    await post(d, '/api/files/copy', { source: 'tree', destination: `copy-${n}`, recursive: true });
    assert.equal((await post(d, '/api/read', { path: `copy-${n}/d/f` })).content, 'content');
  },
  async upload(d, n) {
    const piece = (offset, content, final) => post(d, '/api/write', { path: `up-${n}`, uploadId: `u${n}`, offset, content, final });
    unfinished++; // it would go on, with what it has
    await piece(0, 'first', false);
    await piece(5, 'last', true);
    unfinished--;
    assert.equal((await post(d, '/api/read', { path: `up-${n}` })).content, 'firstlast');
  },
  async search(d) { // what cannot be opened is counted
    const end = ending(await d.stream('/api/files/grep', { path: 'tree', pattern: 'content' }));
    assert.ok(end.matches >= 1 || end.skipped >= 1, JSON.stringify(end));
  },
  // As large as clients may make it: what is asked for by size is refused when there is no memory, not died of.
  async large(d, n) {
    const content = text(n, LARGE), file = { path: `large-${n % 3}` };
    await post(d, '/api/write', { ...file, content });
    assert.equal((await post(d, '/api/read', file)).content, content);
    await post(d, '/api/files/replace', { ...file, edits: [{ old: `${n}:`, new: '#' }] });
    assert.equal((await post(d, '/api/read', { ...file, encoding: 'base64' })).content.length, Math.ceil((LARGE - `${n}:`.length + 1) / 3) * 4);
  },
  async largeBase64(d, n) {
    const bytes = Buffer.from(text(n, LARGE));
    await post(d, '/api/write', { path: `large-${n % 3}`, content: bytes.toString('base64'), encoding: 'base64' });
    assert.equal((await post(d, '/api/read', { path: `large-${n % 3}` })).content, bytes.toString());
  },
  async largeStdin(d, n) {
    const r = await post(d, '/api/execute', { command: 'wc -c', stdin: text(n, LARGE), sessionId: OFF });
    assert.equal(Number(whole(r)), LARGE);
  },
  async largeCommand(d, n) {
    assert.equal(whole(await post(d, '/api/execute', { command: `: '${text(n, LARGE)}'; echo ${n}`, sessionId: OFF })), `${n}\n`);
    assert.equal(whole(await post(d, '/api/execute', { command: `: '${text(n, LARGE)}'; echo ${n}`, sessionId: 'steady' })), `${n}`);
    const events = await d.stream('/api/execute/stream', { command: `: '${text(n, LARGE)}'; echo ${n}`, sessionId: 'steady' });
    assert.equal(ending(events).exitCode, 0);
  },
  // All that a command may start with (2 MB). A session's shell is told each name several times.
  async largeEnv(d, n) {
    const env = Object.fromEntries(Array.from({ length: 17 }, (_, i) => ['N'.repeat(100000) + i, 'x']));
    const values = Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`V${i}`, 'x'.repeat(100000)]));
    const many = Object.fromEntries(Array.from({ length: 70000 }, (_, i) => [`V${i}`, '']));
    const command = `echo ${n}`, args = ['/bin/echo', `${n}`];
    assert.equal(whole(await post(d, '/api/execute', { command, env: { ...values, V16: "'".repeat(100000) }, sessionId: OFF })), `${n}\n`);
    assert.equal(whole(await post(d, '/api/execute', { args, env: many, sessionId: OFF })), `${n}\n`);
    assert.equal(whole(await post(d, '/api/execute', { command, env, cwd: 'tree', sessionId: 'steady' })), `${n}`);
    assert.equal(ending(await d.stream('/api/execute/stream', { command, env, sessionId: 'steady' })).exitCode, 0);
  },
  async largeArgs(d, n) {
    const args = ['/bin/echo', '-n', ...Array.from({ length: 17 }, () => 'x'.repeat(100000))];
    assert.equal(whole(await post(d, '/api/execute', { args, sessionId: OFF })).length, 17 * 100001 - 1);
    assert.equal(whole(await post(d, '/api/execute', { args: ['/bin/echo', '-n', ...Array(100000).fill('')], sessionId: OFF })).length, 99999);
  },
  // A shell that is replaced gets what the former had exported, or what that had before if there is no memory for it.
  async largeExports(d, n) {
    const sessionId = `x${n}`, run = (command, more) => post(d, '/api/execute', { command, sessionId, ...more });
    await post(d, '/api/session/create', { id: sessionId });
    try {
      await run("printf -v A '\\\\$%.0s' {1..65000}; for i in {1..9}; do export A$i=$A; done");
      await run('break; while :; do :; done', { timeoutMs: 300 }).catch(e => { if (!(e instanceof Refused)) throw e; });
      assert.match(whole(await run('echo ${#A9}')), /^(0|130000)$/);
    } finally {
      const remove = () => post(d, '/api/session/delete', { sessionId });
      await remove().catch(remove);
    }
  },
  async largeOutput(d) {
    assert.equal(whole(await post(d, '/api/execute', { command: `head -c ${LARGE} /dev/zero | tr "\\0" x`, sessionId: OFF })).length, LARGE);
  },
  async watch(d) { await d.live('POST', '/api/watch', { path: 'tree' }, e => e.type === 'watching'); },
  async watchCheck(d) { assert.ok((await post(d, '/api/watch/check', { path: 'tree' })).version); },
  async events(d) { await d.live('GET', '/api/events?from=0', undefined, () => true); },
  async pending(d) { assert.ok((await d.call('GET', '/api/pending')).connections); },
  async ports(d) { assert.ok(Array.isArray((await d.call('GET', '/api/ports')).ports)); },
};
const httpOnly = {
  async raw(d, n) {
    const body = Buffer.from(text(n));
    await d.raw('PUT', `/api/files/raw?path=raw-${n % 7}`, body, { 'Content-Type': 'application/octet-stream' });
    assert.deepEqual(await d.raw('GET', `/api/files/raw?path=raw-${n % 7}`), body);
  },
  async archive(d, n) {
    // What has been sent is not the whole: an answer that is made while it is sent can only break off.
    const cut = e => { throw e instanceof Cut ? new Refused(e.message) : e; };
    const tar = await d.raw('GET', '/api/files/archive?path=tree', undefined, { 'Accept-Encoding': 'gzip' }).catch(cut);
    await d.raw('PUT', `/api/files/archive?path=unpacked-${n}`, tar, { 'Content-Type': 'application/x-tar' });
    assert.equal((await d.raw('GET', `/api/files/raw?path=unpacked-${n}/d/f`)).toString(), 'content');
  },
};
// Seconds each: a sample leaves them out.
const slow = new Set(['largeEnv', 'largeArgs', 'largeExports']);
const forKeeper = new Set(['exec', 'execArgs', 'execId', 'stream', 'process', 'session']);

// ---- one fault ----

const s = await start({ args: ['--http-workers', `${WORKERS}`], env: { CONFLUX_FAULTS: control, ...argv.includes('--trace') && { CONFLUX_FAULTS_TRACE: '1' } } });
if (argv.includes('--trace')) s.child.stderr.on('data', d => process.stderr.write(d));
let pid = await serverPid(s);
// Without the eventfds: CivetWeb has one for each worker, and begins workers as it needs them. Nor logs without a name:
// the history keeps what was printed by up to 256 commands (docs/limits.md).
const KEPT_LOGS = 2 * 256;
// Sockets, pipes and memfds come and go with the workers and the shells that are started for later: they have a bound of
// their own.
const passing = /^(socket|pipe|\/memfd|closed)/;
function descriptors() {
  const open = { files: 0, passing: 0 };
  for (const [what, n] of Object.entries(kindsOf())) open[passing.test(what) ? 'passing' : 'files'] += n;
  return open;
}
const settled = async (where, was) => until(() => {
  const now = descriptors();
  return now.files <= was.files + FD_SLACK && now.passing <= was.passing + SOCKETS_AND_PIPES;
}, 'descriptors', 10000).catch(() => find(where, null, `descriptors are lost: ${JSON.stringify(was)} and now ${kinds()}`));
const kinds = () => JSON.stringify(kindsOf());
function kindsOf() {
  const counts = {};
  let kept = 0;
  for (const f of readdirSync(`/proc/${pid}/fd`)) {
    let what = 'closed';
    try { what = readlinkSync(`/proc/${pid}/fd/${f}`).replace(/\d+|[0-9a-f]{6,}/g, '#'); } catch {} // meanwhile
    if (/\/state\/logs\/.*\(deleted\)$/.test(what) && ++kept <= KEPT_LOGS) continue;
    counts[what] = (counts[what] ?? 0) + 1;
  }
  delete counts['anon_inode:[eventfd]'];
  return counts;
}
const findings = new Map();
let n = 0, faults = 0;

function find(where, met, what) {
  const site = met?.site ? ` in ${met.site}` : '', key = `${where}: ${met?.call ?? 'no fault'}: ${what}`;
  if (!findings.has(key)) console.log('FOUND ' + key + site);
  findings.set(key, (findings.get(key) ?? 0) + 1);
}

const mine = { http: doors.http(s), ws: doors.ws(s) };
async function attempt(run, door) {
  try { await run(mine[door], ++n); return null; } catch (e) { return e; }
}

const said = e => e.message.replace(/\s+/g, ' ').replace(/\d+/g, '#').slice(0, 300);

function judge(where, met, e) {
  if (!e || e instanceof Refused || (e instanceof Lost && TAKES_CONNECTIONS.has(met?.call))) return;
  find(where, met, said(e));
}

// The keeper starts a server that has died again. False: nobody has died.
async function revived(where, met) {
  if (s.exited) throw new Error(`${where}: ${met?.call} in ${met?.site}: the keeper has ended\n${s.stderr.slice(-4000)}`);
  if (await serverPid(s) === pid) return false;
  find(where, met, 'the server has died: ' + said({ message: /out of memory|ERROR: \w+Sanitizer[^\n]*/.exec(s.stderr.slice(-20000))?.[0] ?? s.stderr.slice(-300) }));
  pid = await until(() => serverPid(s), 'another server');
  mine.ws.close();
  await until(async () => !await attempt(paths.ping, 'http'), 'an answer of the other server');
  await attempt(paths.execSession, 'http');
  return true;
}

// Whether it was met.
async function meet({ name, run, door, program }, { hash, call }, left) {
  const where = `${name} over ${door}, ${program}`, before = read32(FIRED);
  arm(program, FAIL, hash, left);
  const e = await attempt(run, door);
  const met = disarm(before);
  if (!met) {
    judge(where, null, e);
    return false;
  }
  faults++;
  met.site = functions(program, met.offsets);
  if (await revived(where, met)) return true;
  judge(where, met, e);
  const again = await attempt(run, door);
  if (again) find(where, { ...met, call }, `and then: ${said(again)}`);
  return true;
}

const tasks = [];
for (const [table, names] of [[paths, ['http', 'ws']], [httpOnly, ['http']]])
  for (const [name, run] of Object.entries(table))
    for (const door of names)
      for (const program of forKeeper.has(name) ? ['server', 'keeper'] : ['server'])
        if (only ? only === name : !(seconds && slow.has(name))) tasks.push({ name, run, door, program });

async function prepare() {
  const d = mine.http;
  await post(d, '/api/write', { path: 'tree/d/f', content: 'content' });
  await post(d, '/api/write', { path: 'tree/g', content: 'g' });
  await post(d, '/api/write', { path: 'tree/e/h', content: 'h' });
  await post(d, '/api/execute', { command: 'echo ready', sessionId: 'steady' });
  for (const t of tasks) { // what a server keeps from its first use of a thing is there
    const e = await attempt(t.run, t.door);
    if (e) throw e;
  }
}

const sitesOf = t => record(t.program, async () => { judge(`${t.name} over ${t.door}`, null, await attempt(t.run, t.door)); });

async function all() {
  const met = new Map(); // how often, by program and site
  let base; // of this server
  for (const t of tasks) {
    const was = pid, before = faults;
    base ??= descriptors();
    const sites = await sitesOf(t);
    for (const site of sites) {
      const key = t.program + site.hash;
      for (const left of site.count > 1 ? [0, site.count - 1] : [0])
        if ((met.get(key) ?? 0) < AS_OFTEN && await meet(t, site, left)) met.set(key, (met.get(key) ?? 0) + 1);
    }
    if (was === pid) await settled(t.name, base);
    else base = undefined;
    console.log(`${t.name} over ${t.door}: ${sites.length} sites and ${faults - before} faults of the ${t.program}`);
  }
}

async function sample() {
  const rng = random(seed), end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    const t = rng.pick(tasks);
    t.sites ??= await sitesOf(t);
    if (!t.sites.length) continue;
    const site = rng.pick(t.sites);
    await meet(t, site, rng.int(0, site.count - 1));
  }
}

try {
  await prepare();
  const open = descriptors(), was = pid;
  if (seconds) await sample(); else await all();
  mine.ws.close();
  if (was === pid) await settled('all', open);
  const left = readdirSync(s.workspace, { recursive: true }).filter(f => /\.conflux-[0-9a-f]{16}\./.test(f));
  if (left.length > unfinished) find('all', null, `temporary files are left: ${left.slice(0, 5)}`);
} finally {
  await s.stop();
  closeSync(fd);
  rmSync(control);
}
const report = /(?:ERROR: \w+Sanitizer|runtime error)[^]*/.exec(s.stderr);
if (report) find('all', null, report[0].slice(0, 4000));
if (s.exited.code !== 0) find('all', null, `ended with ${JSON.stringify(s.exited)}`);

console.log(`inject: ${faults} faults${seconds ? `, seed ${seed}` : ''}, ${findings.size} findings`);
process.exit(findings.size || !faults ? 1 : 0);
