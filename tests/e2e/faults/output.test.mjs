// Work that must not delay others: patterns of clients, slow file systems, what is left behind, and logs.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ASAN, memory, OFF, openDoor, own, plainOwn, times } from '../lib/door.mjs';
import { connect } from '../lib/mux.mjs';
import { serverPid, until } from '../lib/server.mjs';

// Lines on which an engine that tries and takes back needs minutes each, for the patterns below.
const LINES = 300, LINE = 'a'.repeat(4000) + '\n';
const HARD = '((a|aa)*)*b';
// Each byte makes a state that was not met before: as slow as it gets, on any engine.
const SLOW = '(x|y)*x(x|y){240}z';
let seed = 7;
const xy = n => times(n, () => 'xy'[(seed = (seed * 1103515245 + 12345) % 2147483648) >> 16 & 1]).join('');

own('X12', 'a pattern costs its own caller only: others are answered while it is matched', {}, async (door, s) => {
  await writeFile(path.join(s.workspace, 'hard'), LINE.repeat(LINES));
  await writeFile(path.join(s.workspace, 'slow'), times(400, () => xy(3999) + '\n').join(''));
  await door.startProcess('hard', 'cat hard; sleep 600');
  await door.startProcess('slow', 'cat slow; sleep 600');
  const waiter = await door.another(), scanner = await door.another();
  let over = 0;
  const slow = times(3, () => waiter.wait('slow', `&for=log&regex=1&pattern=${encodeURIComponent(SLOW)}`).catch(() => {}).finally(() => { over++; }));
  const scan = scanner.stream('/api/files/grep', { path: s.workspace, pattern: SLOW, regex: true });
  const hard = door.wait('hard', `&for=log&regex=1&pattern=${encodeURIComponent(HARD + '$')}`);
  for (let i = 0; i < 20; i++) assert.equal((await door.exec('echo ' + i)).body.stdout, i + '\n');
  assert.equal((await door.another()).name, door.name);
  assert.equal((await door.post('/api/read', { path: 'hard' })).body.content.length, LINE.length * LINES);
  assert.equal(over, 0); // it is still being matched
  await door.post('/api/process/hard/signal', { signal: 'TERM' });
  assert.equal((await hard).body.code, 'PROCESS_EXITED_BEFORE_READY');
  const st = door.stream('/api/files/grep', { path: path.join(s.workspace, 'hard'), pattern: HARD, regex: true });
  assert.equal((await st.done).status, 200);
  assert.deepEqual([st.last().type, st.last().matches, st.last().truncated], ['complete', 0, false]);
  scan.opened.catch(() => {});
  await scanner.close();
  await waiter.close();
  await Promise.all(slow);
});

own('X12', 'a pattern that would grow without bound is refused by name', {}, async door => {
  await door.startProcess('p', 'sleep 600');
  for (const pattern of ['(a{1,100}){1,100}', 'a?{100}{100}', '(((x{2}){2}){255}){255}', '(a)\\1', '(', 'a{300}']) {
    for (const r of [await door.wait('p', `&for=log&regex=1&pattern=${encodeURIComponent(pattern)}`),
      await door.post('/api/files/grep', { path: '/tmp', pattern, regex: true })]) {
      assert.deepEqual([r.status, r.body.code], [400, 'VALIDATION_FAILED'], pattern);
      assert.match(JSON.stringify(r.body.context.validationErrors), /"pattern"/);
    }
  }
});

