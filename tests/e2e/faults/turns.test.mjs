// Work of one client that would keep the loop from all others: what tens of thousands of requests cost when something
// happens to all of them at once.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { post, start, until } from '../lib/server.mjs';
import { connect } from '../lib/mux.mjs';
import { ASAN, metric, OFF, times } from '../lib/door.mjs';
import { turnsOf } from '../../fault/lib/turns.mjs';

// Processor time of one turn at these numbers: at most 70 ms were seen; 3,500 and 670 where each looked at all others.
const LIMIT_MS = 400;
const SOCKETS = 2, EACH = 9900;

// The body gets a server that logs its long turns, and sockets that count their messages and do not parse them.
function turns(what, body) {
  test(`X11 ${what}`, { skip: !ASAN && 'turns are measured where the program is built for it' }, async () => {
    const s = await start({ env: { CONFLUX_TURN_MS: '200' } });
    try {
      const sockets = await Promise.all(times(SOCKETS, () => connect(s)));
      for (const m of sockets) {
        m.got = 0;
        m.ws.removeAllListeners('message');
        m.ws.on('message', () => { m.got++; });
      }
      const ask = (path, more = {}) => { for (const m of sockets) for (let id = 0; id < EACH; id++) m.send({ type: 'request', id, method: 'GET', path, ...more }); };
      const pending = n => until(async () => await metric(s, 'conflux_pending_requests') === n, n + ' requests in flight');
      await exec(s, 'mkfifo go');
      assert.equal((await post(s, '/api/process/start', { command: 'read x <go; echo line; exec sleep 1000', processId: 'p' })).status, 200);
      await body({ s, sockets, ask, pending, got: () => sockets.reduce((n, m) => n + m.got, 0) });
      await exec(s, 'true');
    } finally { await s.stop(); }
    const long = turnsOf(s.stdout + s.stderr, { during: () => 0 }).filter(t => t.cpu > LIMIT_MS);
    assert.deepEqual(long.map(t => t.line), []);
  });
}
const all = SOCKETS * EACH;
const exec = async (s, command) => assert.equal((await post(s, '/api/execute', { command, sessionId: OFF })).body.exitCode, 0);
const say = s => exec(s, 'echo >go');
const kill = s => post(s, '/api/process/p/signal', { signal: 'SIGKILL' });

turns('a line for all who follow a process, its end, and their leaving', async ({ s, sockets, ask, pending, got }) => {
  ask('/api/process/p/stream');
  await pending(all);
  await until(() => got() === all, 'the first event of each');
  await say(s);
  await until(() => got() === 2 * all, 'the line for each');
  for (const m of sockets.slice(1)) m.ws.terminate();
  await pending(EACH);
  await kill(s);
  await pending(0);
});

turns('the end of a process for all who wait for it', async ({ s, ask, pending, got }) => {
  ask('/api/process/p/wait');
  await pending(all);
  await kill(s);
  await until(() => got() === all, 'an answer for each');
  await pending(0);
});
