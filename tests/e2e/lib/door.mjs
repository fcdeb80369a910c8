// One body of a test, run on every door: over HTTP and over the multiplexed WebSocket.
//
// A door has exec, post, get, del and request ({status, body}), and stream ({events, ids, opened, done, cancel, cut, pause, resume});
// cut() resets its connections as a lost network does, another() is a second client of the same kind.
import { after, before, describe, test } from 'node:test';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { readFile } from 'node:fs/promises';
import { connect } from './mux.mjs';
import { gone, serverPid, start, until } from './server.mjs';

export const OFF = '__DISABLE_SESSION__';
export const FULL = !!process.env.CONFLUX_FULL;
export const ASAN = /asan|debug/.test(process.env.CONFLUX_BIN ?? '') || !!process.env.CONFLUX_ASAN;
export const full = (all, reduced) => (FULL ? all : reduced);

// A stream's record: each event once, in order; `ids` are the resume points that came with them.
class Stream {
  events = [];
  ids = [];
  constructor(onEvent) { this.onEvent = onEvent; }
  add(event, id) { this.events.push(event); this.ids.push(id); this.onEvent?.(event, this); }
  text(type = 'stdout') { return this.events.filter(e => e.type === type).map(e => e.data).join(''); }
  last() { return this.events.at(-1); }
  until(want, what) { return until(() => this.events.find(want), what ?? 'an event'); }
  sees(text) { return until(() => this.text().includes(text), `"${text}" in the stream`); }
}

// Node keeps the handle of a socket that is reset when it has been closed already, and then never exits.
const reset = k => { if (!k.destroyed && !k.readableEnded) k.resetAndDestroy(); };

class HttpDoor {
  name = 'http';
  constructor(s) { this.s = s; this.agent = new http.Agent({ keepAlive: true, maxSockets: Infinity }); this.sockets = new Set(); }
  #open(method, path, body, headers) {
    const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
    const req = http.request(this.s.base + path, { method, agent: this.agent, headers: { ...text !== undefined && { 'Content-Length': Buffer.byteLength(text) }, ...headers } });
    req.on('socket', k => this.sockets.add(k));
    req.on('error', () => {});
    req.end(text);
    return new Promise((resolve, reject) => { req.once('response', res => resolve({ req, res })); req.once('error', reject); });
  }
  async request(method, path, body, { headers } = {}) {
    const { res } = await this.#open(method, path, body, headers);
    const parts = [];
    for await (const d of res) parts.push(d);
    return { status: res.statusCode, headers: res.headers, body: JSON.parse(Buffer.concat(parts)) };
  }
  stream(path, body, { method = body === undefined ? 'GET' : 'POST', headers, onEvent } = {}) {
    const st = new Stream(onEvent);
    let end;
    st.done = new Promise(resolve => { end = resolve; });
    st.opened = this.#open(method, path, body, headers).then(({ req, res }) => {
      st.cancel = () => req.destroy();
      st.cut = () => { if (!res.complete) reset(req.socket); }; // else the socket may serve another request by now
      st.pause = () => req.socket.pause();
      st.resume = () => req.socket.resume();
      let text = '';
      res.setEncoding('utf8');
      const finish = lost => {
        if (!lost && res.statusCode === 200 && text) throw new Error('SSE body ends inside an event: ' + text.slice(0, 100));
        end(res.statusCode === 200 ? { status: 200, lost } : { status: res.statusCode, lost, body: text && JSON.parse(text) });
      };
      res.on('data', d => {
        text += d;
        if (res.statusCode !== 200) return;
        for (let i; (i = text.indexOf('\n\n')) >= 0; text = text.slice(i + 2)) {
          const event = {};
          for (const line of text.slice(0, i).split('\n')) event[line.slice(0, line.indexOf(':'))] = line.slice(line.indexOf(': ') + 2);
          if (event.data !== undefined) st.add(JSON.parse(event.data), event.id); // else a comment: a quiet stream is kept alive
        }
      });
      res.on('end', () => finish(false));
      res.on('error', () => finish(true));
      return res.statusCode;
    });
    st.opened.catch(() => end({ status: 0, lost: true }));
    return st;
  }
  cut() { this.sockets.forEach(reset); this.sockets.clear(); }
  another() { return new HttpDoor(this.s); }
  close() { this.agent.destroy(); for (const k of this.sockets) k.destroy(); }
}

