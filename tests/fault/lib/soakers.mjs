// The kinds of load of a soak. Each goes on until load.over(), and has then let go of all that it held. What is refused
// around an upgrade, or because a connection was cut, is counted; a wrong answer is a problem.
import net from 'node:net';
import { connect } from '../../e2e/lib/mux.mjs';
import { until } from '../../e2e/lib/server.mjs';
import { Client } from './http.mjs';
import { OFF, sleep } from './load.mjs';

const CALLERS = 4, READERS = 3, BIG = 4 << 20, CROWD = 200, HALF = 100;

// A caller with a door of his own. request(): the answer, or null where the connection went away.
class Caller {
  constructor(load, ws) { Object.assign(this, { load, ws, client: ws ? null : new Client(load.s.base) }); }
  async request(method, url, body) {
    const t = this.load.tally;
    t.calls++;
    try {
      let r;
      if (!this.ws) r = await this.client.ask(method, url, body, AbortSignal.timeout(60000));
      else {
        if (!this.m || this.m.closed) { this.m = await connect(this.load.s); this.m.ws.on('error', () => {}); }
        r = await this.m.request(method, url, body);
        if (r.type === 'error') r = { ...r, body: r };
      }
      if (['OPERATION_INTERRUPTED', 'LIMIT_EXCEEDED', 'EXECUTION_LOST'].includes(r.body?.code)) { t.refused++; return null; }
      return r;
    } catch (e) {
      if (e.name === 'TimeoutError' || e.cause?.name === 'TimeoutError') t.problems.push(`${method} ${url}: no answer within 60 s`);
      t.refused++;
      await sleep(20);
      return null;
    }
  }
  async close() { this.client?.close(); if (this.m) await this.m.close(); }
}

const kinds = {
  async exec(c, id) {
    const r = await c.request('POST', '/api/execute', { command: `echo ${id}`, sessionId: OFF });
    return !r || r.body.stdout === `${id}\n` || r.body;
  },
  async args(c, id) {
    const r = await c.request('POST', '/api/execute', { args: ['echo', id], executionId: id });
    return !r || r.body.stdout?.trim() === id || r.body;
  },
  async session(c, id) {
    const made = await c.request('POST', '/api/session/create', { id, env: { V: id } });
    if (made && made.status !== 200) return made.body;
    const r = made && await c.request('POST', '/api/execute', { command: 'echo $V', sessionId: id });
    let gone; // whether or not the answer came, it may be there
    for (let n = 0; !gone && n < 50; n++) gone = await c.request('POST', '/api/session/delete', { sessionId: id });
    return !r || r.body.stdout === id || r.body;
  },
  async process(c, id) {
    const r = await c.request('POST', '/api/process/start', { command: 'sleep 600', processId: id, sessionId: OFF });
    if (r && r.status !== 200) return r.body;
    let end; // whether or not the answer came, it may run
    for (let n = 0; !end && n < 50; n++) end = await c.request('DELETE', `/api/process/${id}?graceMs=500`);
    return !end || end.status === 200 || end.body?.code === 'COMMAND_NOT_FOUND' || end.body?.code === 'PROCESS_NOT_FOUND' || end.body;
  },
  async file(c, id) {
    const path = `${c.load.dir}/workspace/${id}`, content = id.repeat(c.load.rng.int(1, 5000));
    const w = await c.request('POST', '/api/write', { path, content, sessionId: OFF });
    const r = w && await c.request('POST', '/api/read', { path, sessionId: OFF });
    let gone; // a removal whose answer was lost may have been done
    for (let n = 0; !gone && n < 50; n++) gone = await c.request('POST', '/api/delete', { path, sessionId: OFF });
    return !r || r.body.content === content || { status: r.status, code: r.body.code };
  },
  async watch(c) {
    const r = await c.request('POST', '/api/watch/check', { path: `${c.load.dir}/workspace` });
    return !r || r.status === 200 || r.body;
  },
};

export async function callers(load) {
  let n = 0;
  const one = async ws => {
    const c = new Caller(load, ws);
    while (!load.over()) {
      const kind = load.rng.pick(Object.keys(kinds)), id = `s${load.end % 1e8}-${n++}`, ok = await kinds[kind](c, id);
      if (ok !== true) load.tally.problems.push(`${kind}: ${JSON.stringify(ok).slice(0, 300)}`);
      await sleep(load.rng.int(0, 20));
    }
    await c.close();
  };
  await Promise.all(Array.from({ length: CALLERS }, (_, i) => one(i % 2 === 0)));
}

// Takes a large answer a little at a time: on a socket of its own, and on a WebSocket that is paused.
export async function slowReaders(load) {
  const text = JSON.stringify({ command: `head -c ${BIG} /dev/zero | tr '\\0' x`, sessionId: OFF }), { host, port } = load.s;
  const overHttp = async () => {
    const c = net.connect({ host, port });
    let got = 0, over = false;
    c.on('error', () => {});
    c.on('close', () => { over = true; });
    c.on('data', d => { got += d.length; load.tally.streamed += d.length; c.pause(); setTimeout(() => c.resume(), load.over() ? 0 : load.rng.int(0, 40)); });
    c.write(`POST /api/execute HTTP/1.1\r\nHost: ${host}:${port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n${text}`);
    await until(() => over, 'the end of a slow reader', 120000).catch(e => load.tally.problems.push(e.message));
    if (got > 4096 && got < BIG && !load.upgraded) load.tally.problems.push(`a slow reader had ${got} bytes of ${BIG}, and no upgrade came between`);
    c.destroy();
  };
  const overSocket = async () => {
    const m = await connect(load.s).catch(() => null);
    if (!m) return;
    m.ws.on('error', () => {});
    const r = m.request('POST', '/api/execute', JSON.parse(text)).catch(() => null);
    m.ws.pause();
    await sleep(load.rng.int(200, 3000));
    m.ws.resume();
    const a = await r;
    if (a?.body?.stdout) load.tally.streamed += a.body.stdout.length;
    if (a?.status === 200 && a.body.stdout.length !== BIG && !a.body.stdoutTruncated) load.tally.problems.push(`a paused WebSocket had ${a.body.stdout.length} bytes of ${BIG}`);
    await m.close();
  };
  const forever = async fn => { while (!load.over()) { await fn(); await sleep(load.rng.int(0, 200)); } };
  await Promise.all([...Array.from({ length: READERS }, () => forever(overHttp)), ...Array.from({ length: READERS }, () => forever(overSocket))]);
}

function dial({ host, port }, text) {
  const c = net.connect({ host, port });
  c.on('error', () => {});
  c.ended = new Promise(r => c.on('close', r));
  if (text) c.write(text);
  c.resume();
  return c;
}

// Many connections at once, which say nothing and go.
export async function flood(load) {
  while (!load.over()) {
    const all = Array.from({ length: CROWD }, () => dial(load.s));
    await sleep(load.rng.int(50, 500));
    for (const c of all) if (load.rng.chance(0.5)) c.resetAndDestroy(); else c.destroy();
    await sleep(load.rng.int(500, 2000));
  }
}

// Heads that never end: the server ends them, or they go.
export async function halfHeads(load) {
  while (!load.over()) {
    const all = Array.from({ length: HALF }, () => dial(load.s, 'GET /api/ping HTTP/1.1\r\nHo'));
    await Promise.race([Promise.all(all.map(c => c.ended)), sleep(load.rng.int(500, 5000))]);
    for (const c of all) c.resetAndDestroy();
  }
}
