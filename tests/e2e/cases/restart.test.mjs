// Field cases, group "Reliability and restart".
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import net from 'node:net';
import { OFF, full, own, plainOwn, times } from '../lib/door.mjs';
import { get, post, serverPid, until } from '../lib/server.mjs';

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

plainOwn('B117', 'a flood beyond the descriptors: refused, and by itself well again', { prefix: ['prlimit', '--nofile=256:256'], args: ['--http-workers', '16'] }, async s => {
  const flood = times(400, () => net.connect(s.port, '127.0.0.1').on('error', () => {}));
  const tries = times(5, () => post(s, '/api/execute', { command: 'echo x', sessionId: OFF }).catch(e => e));
  await Promise.race([Promise.all(tries), new Promise(f => setTimeout(f, 1000))]);
  for (const k of flood) k.destroy();
  const well = await until(async () => { const r = await post(s, '/api/execute', { command: 'echo well', sessionId: OFF }).catch(() => null); return r?.status === 200 && r; }, 'an answer');
  assert.equal(well.body.stdout, 'well\n');
  assert.equal((await get(s, '/readyz')).status, 200);
  await Promise.all(tries);
});
