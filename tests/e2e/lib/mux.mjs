// A small client of the multiplexed WebSocket, for tests: it shows every message and checks that each request ends once.
import WebSocket from 'ws';

export async function connect(s, opts = {}) {
  const ws = new WebSocket(s.ws + (opts.path ?? '/ws'), opts.protocols ?? [], { headers: opts.headers, maxPayload: 1 << 30 });
  const m = { ws, closed: null, stray: [], pending: new Map(), n: 0 };
  ws.on('message', raw => {
    const msg = JSON.parse(raw);
    const p = m.pending.get(msg.id);
    if (!p) { m.stray.push(msg); return; }
    if (msg.type === 'stream') { p.events.push(JSON.parse(msg.data)); p.onEvent?.(p.events.at(-1), msg); return; }
    m.pending.delete(msg.id);
    p.resolve({ ...msg, events: p.events });
  });
  const fail = why => { for (const p of m.pending.values()) p.reject(why); m.pending.clear(); };
  ws.on('close', (code, reason) => { m.closed = { code, reason: String(reason) }; fail(new Error('WebSocket closed ' + code)); });
  ws.on('error', fail);
  await new Promise((resolve, reject) => {
    ws.once('open', resolve);
    ws.once('error', reject);
    ws.once('unexpected-response', (_req, res) => reject(Object.assign(new Error('refused ' + res.statusCode), { status: res.statusCode })));
  });
  m.send = o => ws.send(typeof o === 'string' ? o : JSON.stringify(o));
  m.request = (method, path, body, extra = {}, onEvent) => {
    const id = extra.id ?? 'r' + ++m.n;
    const done = new Promise((resolve, reject) => m.pending.set(id, { resolve, reject, events: [], onEvent }));
    m.send({ type: 'request', id, method, path, body, ...extra });
    done.id = id;
    return done;
  };
  m.post = (path, body, extra, onEvent) => m.request('POST', path, body, extra, onEvent);
  m.get = (path, extra) => m.request('GET', path, undefined, extra);
  m.close = () => new Promise(r => { if (m.closed) r(); else { ws.once('close', r); ws.close(1000); } });
  return m;
}
