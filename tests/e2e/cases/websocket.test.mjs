// Field cases, group "WebSocket and multiplexing". What HTTP can show as well is shown there too.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import net from 'node:net';
import { ASAN, OFF, full, gone, group, memory, metric, openDoor, own, plainOwn, times } from '../lib/door.mjs';
import { get, serverPid, until } from '../lib/server.mjs';

const KEY = 'dGhlIHNhbXBsZSBub25jZQ==';
const upgrade = (more = '') => `GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${KEY}\r\n${more}\r\n`;
function frame(payload, first = 0x81) {
  const mask = randomBytes(4), data = Buffer.from(payload), head = [first];
  if (data.length < 126) head.push(0x80 | data.length);
  else if (data.length < 65536) head.push(0xfe, data.length >> 8, data.length & 255);
  else head.push(0xff, 0, 0, 0, 0, data.length >>> 24, (data.length >> 16) & 255, (data.length >> 8) & 255, data.length & 255);
  for (let i = 0; i < data.length; i++) data[i] ^= mask[i & 3];
  return Buffer.concat([Buffer.from(head), mask, data]);
}
// A socket that says only what it is told, answers no ping, and keeps what it hears.
async function rawSocket(s, first) {
  const k = net.connect(s.port, '127.0.0.1');
  const r = { k, got: Buffer.alloc(0), closed: false };
  k.on('data', d => { r.got = Buffer.concat([r.got, d]); });
  k.on('close', () => { r.closed = true; });
  k.on('error', () => {});
  if (first) {
    k.write(first);
    await until(() => r.got.includes('\r\n\r\n') || r.closed, 'the answer to the handshake');
    r.status = Number(/^HTTP\/1.1 (\d+)/.exec(r.got.toString('latin1'))?.[1]);
    r.got = r.got.subarray(r.got.indexOf('\r\n\r\n') + 4);
  }
  return r;
}
const closeCode = r => until(() => { for (let i = 0; i + 4 <= r.got.length; i += 2 + r.got[i + 1]) if (r.got[i] === 0x88) return r.got.readUInt16BE(i + 2); return r.closed && 'none'; }, 'a close');