// Holds the lock of an upload's record from outside, as a file system that does not answer holds everything.
async function hung(s, body) {
  const record = path.join(s.dir, 'state/uploads/u-u1');
  const lock = spawn('flock', [record, '-c', 'echo held; exec cat'], { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = new Promise(r => lock.on('exit', r));
  const held = new Promise(r => lock.stdout.once('data', r));
  await held;
  try { await body(lock); } finally { lock.stdin.end(); await ended; }
}
const begin = (door, s) => door.post('/api/write', { path: path.join(s.workspace, 'f'), content: 'x', uploadId: 'u1', offset: 0, final: false });

plainOwn('X04', 'file work of one client that hangs delays neither output, nor look-ups, nor the files of others', {}, async s => {
  const m = await connect(s), other = await openDoor('ws', s), http = await openDoor('http', s);
  assert.equal((await begin(other, s)).status, 200);
  const hanging = [];
  await hung(s, async () => {
    for (let i = 0; i < 12; i++) hanging.push(m.get('/api/files/upload/u1'));
    const text = (r, type = 'stdout') => r.events.filter(e => e.type === type).map(e => e.data).join('');
    for (let i = 0; i < 5; i++) {
      const r = await m.post('/api/execute/stream', { command: `echo hi ${i}; echo oh >&2`, sessionId: OFF });
      assert.deepEqual([text(r), text(r, 'stderr'), r.events.at(-1).exitCode], [`hi ${i}\n`, 'oh\n', 0]);
    }
    const big = await m.post('/api/execute', { command: 'seq 200000', sessionId: OFF }); // over what is kept in memory
    assert.equal(big.body.stdout.length, 1288895);
    if (process.getuid() === 0) assert.equal((await m.post('/api/execute', { command: 'id -un', user: 'nobody', cwd: '/', sessionId: OFF })).body.stdout, 'nobody\n');
    for (const door of [other, http]) {
      assert.equal((await door.post('/api/write', { path: path.join(s.workspace, door.name), content: 'text' })).status, 200);
      assert.equal((await door.post('/api/read', { path: path.join(s.workspace, door.name) })).body.content, 'text');
      const st = door.stream('/api/read/stream', { path: path.join(s.workspace, door.name) });
      assert.equal((await st.done).status, 200);
      assert.equal(st.last().type, 'complete');
    }
    assert.equal(m.pending.size, 12);
  });
  for (const r of await Promise.all(hanging)) assert.equal(r.status, 200);
  for (const d of [other, http]) await d.close();
  await m.close();
});

plainOwn('X05', 'what is cancelled, or late, holds nothing: not memory, and no place that is still taken', {}, async s => {
  const m = await connect(s), pid = await serverPid(s), other = await openDoor('ws', s);
  assert.equal((await begin(other, s)).status, 200);
  await hung(s, async () => {
    const hanging = times(4, () => m.get('/api/files/upload/u1'));
    const body = { path: path.join(s.workspace, 'never'), content: 'y'.repeat(60000) };
    const before = await memory(pid);
    for (let i = 0; i < 1000; i++) {
      const late = i % 20 === 0, r = m.post('/api/write', body, late ? { deadlineMs: 1 } : {});
      if (!late) m.send({ type: 'cancel', id: r.id });
      if (i % 20 === 19 || late) assert.equal((await r).body.code, late ? 'DEADLINE_EXCEEDED' : 'CANCELLED');
    }
    // 60 MB were sent (the sanitizer keeps what has been freed)
    if (!ASAN) assert.ok(await memory(pid) - before < 30, 'what was given up is not kept');
    // and what a client leaves behind by going away is bounded, however often it comes again
    for (let i = 0; i < 15; i++) {
      const guest = await connect(s);
      for (let k = 0; k < 8; k++) guest.get('/api/files/upload/u1').catch(() => {});
      for (let k = 0; k < 20; k++) guest.post('/api/write', body).catch(() => {});
      await guest.get('/api/ping');
      guest.ws.terminate();
    }
    assert.equal((await other.exec('echo still')).body.stdout, 'still\n');
    for (const r of hanging) m.send({ type: 'cancel', id: r.id });
    for (const r of hanging) assert.equal((await r).body.code, 'CANCELLED');
  });
  const r = await other.post('/api/read', { path: path.join(s.workspace, 'never') });
  assert.ok(r.status === 404 || r.body.content.length === 60000); // as a whole or not at all
  await until(async () => (await m.get('/api/files/upload/u1')).status === 200, 'the place to be free again');
  await other.close();
  await m.close();
});

for (const [what, when] of [['never end', 'never'], ['end while the server does', 'late']]) {
  plainOwn('X06', `SIGTERM with pieces of an upload under way that ${what}: the server ends, by itself and without a fault`, {}, async s => {
    const m = await connect(s), other = await openDoor('ws', s), pid = await serverPid(s);
    assert.equal((await begin(other, s)).status, 200);
    await hung(s, async lock => {
      const piece = { path: path.join(s.workspace, 'f'), content: 'y'.repeat(50000), uploadId: 'u1', offset: 1, final: false };
      for (let i = 0; i < 20; i++) m.post('/api/write', piece).catch(() => {});
      assert.equal((await m.get('/api/ping')).status, 200);
      if (when === 'late') m.ws.once('close', () => lock.stdin.end());
      s.child.kill('SIGTERM');
      assert.deepEqual(await s.exit, { code: 0, signal: null });
      assert.throws(() => process.kill(pid, 0));
    });
    assert.doesNotMatch(s.stderr, /Sanitizer|runtime error/);
    await other.close();
    await m.close();
  });
}
