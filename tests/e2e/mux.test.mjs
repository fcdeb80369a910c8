// The multiplexed WebSocket on the real program (cloudflare-sandbox.md section 4 and our additions).
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import net from 'node:net';
import { randomBytes } from 'node:crypto';
import { get, gone, post, start, until } from './lib/server.mjs';
import { connect } from './lib/mux.mjs';

const OFF = '__DISABLE_SESSION__';
const out = (evs, type = 'stdout') => evs.filter(e => e.type === type).map(e => e.data).join('');
const next = (m, want) => until(() => { const i = m.stray.findIndex(want); return i >= 0 && m.stray.splice(i, 1)[0]; }, 'a message');

describe('mux', () => {
  let s, m;
  before(async () => { s = await start({ args: ['--max-pending', '64', '--max-message', '100000', '--max-request-id', '128'] }); m = await connect(s); });
  after(async () => { await m.close(); await s.stop(); });

  test('what is not a request is answered without an id, and the socket stays', async () => {
    m.send('{x');
    assert.deepEqual(await next(m, e => e.code === 'PARSE_ERROR'), { type: 'error', code: 'PARSE_ERROR', message: 'Invalid JSON message', status: 400 });
    for (const bad of ['[]', 'null', '5', '{}', '{"type":"foo","id":"a"}', '{"type":"cancel"}']) {
      m.send(bad);
      assert.deepEqual(await next(m, e => e.code === 'INVALID_REQUEST'), { type: 'error', code: 'INVALID_REQUEST', message: 'Message must be a valid WSRequest', status: 400 });
    }
    assert.equal((await m.get('/api/ping')).status, 200);
  });

  test('the same routes as over HTTP, the same bodies', async () => {
    for (const [method, p, body] of [['GET', '/api/version'], ['GET', '/nope'], ['POST', '/api/read', { path: '/no/such' }], ['POST', '/api/execute'],
      ['POST', '/api/execute', { command: 5 }], ['DELETE', '/api/process/none'], ['GET', '/api/process/list'], ['POST', '/api/mkdir', {}]]) {
      const ws = await m.request(method, p, body);
      const http = await (await fetch(s.base + p, { method, body: body && JSON.stringify(body) })).json();
      delete ws.body.timestamp; delete http.timestamp;
      assert.deepEqual(ws.body, http, `${method} ${p}`);
    }
  });

  test('requests run at the same time and are answered as they end', async () => {
    const order = [];
    const slow = m.post('/api/execute', { command: 'sleep 0.4', sessionId: 'a' }).then(() => order.push('slow'));
    const fast = m.post('/api/execute', { command: 'true', sessionId: 'b' }).then(() => order.push('fast'));
    await Promise.all([slow, fast]);
    assert.deepEqual(order, ['fast', 'slow']);
  });

  test('a stream and its end', async () => {
    const r = await m.post('/api/execute/stream', { command: 'echo a; echo b >&2; exit 3', sessionId: OFF });
    assert.deepEqual([r.status, r.body, r.done], [200, undefined, true]);
    assert.deepEqual([r.events[0].type, out(r.events), out(r.events, 'stderr'), r.events.at(-1).type, r.events.at(-1).exitCode], ['start', 'a\n', 'b\n', 'complete', 3]);
  });

  test('an id in flight is refused, and can be used again afterwards', async () => {
    const first = m.post('/api/execute', { command: 'sleep 0.3; echo one', sessionId: 'dup' }, { id: 'same' });
    m.send({ type: 'request', id: 'same', method: 'GET', path: '/api/ping' });
    const r = await first;
    // whichever message came first with that id is the refusal of the second; the first still gets its answer
    const answers = r.type === 'error' ? [r, await next(m, e => e.id === 'same')] : [await next(m, e => e.id === 'same'), r];
    assert.equal(answers[0].code, 'DUPLICATE_REQUEST_ID');
    assert.equal(answers[1].body.stdout, 'one');
    assert.equal((await m.get('/api/ping', { id: 'same' })).status, 200);
  });

  test('ids are echoed with their type; one too long is refused', async () => {
    for (const id of ['x', '日本', 'a "b"', 7, 'z'.repeat(100)]) assert.equal((await m.get('/api/ping', { id })).id, id);
    const r = await m.get('/api/ping', { id: 'y'.repeat(129) }).catch(e => e);
    assert.equal(r.type, 'error');
    assert.match(r.message, /id/);
  });

  test('the limit of pending requests: a typed error with the id', async () => {
    const p = await connect(s);
    const held = Array.from({ length: 64 }, (_, i) => p.post('/api/execute', { command: i ? 'true' : 'sleep 0.5', sessionId: 'queue' }));
    const r = await p.get('/api/ping', { id: 'over' });
    assert.deepEqual([r.type, r.code, r.status, r.id], ['error', 'LIMIT_EXCEEDED', 429, 'over']);
    for (const h of held) assert.equal((await h).status, 200);
    await p.close();
  });

  test('a message over the limit closes with 1009, an unmasked frame with 1002', async () => {
    const p = await connect(s);
    p.send('x'.repeat(100001));
    assert.equal((await until(() => p.closed, 'the close')).code, 1009);
    const bytes = await new Promise((resolve, reject) => {
      const k = net.connect(s.port, '127.0.0.1', () => k.write(`GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${randomBytes(16).toString('base64')}\r\n\r\n`));
      let all = Buffer.alloc(0), sent = false;
      k.on('data', d => {
        all = Buffer.concat([all, d]);
        const i = all.indexOf('\r\n\r\n');
        if (i >= 0 && !sent) { sent = true; k.write(Buffer.from([0x81, 2, 0x7b, 0x7d])); }
        if (i >= 0 && all.length >= i + 8) { resolve(all.subarray(i + 4)); k.destroy(); }
      });
      k.on('error', reject);
      k.on('close', () => reject(new Error('closed without a close frame')));
    });
    assert.equal(bytes[0], 0x88);
    assert.equal(bytes.readUInt16BE(2), 1002);
  });

  test('a stream with a window stops at its credit and goes on with more', async () => {
    let got = 0;
    const r = m.post('/api/execute/stream', { command: 'head -c 300000 /dev/zero | tr "\\0" w', sessionId: OFF }, { id: 'win', window: 50000 },
      e => { if (e.type === 'stdout') { got += e.data.length; } });
    await until(() => got > 0, 'the first window');
    for (let i = 0; i < 20; i++) await m.get('/api/ping');
    assert.ok(got <= 50000, `${got} bytes were sent against a credit of 50000`);
    while (got < 300000) {
      const before = got;
      m.send({ type: 'window', id: 'win', bytes: 60000 });
      await until(() => got > before, 'more');
    }
    assert.equal(out((await r).events).length, 300000);
  });

  test('deadlineMs ends a request with 408', async () => {
    const r = await m.post('/api/execute', { command: 'sleep 1000', sessionId: 'dl' }, { deadlineMs: 200 });
    assert.deepEqual([r.status, r.body.code], [408, 'DEADLINE_EXCEEDED']);
    assert.equal((await m.post('/api/execute', { command: 'echo free', sessionId: 'dl' })).body.stdout, 'free');
  });

  test('hello tells version, pings and limits; /api/pending lists what is in flight', async () => {
    m.send({ type: 'hello' });
    const h = await next(m, e => e.type === 'hello');
    assert.match(h.version, /^\d/);
    assert.equal(h.pingSeconds, 15);
    assert.equal(h.limits.maxMessageBytes ?? h.limits.message ?? 100000, 100000);
    const r = m.post('/api/execute', { command: 'sleep 0.4', sessionId: 'pend' }, { id: 'look' });
    const list = await until(async () => { const t = JSON.stringify((await get(s, '/api/pending')).body); return t.includes('"look"') && t; }, 'the entry');
    assert.match(list, /\/api\/execute/);
    await r;
    assert.doesNotMatch(JSON.stringify((await get(s, '/api/pending')).body), /"look"/);
  });

  test('a reader that stops harms nobody, and gets everything when it reads again', async () => {
    const p = await connect(s);
    const total = 30_000_000;
    const r = p.post('/api/execute/stream', { command: `head -c ${total} /dev/zero | tr "\\0" q`, sessionId: OFF });
    await until(() => p.pending.get(r.id)?.events.length, 'the start');
    p.ws._socket.pause();
    for (let i = 0; i < 50; i++) assert.equal((await m.post('/api/execute', { command: 'echo ok', sessionId: OFF })).body.stdout, 'ok\n');
    p.ws._socket.resume();
    const done = await r;
    assert.equal(out(done.events).length, total);
    assert.deepEqual([done.events.at(-1).type, done.events.at(-1).exitCode], ['complete', 0]);
    await p.close();
  });

  test('small calls pass a big stream on the same socket', async () => {
    const p = await connect(s);
    const r = p.post('/api/execute/stream', { command: 'yes | head -c 50000000', sessionId: OFF });
    let during = 0;
    const finished = r.then(() => { during = -during; });
    while (during >= 0 && during < 50) { await p.get('/api/ping'); during++; }
    assert.ok(Math.abs(during) > 5, 'pings waited for the stream');
    await finished;
    assert.equal(out((await r).events).length, 50000000);
    await p.close();
  });

  test('when the socket is lost, streams are left and their commands run on (onDisconnect: kill ends them)', async () => {
    for (const onDisconnect of [undefined, 'kill']) {
      const p = await connect(s);
      let pid;
      p.post('/api/execute/stream', { command: 'echo $$; sleep 1000', sessionId: OFF }, { onDisconnect }, e => { if (e.type === 'stdout') pid = Number(e.data); }).catch(() => {});
      await until(() => pid, 'the pid');
      p.ws.terminate();
      if (onDisconnect) await gone(pid);
      else {
        await until(async () => /conflux_websockets 1\b/.test(await (await fetch(s.base + '/metrics')).text()), 'the loss to be noticed');
        process.kill(pid, 0);
        process.kill(pid, 'SIGKILL');
      }
    }
  });
});

test('a drained server closes its WebSockets with 1001 after the last answers', async () => {
  const s = await start();
  const m = await connect(s);
  const r = m.post('/api/execute', { command: 'echo last' });
  assert.equal((await r).body.stdout, 'last');
  s.child.kill('SIGTERM');
  assert.equal((await until(() => m.closed, 'the close')).code, 1001);
  await s.stop();
});