group('websocket', {}, ({ both, plain }) => {
  for (const [what, begin] of [
    ['a stream', d => d.execStream(`head -c ${full(200e6, 40e6)} /dev/zero | tr '\\0' x`, { sessionId: OFF })],
    ['a file', (d, s) => d.stream('/api/read/stream', { path: s.workspace + '/b089' })],
  ]) plain('B089', `[ws] small calls and pings pass ${what} on the same socket`, async s => {
    const d = await openDoor('ws', s), small = full(1000, 60);
    await writeFile(s.workspace + '/b089', Buffer.alloc(full(200e6, 40e6), 'f'));
    const st = begin(d, s);
    let over = false, passed = 0, pongs = 0;
    st.done.then(() => { over = true; });
    d.m.ws.on('pong', () => { if (!over) pongs++; });
    await st.opened;
    for (let i = 0; i < small && !over; i++) {
      d.m.ws.ping();
      assert.equal((await (i % 2 ? d.get('/api/ping') : d.post('/api/execute', { args: ['echo', 'x'], sessionId: OFF }))).status, 200);
      if (!over) passed++;
    }
    await st.done;
    assert.ok(passed > 3 && pongs > 3, `${passed} calls and ${pongs} pongs before the end`);
    assert.equal(st.events.reduce((n, e) => n + (['stdout', 'chunk'].includes(e.type) ? e.data.length : 0), 0), full(200e6, 40e6));
    await d.close();
  });

  plain('B089', '[ws] a large response lets pings through', async s => {
    const d = await openDoor('ws', s), size = 30e6;
    await writeFile(s.workspace + '/b089-one', Buffer.alloc(size, 'r'));
    let pongs = 0;
    d.m.ws.on('pong', () => { pongs++; });
    const r = d.post('/api/read', { path: s.workspace + '/b089-one' });
    d.m.ws._socket.pause();
    d.m.ws.ping();
    d.m.ws._socket.resume();
    assert.equal((await r).body.content.length, size);
    await until(() => pongs === 1, 'the pong');
    await d.close();
  });

  plain('B098', 'a bad handshake or frame is refused, and the server lives', async s => {
    const status = async text => { const r = await rawSocket(s, text); r.k.destroy(); return r.status; };
    assert.equal(await status('GET /ws HTTP/1.1\r\nHost: localhost\r\n\r\n'), 404); // as the page has it
    for (const bad of [upgrade().replace('Version: 13', 'Version: 8'), upgrade().replace(KEY, 'short'), upgrade().replace(/Sec-WebSocket-Key.*\r\n/, ''), upgrade().replace('GET', 'POST'),
      upgrade().replace('Connection: Upgrade', 'Connection: close')]) {
      const got = await status(bad);
      assert.ok(got >= 400 && got < 500, `${got} for ${bad}`);
    }
    for (const [bytes, code] of [[frame('{}', 0xc1), 1002], [Buffer.from([0x81, 2, 0x7b, 0x7d]), 1002], [frame('x', 0x83), 1002], [frame('x', 0x80), 1002], [frame(Buffer.from([0xff, 0xfe])), 1007]]) {
      const r = await rawSocket(s, upgrade());
      r.k.write(bytes);
      assert.equal(await closeCode(r), code);
      r.k.destroy();
    }
    const slow = net.connect(s.port, '127.0.0.1').setNoDelay(true);
    let heard = '';
    slow.on('data', d => { heard += d.toString('latin1'); });
    for (const c of upgrade()) { slow.write(c); await new Promise(setImmediate); }
    await until(() => heard.includes('\r\n\r\n'), 'the answer');
    assert.match(heard, /^HTTP\/1.1 101 /);
    for (const b of frame('{"type":"request","id":"a","method":"GET","path":"/api/ping"}')) { slow.write(Buffer.from([b])); await new Promise(setImmediate); }
    await until(() => heard.includes('"healthy"'), 'the answer to one byte at a time');
    slow.destroy();
    assert.equal((await get(s, '/api/ping')).status, 200);
  });

  both('B099', 'deleting a session ends its pending requests at once', async d => {
    const sessionId = 'b099-' + d.name;
    const held = times(20, () => d.exec('sleep 1000', { sessionId }));
    await until(async () => await metric(d.s, 'conflux_pending_requests') >= 20, 'all to be pending');
    const other = sessionId + '-stream', st = d.execStream('echo up; exec sleep 1000', { sessionId: other });
    await st.sees('up');
    for (const id of [sessionId, other]) assert.equal((await d.post('/api/session/delete', { sessionId: id })).status, 200);
    for (const h of held) { const r = await h; assert.deepEqual([r.status, r.body.code], [410, 'SESSION_DESTROYED']); }
    await st.done;
    assert.deepEqual([st.last().type, 'exitCode' in st.last()], ['complete', false]);
  });
});

plainOwn('B090', '[ws] a frame that arrives in pieces over many ping intervals is no dead connection', { args: ['--ping-interval', String(full(5000, 1500))] }, async s => {
  const r = await rawSocket(s, upgrade());
  const size = full(16e6, 4e6), pieces = full(60, 16), wait = full(1000, 300);
  const whole = frame(JSON.stringify({ type: 'request', id: 'big', method: 'POST', path: '/api/write', body: { path: s.workspace + '/b090', content: 'x'.repeat(size) } }));
  for (let i = 0; i < pieces; i++) {
    r.k.write(whole.subarray(Math.floor(whole.length * i / pieces), Math.floor(whole.length * (i + 1) / pieces)));
    await new Promise(f => setTimeout(f, wait));
    assert.equal(r.closed, false);
  }
  await until(() => r.got.includes('"big"'), 'the answer');
  assert.match(r.got.toString('latin1'), /"success":true/);
  r.k.destroy();
});

plainOwn('B092', '[ws] the server pings, so that a proxy which cuts idle connections lets a silent command end', { args: ['--ping-interval', '700'] }, async s => {
  const idle = full(20000, 4000);
  const proxy = net.createServer(a => {
    const b = net.connect(s.port, '127.0.0.1');
    let timer;
    const cut = () => { a.destroy(); b.destroy(); };
    const touch = () => { clearTimeout(timer); timer = setTimeout(cut, idle); };
    // What one end sent last must reach the other: end(), not destroy().
    for (const [x, y] of [[a, b], [b, a]]) { x.on('data', d => { touch(); y.write(d); }); x.on('close', () => { clearTimeout(timer); y.end(); }); x.on('error', () => {}); }
  }).listen(0, '127.0.0.1').unref();
  await new Promise(f => proxy.once('listening', f));
  const d = await openDoor('ws', { ...s, ws: 'ws://127.0.0.1:' + proxy.address().port });
  const seconds = full(120, 6);
  const st = d.execStream(`sleep ${seconds}; echo ok`);
  assert.equal((await d.exec(`sleep ${seconds}; echo ok`)).body.stdout, 'ok\n');
  await st.done;
  assert.deepEqual([st.text(), st.last().exitCode], ['ok\n', 0]);
  await d.close();
  proxy.close();
});