class WsDoor {
  name = 'ws';
  static async open(s) { return Object.assign(new WsDoor(), { s, m: await connect(s) }); }
  async request(method, path, body, { headers, ...extra } = {}) {
    const r = await this.m.request(method, path, body, headers ? { headers, ...extra } : extra);
    return r.type === 'error' ? { ...r, body: { code: r.code, message: r.message } } : r;
  }
  stream(path, body, { method = body === undefined ? 'GET' : 'POST', headers, onEvent, ...extra } = {}) {
    const st = new Stream(onEvent);
    const done = this.m.request(method, path, body, headers ? { headers, ...extra } : extra, (event, msg) => st.add(event, msg.eventId));
    st.id = done.id;
    st.done = done.then(r => ({ ...r, lost: false }), () => ({ status: 0, lost: true }));
    st.opened = until(() => st.events.length || !this.m.pending.has(done.id), 'the stream to open').then(() => 200);
    st.cancel = kill => this.m.send({ type: 'cancel', id: done.id, kill });
    st.cut = () => this.cut();
    st.pause = () => this.m.ws._socket.pause();
    st.resume = () => this.m.ws._socket.resume();
    return st;
  }
  cut() { if (!this.m.closed) reset(this.m.ws._socket); }
  another() { return WsDoor.open(this.s); }
  close() { return this.m.close(); }
}

const common = {
  post(path, body, extra) { return this.request('POST', path, body, extra); },
  get(path, extra) { return this.request('GET', path, undefined, extra); },
  del(path, extra) { return this.request('DELETE', path, undefined, extra); },
  exec(command, o) { return this.request('POST', '/api/execute', { command, sessionId: OFF, ...o }); },
  execStream(command, o, extra) { return this.stream('/api/execute/stream', { command, sessionId: OFF, ...o }, extra); },
  startProcess(processId, command, o) { return this.request('POST', '/api/process/start', { command, processId, sessionId: OFF, ...o }); },
  async process(id) { return (await this.get('/api/process/' + id)).body.process; },
  wait(id, query = '') { return this.get(`/api/process/${id}/wait?timeoutMs=30000${query}`); },
  logged(id, pattern) { return this.wait(id, `&for=log&pattern=${encodeURIComponent(pattern)}`); },
};
for (const kind of [HttpDoor, WsDoor]) for (const name in common) kind.prototype[name] = common[name];
export const openDoor = (name, s) => (name === 'http' ? new HttpDoor(s) : WsDoor.open(s));

// Kills the server, after `meanwhile` was done while it stood still; a door to the next one as soon as that answers at `at` (200).
export async function nextServer(s, d, { meanwhile = async () => {}, at = '/readyz' } = {}) {
  const pid = await serverPid(s);
  process.kill(pid, 'SIGSTOP');
  await meanwhile();
  process.kill(pid, 'SIGKILL');
  await until(async () => { const p = await serverPid(s); return p && p !== pid; }, 'the next server');
  return until(async () => {
    if (s.exited) throw new Error('conflux has ended: ' + s.stderr.slice(-2000));
    const next = await Promise.resolve(d.another()).catch(() => null);
    if ((await next?.get(at).catch(() => null))?.status === 200) return next;
    await next?.close();
    return null;
  }, 'a door of the next server');
}

async function onDoor(name, s, body) {
  const door = await openDoor(name, s);
  try { await body(door, s); } finally { await door.close(); }
}
const LIMIT = { timeout: full(900000, 120000) }; // against hanging, no measure

// A group of rows that share one server. both(number, title, body) is one test a door; own(number, title, options, body)
// gives each door a server of its own; plain(number, title, body) is for what only one door can show.
export function group(title, options, rows) {
  describe(title, () => {
    let s;
    before(async () => { s = await start(options); });
    after(() => s.stop());
    rows({
      both(row, what, body) { for (const door of ['http', 'ws']) test(`${row} [${door}] ${what}`, LIMIT, () => onDoor(door, s, body)); },
      plain(row, what, body, more) { test(`${row} ${what}`, { ...LIMIT, ...more }, () => body(s)); },
    });
  });
}
export function own(row, what, options, body) {
  for (const door of ['http', 'ws']) test(`${row} [${door}] ${what}`, LIMIT, async () => {
    const s = await start(options);
    try { await onDoor(door, s, body); } finally { await s.stop(); }
  });
}
export function plainOwn(row, what, options, body) {
  test(`${row} ${what}`, LIMIT, async () => {
    const s = await start(options);
    try { await body(s); } finally { await s.stop(); }
  });
}

// A zombie is not: once the keeper has died, whether an orphan is reaped is up to the init of where the tests run.
export const alive = pid => { try { return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8')); } catch { return false; } };
export { gone };
export const times = (n, f) => Array.from({ length: n }, (_, i) => f(i));
// Resident memory in MiB: now, or the peak since it was last cleared.
export async function memory(pid, what = 'VmRSS') {
  return Number(new RegExp(`${what}:\\s+(\\d+)`).exec(await readFile(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
}
export const held = (s, kind) => metric(s, `conflux_memory_held_bytes\\{kind="${kind}"\\}`);
export const metric = async (s, name) => Number(new RegExp(`^${name} (\\d+)`, 'm').exec(await (await fetch(s.base + '/metrics')).text())?.[1]);
