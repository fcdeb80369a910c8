// Execution over HTTP: our additions. The field cases are in cases/.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { get, gone, post, start, until } from './lib/server.mjs';
import { openDoor } from './lib/door.mjs';

const OFF = '__DISABLE_SESSION__';

describe('execute', () => {
  let s;
  const X = (command, o = {}) => post(s, '/api/execute', { command, sessionId: OFF, ...o });
  before(async () => { s = await start(); });
  after(() => s.stop());

  test('stdin meets its end in every way to run a command', async () => {
    for (const sessionId of [OFF, 'stdin'])
      for (const executionId of [undefined, 'stdin-' + sessionId])
        for (const path of ['/api/execute', '/api/process/start']) {
          const id = executionId && executionId + path.length, r = await post(s, path, { command: 'cat; cat', sessionId, stdin: 'in\nout', executionId: id });
          if (path === '/api/execute') assert.deepEqual([r.body.stdout, r.body.exitCode], ['in\nout', 0]);
          else assert.equal((await get(s, `/api/process/${r.body.processId}/wait?timeoutMs=30000`)).body.process?.exitCode, 0);
        }
  });

  test('argv form: no shell touches the arguments', async () => {
    const r = await post(s, '/api/execute', { args: ['printf', '%s|', '$HOME', 'a b', '*', ''] });
    assert.deepEqual([r.body.exitCode, r.body.stdout], [0, '$HOME|a b|*||']);
  });

  test('stdin as text and as base64', async () => {
    assert.equal((await X('cat; echo .', { stdin: 'héllo' })).body.stdout, 'héllo.\n');
    assert.equal((await X('od -An -tx1', { stdin: 'AP8K', stdinEncoding: 'base64' })).body.stdout.trim(), '00 ff 0a');
    assert.equal((await X('cat', { stdin: 'in a session', sessionId: 'std' })).body.stdout, 'in a session');
    const big = 'x'.repeat(3_000_000);
    assert.equal((await X('wc -c', { stdin: big })).body.stdout.trim(), '3000000');
  });

  test('a shell that is busy itself: the timeout ends the command, the session goes on', async () => {
    const S = (command, o) => X(command, { sessionId: 'busy', ...o });
    await S('export KEEP=kept; cd /usr');
    for (const loop of ['while :; do :; done', 'kill -STOP $$', 'trap "" TERM INT; while :; do :; done', 'read x < <(sleep 1000)']) {
      const r = await S(loop, { timeoutMs: 300 });
      assert.ok(['COMMAND_EXECUTION_ERROR', 'SESSION_TERMINATED'].includes(r.body.code), `${loop}: ${JSON.stringify(r.body)}`);
      assert.equal((await S('pwd; echo $KEEP')).body.stdout, '/usr\nkept', loop);
    }
  });

  for (const door of ['http', 'ws'])
    test(`${door}: what is ended in a session goes no further down its list, and the session keeps what it had`, async () => {
      const d = await openDoor(door, s), sessionId = 'list-' + door;
      const S = (command, o) => d.exec(command, { sessionId, ...o });
      await S('v=1; f() { sleep 1000; echo x >$mark; }; mark=$(mktemp -u)');
      for (const command of ['sleep 1000; echo x >$mark', 'f || { echo y; } >$mark', 'while :; do f; done; : >$mark']) {
        const timed = await S(command, { timeoutMs: 200 }), executionId = `${sessionId}-${command.length}`;
        assert.deepEqual([timed.body.code, timed.body.message.includes('timeout')], ['COMMAND_EXECUTION_ERROR', true]);
        const running = S(command, { executionId });
        await until(async () => (await d.get('/api/execution/' + executionId)).body.status === 'running', 'the start');
        await d.del('/api/execution/' + executionId);
        assert.equal((await running).body.code, 'CANCELLED');
        assert.equal((await S('echo $v; type -t f; [[ -e $mark ]] || echo none')).body.stdout, '1\nfunction\nnone', command);
      }
      await d.close();
    });

  test('respond-async and detachAfterMs hand out the execution', async () => {
    const r = await post(s, '/api/execute', { command: 'sleep 0.2; echo later', sessionId: OFF, executionId: 'async-1' }, { Prefer: 'respond-async' });
    assert.deepEqual([r.status, r.body.executionId, r.headers.get('location')], [202, 'async-1', '/api/execution/async-1']);
    assert.equal((await get(s, '/api/execution/async-1?waitMs=20000')).body.stdout, 'later\n');
    const d = (await X('sleep 0.5; echo end', { detachAfterMs: 50 })).body;
    assert.equal(d.detached, true);
    assert.equal((await get(s, `/api/execution/${d.executionId}?waitMs=20000`)).body.stdout, 'end\n');
  });

  test('usage and outcome come with the result', async () => {
    const r = (await X('true')).body;
    assert.equal(r.outcome, 'exited');
    assert.ok(r.usage.maxRssBytes > 100000);
    assert.ok(r.usage.cpuMs >= 0);
    const k = (await X('kill -9 $$')).body;
    assert.deepEqual([k.exitCode, k.outcome, k.signal], [137, 'signal', 'SIGKILL']);
  });

  test('bad requests name their field and harm nothing', async () => {
    for (const [body, field] of [[{ command: 5 }, 'command'], [{}, 'command'], [{ command: 'a\0b' }, 'command'], [{ args: [] }, 'args'], [{ args: ['a', 5] }, 'args'],
      [{ command: 'true', timeoutMs: -1 }, 'timeoutMs'], [{ command: 'true', timeoutMs: 'soon' }, 'timeoutMs'], [{ command: 'true', env: [] }, 'env'], [{ command: 'true', env: { A: 5 } }, 'env'],
      [{ command: 'true', executionId: 'no spaces' }, 'executionId'], [{ command: 'true', encoding: 'latin1' }, 'encoding'], [{ command: 'true', stdin: 5 }, 'stdin'],
      [{ command: 'true', maxOutputBytes: -5 }, 'maxOutputBytes'], [{ command: 'true', limits: { memoryMb: 5 } }, 'limits'], [{ command: 'true', cwd: 7 }, 'cwd']]) {
      const r = await post(s, '/api/execute', body);
      assert.ok(r.status >= 400, JSON.stringify(body));
      assert.match(r.body.message + JSON.stringify(r.body.context), new RegExp(field), JSON.stringify([body, r.body]));
    }
    for (const text of ['', '{', '[1,2', '"\ud800', ]) {
      const r = await post(s, '/api/execute', text);
      assert.match(r.body.message, /^Failed to parse request body: /, text);
    }
    const deep = await post(s, '/api/execute', '{"a":' + '['.repeat(100) + ']'.repeat(100) + '}');
    assert.deepEqual([deep.status, deep.body.code], [413, 'PAYLOAD_TOO_LARGE']);
    const wide = await post(s, '/api/execute', '[' + '1,'.repeat(1100000) + '1]');
    assert.deepEqual([wide.status, wide.body.code], [413, 'PAYLOAD_TOO_LARGE']);
  });

  test('a client that goes away ends its buffered command', async () => {
    const ac = new AbortController();
    const call = fetch(s.base + '/api/execute', { method: 'POST', body: JSON.stringify({ command: 'echo $$; sleep 1000', sessionId: OFF, executionId: 'left', onDisconnect: 'kill' }), signal: ac.signal }).catch(() => {});
    const pid = await until(async () => Number((await get(s, '/api/execution/left/logs?stream=stdout&from=0')).body.data), 'the pid');
    ac.abort();
    await call;
    await gone(pid);
  });

  for (const door of ['http', 'ws'])
    for (const sessionId of [OFF, 'ended'])
      test(`${door}, ${sessionId === OFF ? 'sessionless' : 'in a session'}: an execution is ended by whoever knows its id`, async () => {
        const d = await openDoor(door, s), other = await openDoor(door, s), id = `ended-${door}-${sessionId}`;
        try {
          const call = d.exec('sleep 1000 & echo $!; wait', { executionId: id, sessionId });
          const pid = await until(async () => Number((await other.get(`/api/execution/${id}/logs?stream=stdout`)).body.data), 'the pid');
          const r = (await other.del(`/api/execution/${id}?graceMs=2000`)).body;
          assert.deepEqual([r.success, r.executionId, r.survivors], [true, id, []]);
          assert.ok(r.killed.includes(pid), JSON.stringify(r));
          await gone(pid);
          assert.equal((await call).body.code, 'CANCELLED');
          assert.equal((await other.get(`/api/execution/${id}`)).body.code, 'CANCELLED');
          const again = await other.del(`/api/execution/${id}`);
          assert.deepEqual([again.status, again.body.code], [404, 'COMMAND_NOT_FOUND']);
          const none = await other.del('/api/execution/never-was');
          assert.deepEqual([none.status, none.body.code], [404, 'EXECUTION_NOT_FOUND']);
          assert.equal((await d.exec('echo next', { sessionId })).body.stdout.trim(), 'next');
        } finally { await d.close(); await other.close(); }
      });

  test('a call that was answered with 202 is ended by its id', async () => {
    const r = await post(s, '/api/execute', { command: 'sleep 1000', sessionId: OFF }, { Prefer: 'respond-async' });
    assert.equal(r.status, 202);
    const path = `/api/execution/${r.body.executionId}`;
    const ended = await (await fetch(`${s.base}${path}?signal=KILL`, { method: 'DELETE' })).json();
    assert.ok(ended.success && ended.killed.length >= 1, JSON.stringify(ended));
    assert.equal((await get(s, path)).body.code, 'CANCELLED');
    const { paths } = (await get(s, '/openapi.json')).body;
    assert.ok(paths['/api/execution/{id}'].delete);
  });
});
