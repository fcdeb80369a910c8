// /api/ports and /api/usage, on both doors.
import assert from 'node:assert/strict';
import { statfs } from 'node:fs/promises';
import { OFF, group } from './lib/door.mjs';
import { serverPid } from './lib/server.mjs';

const listener = `exec '${process.execPath}' -e "require('net').createServer().listen(0, '127.0.0.1', function () { console.log('at ' + this.address().port + '.'); })"`;
const said = async (d, id) => Number(/at (\d+)\./.exec((await d.logged(id, '.')).body.line)[1]);

group('machine', {}, ({ both }) => {
  both('ports', 'names the process that listens, also one that has left its parents', async (d, s) => {
    const sessionId = `ports-${d.name}`;
    for (const [id, command, o] of [['plain', listener, {}], ['daemon', `setsid sh -c '${listener.replaceAll("'", "'\\''")}' & sleep 1000`, {}], ['session', listener, { sessionId }]]) {
      const processId = `${id}-${d.name}`;
      assert.equal((await d.startProcess(processId, command, o)).status, 200);
      const port = await said(d, processId), all = (await d.get('/api/ports')).body.ports;
      const p = all.find(x => x.port === port);
      assert.deepEqual([p.address, p.protocol, p.processId], ['127.0.0.1', 'tcp', processId], JSON.stringify(p));
      assert.ok(p.pid > 1 && p.name);
      assert.equal(p.sessionId, o.sessionId);
      await d.del(`/api/process/${processId}`);
      assert.ok(!(await d.get('/api/ports')).body.ports.some(x => x.port === port));
    }
    const own = (await d.get('/api/ports')).body.ports.find(x => x.port === Number(s.port));
    assert.deepEqual([own.pid, own.processId, own.executionId], [await serverPid(s), undefined, undefined]);
    const bad = await d.get('/api/ports?x=1');
    assert.deepEqual([bad.status, bad.body.context?.validationErrors?.[0].field], [400, 'x']);
  });

  both('usage', 'once, and as a stream', async (d, s) => {
    const u = (await d.get('/api/usage')).body, fs = await statfs(s.workspace);
    assert.equal(u.disk.totalBytes, fs.blocks * fs.bsize);
    assert.ok(u.cpu.cores >= 1 && u.cpu.usageMs > 0 && !('percent' in u.cpu), JSON.stringify(u));
    assert.ok(u.memory.usedBytes > 0 && u.memory.usedBytes <= u.memory.totalBytes, JSON.stringify(u));
    const st = d.stream('/api/usage?stream=1&intervalMs=100', undefined);
    await st.until(() => st.events.length >= 2);
    await d.exec('i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done', { sessionId: OFF });
    const n = st.events.length;
    await st.until(() => st.events.length >= n + 2);
    assert.ok(st.events.every(e => e.type === 'usage'));
    assert.ok(st.events.slice(1).every(e => e.cpu.percent >= 0) && st.last().cpu.usageMs >= u.cpu.usageMs);
    st.cancel();
    for (const q of ['stream=2', 'intervalMs=99', 'intervalMs=60001', 'every=1'])
      assert.equal((await d.get('/api/usage?' + q)).status, 400, q);
  });
});
