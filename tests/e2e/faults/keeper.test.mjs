// Faults of the keeper: what stopped it for everybody, or would have ended it.
import assert from 'node:assert/strict';
import { chmod, copyFile, mkdir, readFile, readdir } from 'node:fs/promises';
import { describe, test } from 'node:test';
import { OFF, openDoor } from '../lib/door.mjs';
import { hold, lease, silent } from '../lib/hold.mjs';
import { gone, start, until } from '../lib/server.mjs';

const childrenOf = async pid => {
  const all = [];
  for (const e of (await readdir('/proc')).filter(n => /^\d+$/.test(n))) {
    const stat = await readFile(`/proc/${e}/stat`, 'utf8').catch(() => '');
    const m = /^\d+ \((.*)\) (\S) (\d+)/s.exec(stat);
    if (m && Number(m[3]) === pid) all.push({ pid: Number(e), name: m[1], state: m[2] });
  }
  return all;
};
// A child on its way to its program still bears our name.
const onTheirWay = async s => (await childrenOf(s.child.pid)).filter(p => p.name === 'conflux');

async function stuckProgram(s) {
  const file = s.dir + '/leased';
  await copyFile('/bin/true', file);
  await chmod(file, 0o755);
  const h = await hold(lease, file);
  assert.ok(h.held, h.said);
  return { ...h, file };
}

describe('keeper', () => {
  for (const name of ['http', 'ws'])
    test(`X03 [${name}] a program that cannot be executed holds nobody up, and ends at its deadline`, async () => {
      const s = await start({ args: ['--spawn-timeout', '600000', '--pool-size', '0'] });
      const stuck = await stuckProgram(s);
      const d = await openDoor(name, s);
      try {
        const waiting = d.post('/api/execute', { args: [stuck.file], sessionId: OFF, timeoutMs: 300 });
        const [child] = await until(async () => { const c = await onTheirWay(s); return c.length && c; }, 'the stuck one');
        for (const body of [{ args: ['echo', 'hi'] }, { args: ['echo', 'hi'], executionId: 'kept' }, { command: 'echo hi', sessionId: 'other' }])
          assert.equal((await d.post('/api/execute', body)).body.stdout.trim(), 'hi', JSON.stringify(body));
        const r = await waiting; // its own time limit is heard as well
        assert.deepEqual([r.status, r.body.outcome, r.body.exitCode], [200, 'timeout', 124], JSON.stringify(r.body));
        assert.deepEqual((await onTheirWay(s)).map(p => p.pid), [child.pid]); // still there, and nobody waits for it
      } finally {
        s.child.kill('SIGTERM'); // heard while it is stuck
        assert.deepEqual(await s.exit, { code: 0, signal: null });
        await d.close();
        await stuck.release();
        await s.stop();
      }
    });

  test('X03 what is stuck is refused at the deadline, killed and reaped', async () => {
    const s = await start({ args: ['--spawn-timeout', '1500', '--pool-size', '0'] });
    const stuck = await stuckProgram(s);
    const doors = [await openDoor('http', s), await openDoor('ws', s)];
    try {
      for (const d of doors)
        for (const more of [{}, { executionId: 'x03-' + d.name }]) {
          const r = await d.post('/api/execute', { args: [stuck.file], ...more });
          assert.deepEqual([r.status, r.body.code], [500, 'COMMAND_EXECUTION_ERROR'], JSON.stringify(r.body));
          assert.match(r.body.message, /leased.*execve.*ETIMEDOUT/);
        }
      await until(async () => (await onTheirWay(s)).length === 0, 'all to be gone');
      assert.deepEqual((await childrenOf(s.child.pid)).filter(p => p.state === 'Z'), []);
    } finally {
      for (const d of doors) await d.close();
      await stuck.release();
      await s.stop();
    }
  });

  test('X03 a folder that does not answer, not even to KILL', async t => {
    const s = await start({ args: ['--spawn-timeout', '1500', '--pool-size', '0'] });
    const dir = s.dir + '/silent';
    await mkdir(dir);
    const mount = process.getuid() === 0 ? await hold(silent, dir) : { held: false, said: 'not root', release() {} };
    const d = await openDoor('http', s);
    try {
      if (!mount.held) { t.skip('no file system of our own can be mounted: ' + mount.said.trim()); return; }
      const r = await d.post('/api/execute', { args: ['true'], cwd: dir + '/sub' });
      assert.deepEqual([r.status, r.body.code], [500, 'COMMAND_EXECUTION_ERROR'], JSON.stringify(r.body));
      assert.match(r.body.message, /silent.*chdir.*ETIMEDOUT/);
      const [child] = await onTheirWay(s);
      assert.equal(child?.state, 'D'); // given up, and remembered
      assert.equal((await d.post('/api/execute', { args: ['echo', 'hi'] })).body.stdout.trim(), 'hi');
      await mount.release();
      await gone(child.pid); // reaped as soon as that is possible
    } finally {
      await mount.release();
      await d.close();
      await s.stop();
    }
  });
});
