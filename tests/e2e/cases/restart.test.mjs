// Field cases, group "Reliability and restart".
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { OFF, full, own, times } from '../lib/door.mjs';
import { connect } from '../lib/mux.mjs';
import { serverPid, until } from '../lib/server.mjs';

own('B117', 'descriptors and threads stay level over many calls', {}, async (d, s) => {
  const pid = await serverPid(s), n = full(10000, 400);
  const count = async () => [(await readdir(`/proc/${pid}/fd`)).length, (await readdir(`/proc/${s.child.pid}/fd`)).length, (await readdir(`/proc/${pid}/task`)).length];
  const work = async calls => {
    for (let i = 0; i < calls; i += 10) {
      await Promise.all(times(10, k => d.exec('echo x', { sessionId: k % 2 ? OFF : 'b117' })));
      const c = await d.another();
      const st = c.execStream('echo x');
      if (i % 20) await st.done; else await st.opened;
      await c.close();
    }
  };
  await work(100);
  const before = await count();
  await work(n);
  await until(async () => { const now = await count(); return now.every((v, i) => v <= before[i] + 4); }, `descriptors to be given back (${before})`);
});

own('B117', 'a flood beyond 64 descriptors: refused, not ready meanwhile, and by itself well again', { prefix: ['prlimit', '--nofile=64:64'] }, async (d, s) => {
  const ready = async () => { const r = await d.get('/readyz'); return [r.status, r.body.checks.descriptors]; };
  const well = async () => (await d.exec('echo well')).body.stdout === 'well\n';
  const held = [];
  try {
    assert.ok(await well());
    assert.deepEqual(await ready(), [200, true]);
    for (let refused; !refused;) await connect(s).then(m => held.push(m), e => { refused = e.status; assert.equal(refused, 429); });
    assert.deepEqual(await ready(), [503, false]);
    for (const path of ['/api/execute', '/api/execute/stream', '/api/process/start']) {
      const r = await d.post(path, { command: 'echo no', sessionId: OFF });
      assert.deepEqual([r.status, r.body.code], [429, 'LIMIT_EXCEEDED']);
    }
    assert.equal((await d.get('/healthz')).status, 200);
    for (const m of held) m.ws.terminate();
    await until(async () => (await ready())[1], 'room again');
    assert.ok(await well());
  } finally {
    for (const m of held) m.ws.terminate();
  }
});