plainOwn('B093', '[ws] a peer that answers no ping is found dead, and what it asked for follows its policy', { args: ['--ping-interval', '1000'] }, async s => {
  const d = await openDoor('http', s);
  const r = await rawSocket(s, upgrade());
  for (const onDisconnect of ['kill', 'continue']) {
    const body = { command: 'echo $$; sleep 1000', sessionId: OFF, executionId: 'b093-' + onDisconnect, onDisconnect };
    r.k.write(frame(JSON.stringify({ type: 'request', id: onDisconnect, method: 'POST', path: '/api/execute/stream', body })));
  }
  const pid = async id => until(async () => Number((await d.get(`/api/execution/${id}/logs?stream=stdout&from=0`)).body.data), 'the pid');
  const [killed, lives] = [await pid('b093-kill'), await pid('b093-continue')];
  await until(async () => await metric(s, 'conflux_websockets') === 0, 'the loss to be noticed');
  await gone(killed);
  process.kill(lives, 'SIGKILL');
  r.k.destroy();
  d.close();
});

plainOwn('B094', '[ws] a client that never reads: the replies it is owed are bounded, and all come when it reads', {}, async s => {
  const d = await openDoor('ws', s), server = await serverPid(s), n = full(10000, 4000);
  await writeFile(s.workspace + '/b094', Buffer.alloc(19000, 'x'));
  const ask = () => d.post('/api/read', { path: s.workspace + '/b094' });
  await Promise.all(times(50, ask));
  const before = await memory(server);
  d.m.ws._socket.pause();
  let answered = 0;
  const all = times(n, () => ask().then(r => { assert.equal(r.body.content.length, 19000); answered++; }));
  const other = await openDoor('ws', s);
  for (let i = 0; i < 100; i++) assert.equal((await other.exec('echo undisturbed')).body.stdout, 'undisturbed\n');
  if (!ASAN) { const grown = await memory(server) - before; assert.ok(grown < 64, `${grown} MiB more`); }
  assert.equal(answered, 0);
  d.m.ws._socket.resume();
  await Promise.all(all);
  assert.equal(answered, n);
  await other.close();
  await d.close();
});

plainOwn('B094', '[http] the same with requests on one connection', {}, async s => {
  const server = await serverPid(s), n = full(10000, 4000), size = 19000;
  await writeFile(s.workspace + '/b094', Buffer.alloc(size, 'x'));
  const request = `GET /api/files/raw?path=${s.workspace}/b094 HTTP/1.1\r\nHost: x\r\n\r\n`;
  const k = net.connect(s.port, '127.0.0.1').pause();
  k.on('error', () => {});
  const d = await openDoor('http', s), before = await memory(server);
  k.write(request.repeat(n));
  for (let i = 0; i < 100; i++) assert.equal((await d.exec('echo undisturbed')).body.stdout, 'undisturbed\n');
  if (!ASAN) { const grown = await memory(server) - before; assert.ok(grown < 64, `${grown} MiB more`); }
  k.destroy();
  assert.equal((await d.get('/api/ping')).status, 200);
  d.close();
});

for (const large of [false, true])
  own('B097', `the server ends: a client that reads slowly has all its data first, ${large ? 'of a stream' : 'of a reply'}`, {}, async (d, s) => {
    const size = 12e6, command = `head -c ${size} /dev/zero | tr '\\0' x; touch ${s.workspace}/done`;
    const c = await d.another();
    let answer;
    const st = large && c.execStream(command);
    if (large) { await st.opened; st.pause(); } else {
      answer = c.exec(command, { executionId: 'b097' });
      await until(async () => (await d.get('/api/execution/b097')).status === 200, 'the end of the command');
    }
    if (d.name === 'ws') c.m.ws._socket.pause();
    s.child.kill('SIGTERM');
    await new Promise(f => setTimeout(f, 200));
    if (large) st.resume();
    if (d.name === 'ws') c.m.ws._socket.resume();
    if (large) {
      await st.done;
      assert.equal(st.last().type, 'complete'); // how the command ended depends on how far it was: its bytes do not
      const { exitCode } = st.last();
      if (exitCode === 0) assert.equal(st.text().length, size);
    } else assert.equal((await answer).body.stdout.length, size);
    if (d.name === 'ws') assert.equal((await until(() => c.m.closed, 'the close')).code, 1001);
    await c.close();
    assert.equal((await s.exit).code, 0);
  });
