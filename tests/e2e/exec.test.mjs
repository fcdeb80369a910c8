// Execution over HTTP: our additions, and the field cases that a client can see.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { del, get, post, serverPid, sse, start, until } from './lib/server.mjs';

const OFF = '__DISABLE_SESSION__';
const sha = s => createHash('sha256').update(s).digest('hex');
const gone = async pid => until(() => { try { process.kill(pid, 0); return false; } catch { return true; } }, `pid ${pid} to be gone`);

describe('execute', () => {
  let s;
  const X = (command, o = {}) => post(s, '/api/execute', { command, sessionId: OFF, ...o });
  before(async () => { s = await start(); });
  after(() => s.stop());

  test('B001: short commands always bring their output; two full streams are exact', async () => {
    for (let round = 0; round < 25; round++) {
      const all = await Promise.all(Array.from({ length: 16 }, (_, i) => X('echo hello', { sessionId: i % 2 ? OFF : 's' + i })));
      all.forEach((r, i) => assert.deepEqual([r.body.exitCode, r.body.stdout], [0, i % 2 ? 'hello\n' : 'hello']));
    }
    const seq = n => Array.from({ length: n }, (_, i) => i + 1 + '\n').join('');
    const want = [sha(seq(200000)), sha(seq(50000))];
    for (let i = 0; i < 5; i++) {
      const r = (await X('seq 1 200000; seq 1 50000 >&2')).body;
      assert.deepEqual([sha(r.stdout), sha(r.stderr)], want);
    }
  });

  test('B003: a background descendant that holds stdout does not hold the reply', async () => {
    for (const sessionId of [OFF, 'b003']) {
      const r = await X('sleep 60 & echo started', { sessionId });
      assert.equal(r.body.stdout.trim(), 'started');
      assert.equal(r.body.exitCode, 0);
    }
  });

  test('B005: a process in the background does not delay commands', async () => {
    await post(s, '/api/process/start', { command: 'sleep 300', sessionId: 'b005' });
    assert.equal((await X('echo hi', { sessionId: 'b005' })).body.stdout, 'hi');
  });

  test('B006: a missing program: 127 in a shell, a typed error with errno in argv form', async () => {
    const r = await X('nosuchcmd');
    assert.equal(r.body.exitCode, 127);
    assert.match(r.body.stderr, /nosuchcmd/);
    const a = await post(s, '/api/execute', { args: ['nosuchcmd'] });
    assert.equal(a.body.code, 'COMMAND_NOT_FOUND');
    assert.match(JSON.stringify(a.body), /ENOENT/);
    assert.equal(a.body.exitCode, undefined);
    assert.equal((await post(s, '/api/execute', { args: ['/etc/passwd'] })).body.code, 'COMMAND_PERMISSION_DENIED');
  });

  test('argv form: no shell touches the arguments', async () => {
    const r = await post(s, '/api/execute', { args: ['printf', '%s|', '$HOME', 'a b', '*', ''] });
    assert.deepEqual([r.body.exitCode, r.body.stdout], [0, '$HOME|a b|*||']);
  });

  test('B009: a timeout keeps what was printed', async () => {
    const r = (await X('printf partial; sleep 60', { timeoutMs: 300 })).body;
    assert.deepEqual([r.exitCode, r.timedOut, r.outcome, r.stdout], [124, true, 'timeout', 'partial']);
    const t = await X('printf partial; sleep 60', { timeoutMs: 300, sessionId: 'b009' });
    assert.deepEqual([t.status, t.body.code, t.body.context.timedOut, t.body.context.stdout], [500, 'COMMAND_EXECUTION_ERROR', true, 'partial']);
    const d = (await X('printf out; printf err >&2; exit 7')).body;
    assert.deepEqual([d.stdout, d.stderr, d.exitCode], ['out', 'err', 7]);
  });

  test('B010: an open stdin that nobody reads does not hold the reply', async () => {
    assert.equal((await X('echo hello', { stdin: 'open' })).body.stdout, 'hello\n');
    assert.equal((await X('cat', { stdin: 'open', timeoutMs: 300 })).body.timedOut, true);
  });

  test('stdin as text and as base64', async () => {
    assert.equal((await X('cat; echo .', { stdin: 'héllo' })).body.stdout, 'héllo.\n');
    assert.equal((await X('od -An -tx1', { stdin: 'AP8K', stdinEncoding: 'base64' })).body.stdout.trim(), '00 ff 0a');
    assert.equal((await X('cat', { stdin: 'in a session', sessionId: 'std' })).body.stdout, 'in a session');
    const big = 'x'.repeat(3_000_000);
    assert.equal((await X('wc -c', { stdin: big })).body.stdout.trim(), '3000000');
  });

  test('B014: a script of 1 MiB', async () => {
    const script = '# ' + 'p'.repeat(1 << 20) + '\necho ok';
    assert.equal((await X(script)).body.stdout, 'ok\n');
    assert.equal((await X(script, { sessionId: 'b014' })).body.stdout, 'ok');
  });

  test('B017, B021: infrastructure errors have no exit code; exit codes are integers, 0 included', async () => {
    const r = (await X('true')).body;
    assert.strictEqual(r.exitCode, 0);
    const e = await post(s, '/api/execute', { command: 'pwd', cwd: '/no/such', sessionId: OFF });
    assert.ok(e.status >= 400);
    assert.equal(e.body.exitCode, undefined);
  });

  test('B020: an execution id is started at most once', async () => {
    const f = `${s.workspace}/once`;
    const req = { command: `echo x >> ${f}; echo done`, executionId: 'only-once' };
    const all = await Promise.all([1, 2, 3].map(() => X(req.command, req)));
    for (const r of all) assert.deepEqual([r.status, r.body.stdout, r.body.executionId], [200, 'done\n', 'only-once']);
    assert.equal((await X(`cat ${f}`)).body.stdout, 'x\n');
    const other = await X('echo something else', { executionId: 'only-once' });
    assert.deepEqual([other.status, other.body.code], [409, 'EXECUTION_CONFLICT']);
    const later = await get(s, '/api/execution/only-once');
    assert.equal(later.body.stdout, 'done\n');
  });

  test('B043: what cannot start has a record', async () => {
    const r = await post(s, '/api/process/start', { args: ['/nope'], processId: 'b043' });
    assert.equal(r.body.processId, 'b043');
    const p = (await until(async () => { const g = await get(s, '/api/process/b043'); return g.body.process?.status !== 'starting' && g; }, 'its status')).body.process;
    assert.ok(['failed', 'error'].includes(p.status));
    assert.match(JSON.stringify(p), /ENOENT/);
  });

  test('B038, B039: kill reaches what left the group, and what ignores TERM', async () => {
    await post(s, '/api/process/start', { command: 'setsid sleep 1000 & echo $!; wait', processId: 'b038', sessionId: OFF });
    const pid = await until(async () => Number((await get(s, '/api/process/b038/logs')).body.stdout), 'the pid');
    const k = await del(s, '/api/process/b038');
    assert.equal(k.status, 200);
    assert.ok(k.body.killed.length >= 1);
    assert.deepEqual(k.body.survivors, []);
    await gone(pid);
    await post(s, '/api/process/start', { command: 'trap "" TERM; echo up; while :; do sleep 0.05; done', processId: 'b039', sessionId: OFF });
    await until(async () => (await get(s, '/api/process/b039/logs')).body.stdout === 'up\n', 'the trap');
    assert.equal((await del(s, '/api/process/b039?graceMs=200')).status, 200);
    const p = (await get(s, '/api/process/b039')).body.process;
    assert.deepEqual([p.status, p.signal], ['killed', 'SIGKILL']);
  });

  test('B016: a session whose shell is stopped: each command has its reply, and the session goes on', async () => {
    const S = (command, o) => post(s, '/api/execute', { command, sessionId: 'b016', ...o });
    const shell = async () => Number((await S('echo $$')).body.stdout);
    process.kill(await shell(), 'SIGSTOP'); // while it is idle
    const idle = await S('echo hello', { timeoutMs: 500 });
    assert.ok(idle.status === 200 ? idle.body.stdout === 'hello' : idle.body.context.timedOut, JSON.stringify(idle.body));
    const pid = await shell(), busy = S('sleep 1000', { timeoutMs: 1500 });
    await until(() => readFile(`/proc/${pid}/task/${pid}/children`, 'utf8'), 'its child');
    process.kill(pid, 'SIGSTOP'); // while it waits for that
    const queued = S('echo behind it', { timeoutMs: 20000 });
    const r = await busy;
    assert.deepEqual([r.status, r.body.code, r.body.context.timedOut], [500, 'COMMAND_EXECUTION_ERROR', true]);
    assert.deepEqual([(await queued).body.stdout, (await S('echo after')).body.stdout], ['behind it', 'after']);
  });

  test('B033: output in small pieces is neither kept beyond the limit nor copied again and again', async () => {
    const server = await serverPid(s);
    const peak = async () => Number(/VmHWM:\s+(\d+)/.exec(await readFile(`/proc/${server}/status`, 'utf8'))[1]) / 1024;
    await writeFile(`/proc/${server}/clear_refs`, '5').catch(() => {}); // the peak begins anew
    const before = await peak(), limit = 1 << 20;
    const r = (await X("head -c 20000000 /dev/zero | tr '\\0' x | dd bs=100 iflag=fullblock status=none", { maxOutputBytes: limit })).body;
    assert.deepEqual([r.exitCode, r.stdoutBytes, r.stdout.length, r.stdoutTruncated], [0, 20_000_000, limit, true]);
    const grown = await peak() - before;
    assert.ok(grown <= 1 + 32, `${grown} MiB more`);
  });

  test('B035: what a process was and printed can be read when its session is gone', async () => {
    for (const [id, command] of [['b035-ended', 'echo out; echo err >&2; exit 3'], ['b035-killed', 'echo out; exec sleep 1000']])
      await post(s, '/api/process/start', { command, processId: id, sessionId: 'b035' });
    await get(s, '/api/process/b035-ended/wait?timeoutMs=20000');
    await get(s, '/api/process/b035-killed/wait?for=log&pattern=out&timeoutMs=20000');
    const kept = (await post(s, '/api/execute', { command: 'echo result', sessionId: 'b035', executionId: 'b035-call' })).body;
    assert.equal((await post(s, '/api/session/delete', { sessionId: 'b035' })).status, 200);
    await get(s, '/api/process/b035-killed/wait?timeoutMs=20000');
    const one = async id => (await get(s, '/api/process/' + id)).body.process;
    const logs = async id => { const l = (await get(s, `/api/process/${id}/logs`)).body; return [l.stdout, l.stderr]; };
    assert.deepEqual([(await one('b035-ended')).status, (await one('b035-ended')).exitCode], ['failed', 3]);
    assert.deepEqual(await logs('b035-ended'), ['out\n', 'err\n']);
    assert.deepEqual([(await one('b035-killed')).status, await logs('b035-killed')], ['killed', ['out\n', '']]);
    const again = (await get(s, '/api/execution/b035-call')).body;
    assert.deepEqual([again.stdout, again.exitCode], [kept.stdout, 0]);
  });

  test('a deleted session ends its streams without an exit code', async () => {
    const r = await fetch(s.base + '/api/execute/stream', { method: 'POST', body: JSON.stringify({ command: 'echo up; exec sleep 1000', sessionId: 'gone' }) });
    const all = [];
    for await (const e of sse(r)) {
      all.push(e.data);
      if (e.data.type === 'stdout') await post(s, '/api/session/delete', { sessionId: 'gone' });
    }
    assert.deepEqual(all.map(e => e.type), ['start', 'stdout', 'complete']);
    assert.ok(!('exitCode' in all[2]), JSON.stringify(all[2]));
  });

  test('B049: a kill after the end says so', async () => {
    await post(s, '/api/process/start', { command: 'true', processId: 'b049' });
    await until(async () => (await get(s, '/api/process/b049')).body.process.status === 'completed', 'the end');
    assert.equal((await del(s, '/api/process/b049')).body.code, 'COMMAND_NOT_FOUND');
    assert.equal((await post(s, '/api/process/b049/signal', { signal: 'TERM' })).status >= 400, true);
  });

  test('B050: killed and exit 143 are told apart', async () => {
    await post(s, '/api/process/start', { command: 'exit 143', processId: 'b050', sessionId: OFF });
    const p = (await until(async () => { const g = await get(s, '/api/process/b050'); return g.body.process.status !== 'running' && g; }, 'the end')).body.process;
    assert.deepEqual([p.status, p.exitCode, p.outcome, p.signal ?? null], ['failed', 143, 'exited', null]);
  });

  test('B053–B056, B059: heredocs, exit, exec, set -e, output without newline', async () => {
    const S = (command, sessionId) => X(command, { sessionId });
    assert.equal((await S("cat <<'EOF' >f\nhello\nEOF\nwc -l <f", 'b053')).body.stdout.trim(), '1');
    const e = await S('exec echo hi', 'b055');
    assert.deepEqual([e.status, e.body.code, e.body.context.exitCode, e.body.context.stdout], [410, 'SESSION_TERMINATED', 0, 'hi']);
    await S('set -e', 'b056');
    const f = await S('false; echo x', 'b056');
    assert.deepEqual([f.status, f.body.code, f.body.context.exitCode], [410, 'SESSION_TERMINATED', 1]);
    assert.equal((await S('echo ok', 'b056')).body.stdout, 'ok');
    assert.equal((await S('printf abc', 'b059')).body.stdout, 'abc');
  });

  test('B057: an EXIT trap does not speak in later calls', async () => {
    await X("trap 'echo LEAK' EXIT", { sessionId: 'b057' });
    assert.equal((await X('echo clean', { sessionId: 'b057' })).body.stdout, 'clean');
  });

  test('B060: 20 at once in one session: each whole, in order', async () => {
    const all = await Promise.all(Array.from({ length: 20 }, (_, i) => X(`n=$((n+1)); for k in 1 2 3; do echo ${i}-$k; done; echo n$n`, { sessionId: 'b060' })));
    const turns = all.map((r, i) => { const l = r.body.stdout.split('\n'); assert.deepEqual(l.slice(0, 3), [1, 2, 3].map(k => `${i}-${k}`)); return Number(l[3].slice(1)); });
    assert.deepEqual([...turns].sort((a, b) => a - b), Array.from({ length: 20 }, (_, i) => i + 1));
  });

  test('B061: 30 x create and delete of one id', async () => {
    for (let i = 0; i < 30; i++) {
      assert.equal((await post(s, '/api/session/create', { id: 'b061' })).status, 200);
      assert.equal((await post(s, '/api/session/delete', { sessionId: 'b061' })).status, 200);
    }
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

  test('B082, encodings: base64 is exact, text that is not UTF-8 is flagged', async () => {
    const cmd = "printf '\\xff\\x00\\xfe'";
    const t = (await X(cmd)).body;
    assert.equal(t.lossy, true);
    assert.match(t.stdout, /\ufffd/);
    const b = (await X(cmd, { encoding: 'base64' })).body;
    assert.equal(b.stdout, Buffer.from([0xff, 0, 0xfe]).toString('base64'));
  });

  test('B109, B110: output over the limit: what fits, flags and counts; the rest by offset', async () => {
    const r = (await X('seq 1 100000', { maxOutputBytes: 1000, executionId: 'b109' })).body;
    assert.deepEqual([r.exitCode, r.stdoutTruncated, r.stdoutBytes, r.stdout.length], [0, true, 588895, 1000]);
    assert.ok(r.stdout.startsWith('1\n2\n'));
    const rest = (await get(s, '/api/execution/b109/logs?stream=stdout&from=1000&limit=10000000')).body;
    assert.deepEqual([rest.data.length, rest.next, rest.total, rest.dropped], [587895, 588895, 588895, 0]);
  });

  test('process logs by offset (B031)', async () => {
    await post(s, '/api/process/start', { command: 'printf 0123456789', processId: 'off', sessionId: OFF });
    await until(async () => (await get(s, '/api/process/off')).body.process.status === 'completed', 'the end');
    const l = (await get(s, '/api/process/off/logs?stream=stdout&from=3&limit=4')).body;
    assert.deepEqual([l.data, l.from, l.next, l.total, l.dropped, l.ended], ['3456', 3, 7, 10, 0, true]);
    const beyond = (await get(s, '/api/process/off/logs?stream=stdout&from=110')).body;
    assert.deepEqual([beyond.data, beyond.total], ['', 10]);
    for (const bad of ['-1', 'x', '']) assert.equal((await get(s, `/api/process/off/logs?stream=stdout&from=${bad}`)).status, 400, bad);
    const ev = [];
    for await (const e of sse(await fetch(s.base + '/api/process/off/stream?from=4'))) ev.push(e);
    const o = ev.find(e => e.data.type === 'stdout');
    assert.deepEqual([o.data.data, o.data.offset, o.id], ['456789', 4, '10-4']);
  });

  test('respond-async and detachAfterMs hand out the execution', async () => {
    const r = await post(s, '/api/execute', { command: 'sleep 0.2; echo later', sessionId: OFF, executionId: 'async-1' }, { Prefer: 'respond-async' });
    assert.deepEqual([r.status, r.body.executionId, r.headers.get('location')], [202, 'async-1', '/api/execution/async-1']);
    assert.equal((await get(s, '/api/execution/async-1?waitMs=20000')).body.stdout, 'later\n');
    const d = (await X('sleep 0.5; echo end', { detachAfterMs: 50 })).body;
    assert.equal(d.detached, true);
    assert.equal((await get(s, `/api/execution/${d.executionId}?waitMs=20000`)).body.stdout, 'end\n');
  });

  test('wait for exit and for a log line (B048)', async () => {
    await post(s, '/api/process/start', { command: 'sleep 0.2; printf "rea"; sleep 0.1; echo "dy now"; sleep 1000', processId: 'w', sessionId: OFF });
    const w = (await get(s, '/api/process/w/wait?for=log&pattern=ready&timeoutMs=20000')).body;
    assert.deepEqual([w.stream, w.line], ['stdout', 'ready now']);
    const late = await get(s, '/api/process/w/wait?for=exit&timeoutMs=100');
    assert.deepEqual([late.status, late.body.code], [408, 'PROCESS_READY_TIMEOUT']);
    await del(s, '/api/process/w');
    const early = await get(s, '/api/process/w/wait?for=log&pattern=never&timeoutMs=20000');
    assert.deepEqual([early.status, early.body.code], [500, 'PROCESS_EXITED_BEFORE_READY']);
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

  test('B113: many slow calls at once do not starve a short one', async () => {
    const slow = Array.from({ length: 100 }, () => X('sleep 1'));
    assert.equal((await X('echo short')).body.stdout, 'short\n');
    for (const r of slow) assert.equal((await r).body.exitCode, 0);
  });

  test('a client that goes away ends its buffered command', async () => {
    const ac = new AbortController();
    const call = fetch(s.base + '/api/execute', { method: 'POST', body: JSON.stringify({ command: 'echo $$; sleep 1000', sessionId: OFF, executionId: 'left', onDisconnect: 'kill' }), signal: ac.signal }).catch(() => {});
    const pid = await until(async () => Number((await get(s, '/api/execution/left/logs?stream=stdout&from=0')).body.data), 'the pid');
    ac.abort();
    await call;
    await gone(pid);
  });
});

describe('a default timeout', () => {
  let s;
  before(async () => { s = await start({ args: ['--command-timeout', '300'] }); });
  after(() => s.stop());

  test('B046: it is for calls that somebody waits for, never for what runs in the background', async () => {
    for (const sessionId of [OFF, 'b046']) {
      const id = 'b046-' + sessionId;
      await post(s, '/api/process/start', { command: 'exec sleep 1000', processId: id, sessionId });
      const stream = await fetch(s.base + '/api/execute/stream', { method: 'POST', body: JSON.stringify({ command: 'read x; sleep 0.5; echo lasts', sessionId }) });
      const call = await post(s, '/api/execute', { command: 'sleep 1000', sessionId });
      assert.equal((sessionId === OFF ? call.body : call.body.context).timedOut, true);
      const out = [];
      for await (const e of sse(stream)) if (e.data.type === 'stdout') out.push(e.data.data);
      assert.equal(out.join(''), 'lasts\n');
      assert.equal((await get(s, '/api/process/' + id)).body.process.status, 'running');
      assert.equal((await del(s, '/api/process/' + id)).status, 200);
    }
  });
});
