// Limits and pressure on the real program: what is refused is refused clearly, and the rest is served.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import net from 'node:net';
import { get, post, start, until } from './lib/server.mjs';
import { connect } from './lib/mux.mjs';

const OFF = '__DISABLE_SESSION__';
const open = (s, n, greet) => Promise.all(Array.from({ length: n }, () => new Promise((resolve, reject) => {
  const k = net.connect(s.port, '127.0.0.1', () => { if (greet) k.write(greet); else resolve(k); });
  k.on('error', greet ? reject : () => {});
  k.once('data', () => resolve(k));
})));
const exec = (s, command = 'echo served') => post(s, '/api/execute', { command, sessionId: OFF });

test('1,000 silent connections: health and a new exec still answer', async () => {
  const s = await start();
  const silent = await open(s, 1000);
  try {
    for (let i = 0; i < 3; i++) {
      assert.equal((await fetch(s.base + '/healthz')).status, 200);
      assert.equal((await exec(s)).body.stdout, 'served\n');
    }
  } finally { silent.forEach(k => k.destroy()); await s.stop(); }
});

test('1,000 idle keep-alive connections: health and a new exec still answer', async () => {
  const s = await start();
  const idle = [];
  try {
    for (let i = 0; i < 10; i++) idle.push(...await open(s, 100, `GET /api/ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`));
    assert.equal((await fetch(s.base + '/healthz')).status, 200);
    assert.equal((await exec(s)).body.stdout, 'served\n');
  } finally { idle.forEach(k => k.destroy()); await s.stop(); }
});

test('slow headers are cut, and hold nobody up', async () => {
  const s = await start({ args: ['--header-timeout', '1000', '--http-workers', '8'] });
  const drip = await open(s, 8);
  const timers = drip.map(k => { k.write('GET / HTTP/1.1\r\nX: '); return setInterval(() => k.write('y'), 200); });
  try {
    await Promise.all(drip.map(k => new Promise(r => k.on('close', r).resume())));
    assert.equal((await fetch(s.base + '/healthz')).status, 200);
  } finally { timers.forEach(clearInterval); drip.forEach(k => k.destroy()); await s.stop(); }
});

for (const [what, request] of [
  ['uploads', () => 'POST /api/write HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{"path"'],
  ['downloads', s => `GET /api/files/raw?path=${s.workspace}/large HTTP/1.1\r\nHost: x\r\n\r\n`],
]) test(`more stalled ${what} than workers, each within its time: the rest is served`, async () => {
  const s = await start({ args: ['--header-timeout', '60000', '--http-workers', '8'] });
  const stalled = [];
  try {
    const r = await exec(s, `head -c 30000000 /dev/zero > ${s.workspace}/large`);
    assert.equal(r.body.exitCode, 0);
    for (let i = 0; i < 24; i++) {
      const k = net.connect(s.port, '127.0.0.1', () => k.write(request(s)));
      stalled.push(k.pause().on('error', () => {}));
    }
    for (let i = 0; i < 3; i++) assert.equal((await fetch(s.base + '/healthz', { signal: AbortSignal.timeout(20000) })).status, 200);
  } finally { stalled.forEach(k => k.destroy()); await s.stop(); }
});

test('a body over the limit: 413 before it is read', async () => {
  const s = await start({ args: ['--max-body', '2000'] });
  try {
    const r = await post(s, '/api/write', { path: s.workspace + '/big', content: 'x'.repeat(3000) });
    assert.deepEqual([r.status, r.body.code], [413, 'PAYLOAD_TOO_LARGE']);
    assert.equal((await post(s, '/api/write', { path: s.workspace + '/small', content: 'x'.repeat(1000) })).status, 200);
  } finally { await s.stop(); }
});

test('sessions, processes and connections have limits with typed errors', async () => {
  const s = await start({ args: ['--max-sessions', '2', '--max-processes', '3', '--max-connections', '5'] });
  try {
    for (const id of ['a', 'b']) assert.equal((await post(s, '/api/session/create', { id })).status, 200);
    const c = await post(s, '/api/session/create', { id: 'c' });
    assert.deepEqual([c.status, c.body.code], [429, 'LIMIT_EXCEEDED']);
    for (let i = 0; i < 3; i++) assert.equal((await post(s, '/api/process/start', { command: 'sleep 1000', sessionId: OFF })).status, 200);
    const p = await post(s, '/api/process/start', { command: 'sleep 1000', sessionId: OFF });
    assert.deepEqual([p.status, p.body.code], [429, 'LIMIT_EXCEEDED']);
    assert.equal((await fetch(s.base + '/api/process/kill-all', { method: 'DELETE' })).status, 200);
    const ws = [];
    for (let i = 0; i < 5; i++) ws.push(await connect(s));
    await assert.rejects(connect(s), e => e.status === 429);
    await ws.pop().close();
    await until(() => connect(s).then(x => { ws.push(x); return true; }, () => false), 'room for another');
    for (const m of ws) await m.close();
  } finally { await s.stop(); }
});

test('readyz and metrics', async () => {
  const s = await start();
  try {
    assert.equal((await get(s, '/readyz')).status, 200);
    await exec(s);
    const text = await (await fetch(s.base + '/metrics')).text();
    for (const name of ['conflux_connections', 'conflux_pending_requests', 'conflux_spawns_total', 'conflux_processes', 'conflux_output_dropped_bytes_total', 'conflux_server_restarts_total'])
      assert.match(text, new RegExp(`^# TYPE ${name} (gauge|counter)\\n${name} \\d+`, 'm'));
    assert.match(text, /_bucket\{.*route="\/api\/execute".*le="\+Inf"\} [1-9]/);
  } finally { await s.stop(); }
});
