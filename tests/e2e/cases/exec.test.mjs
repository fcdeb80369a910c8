// Field cases, group "Exec": buffered and one-shot execution, the same over HTTP and over the WebSocket.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import net from 'node:net';
import { OFF, alive, full, group, openDoor, own, times } from '../lib/door.mjs';
import { afterTimeout, few, serverPid, until } from '../lib/server.mjs';

const sha = s => createHash('sha256').update(s).digest('hex');
const seq = n => times(n, i => i + 1 + '\n').join('');
const noExit = r => { assert.ok(r.status >= 400, JSON.stringify(r)); assert.equal(r.body.exitCode, undefined); assert.equal(r.body.context?.exitCode, undefined); };

group('exec', {}, ({ both, plain }) => {
  both('B001', 'short commands always bring their output', async d => {
    for (let left = full(5000, few(640, 160)); left > 0; left -= 16) {
      const all = await Promise.all(times(16, i => d.exec('echo hello', { sessionId: i % 4 ? OFF : 'b001-' + i })));
      all.forEach((r, i) => assert.deepEqual([r.body.exitCode, r.body.stdout], [0, i % 4 ? 'hello\n' : 'hello']));
    }
  });

  both('B001', 'two full streams are exact', async d => {
    const want = [sha(seq(200000)), sha(seq(50000))], command = 'seq 1 200000 ; seq 1 50000 >&2';
    for (let i = 0; i < full(300, 4); i++) {
      const r = (await d.exec(command)).body;
      assert.deepEqual([sha(r.stdout), sha(r.stderr), r.exitCode], [...want, 0]);
    }
    for (const sessionId of [OFF, 'b001']) {
      const st = d.execStream(command, { sessionId });
      await st.done;
      assert.deepEqual([sha(st.text()), sha(st.text('stderr')), st.last().exitCode], [...want, 0]);
    }
  });

  both('B003', 'a background descendant that holds stdout does not hold the end; it lives on', async d => {
    for (const sessionId of [OFF, 'b003']) {
      const r = (await d.exec('sleep 1000 & echo $!', { sessionId })).body;
      assert.deepEqual([r.exitCode, r.outcome], [0, 'exited']);
      const pids = [Number(r.stdout)];
      const st = d.execStream('sleep 1000 & echo $!', { sessionId });
      await st.done;
      assert.deepEqual([st.last().type, st.last().exitCode], ['complete', 0]);
      pids.push(Number(st.text()));
      const id = 'b003-' + d.name + sessionId;
      await d.startProcess(id, 'sleep 1000 & echo $!', { sessionId });
      assert.equal((await d.wait(id)).body.process.exitCode, 0);
      pids.push(Number((await d.get(`/api/process/${id}/logs`)).body.stdout));
      for (const pid of pids) { assert.ok(pid > 1 && alive(pid)); process.kill(pid, 'SIGKILL'); }
    }
  });

  both('B005', 'work in the background delays neither commands nor listings', async d => {
    const sessionId = 'b005-' + d.name;
    await d.startProcess(sessionId, 'sleep 1000', { sessionId });
    const st = d.execStream('sleep 1000', { sessionId, onCancel: 'kill' });
    await st.opened;
    assert.equal((await d.exec('sleep 1000 & echo hi', { sessionId })).body.stdout, 'hi');
    assert.equal((await d.exec('echo again', { sessionId })).body.stdout, 'again');
    assert.equal((await d.post('/api/list-files', { path: '/', sessionId })).status, 200);
    assert.equal((await d.process(sessionId)).status, 'running');
    assert.equal((await d.post('/api/session/delete', { sessionId })).status, 200);
  });

  both('B006', 'a missing program: 127 in a shell, a typed error with errno in argv form', async d => {
    for (const sessionId of [OFF, 'b006']) {
      const r = (await d.exec('nosuchcmd', { sessionId })).body;
      assert.deepEqual([r.exitCode, r.success], [127, false]);
      assert.match(r.stderr, /nosuchcmd.*not found/);
    }
    for (const [program, code, errno] of [['nosuchcmd', 'COMMAND_NOT_FOUND', 'ENOENT'], ['/etc/passwd', 'COMMAND_PERMISSION_DENIED', 'EACCES']]) {
      const a = await d.post('/api/execute', { args: [program] });
      assert.deepEqual([a.body.code, a.body.context.errno], [code, errno]);
      noExit(a);
    }
  });

  both('B009', 'stdout, stderr and the code apart; a timeout keeps what was printed', async d => {
    for (const sessionId of [OFF, 'b009']) {
      const r = (await d.exec('printf out; printf err >&2; (exit 7)', { sessionId })).body;
      assert.deepEqual([r.stdout, r.stderr, r.exitCode, r.timedOut], ['out', 'err', 7, false]);
    }
    const late = sessionId => afterTimeout((timeoutMs, mark) => d.exec(`printf partial; printf e >&2; ${mark}; sleep 1000`, { timeoutMs, sessionId }));
    const r = (await late(OFF)).body;
    assert.deepEqual([r.exitCode, r.timedOut, r.outcome, r.stdout], [124, true, 'timeout', 'partial']);
    assert.match(r.stderr, /^e/);
    const t = await late('b009');
    const c = t.body.context;
    assert.deepEqual([t.status, t.body.code, c.timedOut, c.stdout], [500, 'COMMAND_EXECUTION_ERROR', true, 'partial']);
    assert.match(c.stderr, /^e/); // bash adds that it has seen its child terminated
  });

  both('B010', 'an open stdin that nobody reads does not hold the end; the timeout ends one who reads', async d => {
    assert.equal((await d.exec('echo hello', { stdin: 'open' })).body.stdout, 'hello\n');
    assert.equal((await d.exec('echo hello', { stdin: 'open', sessionId: 'b010' })).body.stdout, 'hello');
    const st = d.execStream('echo hello', { stdin: 'open' });
    await st.done;
    assert.deepEqual([st.text(), st.last().exitCode], ['hello\n', 0]);
    assert.equal((await d.exec('cat', { stdin: 'open', timeoutMs: 300 })).body.timedOut, true);
    const cat = d.execStream('cat', { stdin: 'open', timeoutMs: 300 });
    await cat.done;
    assert.deepEqual([cat.last().type, cat.last().exitCode], ['complete', 124]);
  });

  plain('B012', '[ws] start, input and its end in one segment', async s => {
    const d = await openDoor('ws', s), { m } = d;
    for (let i = 0; i < full(500, few(60, 20)); i++) {
      m.ws._socket.cork();
      const r = m.post('/api/execute', { command: 'cat', stdin: 'open', sessionId: OFF }, { id: 'in' + i });
      m.send({ type: 'stdin', id: 'in' + i, data: 'payload ' + i });
      m.send({ type: 'stdin', id: 'in' + i, eof: true });
      m.ws._socket.uncork();
      assert.equal((await r).body.stdout, 'payload ' + i);
    }
    m.send({ type: 'stdin', id: 'in0', data: 'late' });
    assert.equal((await until(() => m.stray.find(x => x.id === 'in0'), 'the refusal of late input')).type, 'error');
    await d.close();
  });

  plain('B012', '[http] start, input and its end in one segment', async s => {
    for (let i = 0; i < full(500, few(60, 20)); i++) {
      const message = (p, body) => `POST ${p} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
      const k = net.connect(s.port, '127.0.0.1'), id = 'b012-' + i;
      let text = '';
      k.on('data', x => { text += x; });
      k.write(message('/api/process/start', JSON.stringify({ command: 'cat', stdin: 'open', processId: id, sessionId: OFF })) +
        message(`/api/process/${id}/stdin`, JSON.stringify({ data: 'payload ' + i })) + message(`/api/process/${id}/stdin`, '{"eof":true}'));
      await until(() => text.match(/HTTP\/1.1 \d+/g)?.length === 3, 'three answers');
      k.destroy();
      assert.doesNotMatch(text, /HTTP\/1.1 [^2]/, text);
      const get = async p => (await fetch(`${s.base}/api/process/${id}/${p}`)).json();
      assert.equal((await get('wait?timeoutMs=30000')).process.exitCode, 0);
      assert.equal((await get('logs')).stdout, 'payload ' + i);
    }
  });

  both('B012', 'input to what has ended, or was never there: a typed error', async d => {
    const id = 'b012-ended-' + d.name;
    await d.startProcess(id, 'true', { stdin: 'open' });
    await d.wait(id);
    const ended = await d.post(`/api/process/${id}/stdin`, { data: 'late' });
    noExit(ended);
    assert.ok(ended.body.code);
    const never = await d.post('/api/process/b012-never/stdin', { data: 'x' });
    assert.deepEqual([never.status, never.body.code], [404, 'PROCESS_NOT_FOUND']);
    assert.equal((await d.get('/api/ping')).status, 200);
  });

  both('B014', 'a script of 1 MiB, and as much in a file', async (d, s) => {
    const padding = 'p'.repeat(1 << 20), script = `# ${padding}\necho ok`;
    for (const sessionId of [OFF, 'b014']) assert.equal((await d.exec(script, { sessionId })).body.stdout.trim(), 'ok');
    const st = d.execStream(script);
    await st.done;
    assert.equal(st.text(), 'ok\n');
    await d.startProcess('b014-' + d.name, script);
    assert.equal((await d.wait('b014-' + d.name)).body.process.exitCode, 0);
    const f = `${s.workspace}/b014`;
    assert.equal((await d.post('/api/write', { path: f, content: padding })).status, 200);
    assert.equal(await readFile(f, 'utf8'), padding);
  });

  both('B016', 'a session whose shell is stopped: each command has its reply, and the session goes on', async d => {
    const S = (command, o) => d.exec(command, { sessionId: 'b016-' + d.name, ...o });
    const shell = async () => Number((await S('echo $$')).body.stdout);
    process.kill(await shell(), 'SIGSTOP'); // while it is idle
    const idle = await S('echo hello', { timeoutMs: 500 });
    assert.ok(idle.status === 200 ? idle.body.stdout === 'hello' : idle.body.context.timedOut, JSON.stringify(idle.body));
    const pid = await shell(), busy = S('sleep 1000', { timeoutMs: 1500 });
    await until(() => readFile(`/proc/${pid}/task/${pid}/children`, 'utf8'), 'its child');
    process.kill(pid, 'SIGSTOP'); // while it waits for that
    const queued = S('echo behind it', { timeoutMs: 30000 });
    const r = await busy;
    assert.deepEqual([r.status, r.body.code, r.body.context.timedOut], [500, 'COMMAND_EXECUTION_ERROR', true]);
    assert.deepEqual([(await queued).body.stdout, (await S('echo after')).body.stdout], ['behind it', 'after']);
  });

  both('B017', 'infrastructure errors have no exit code, exit codes are no errors', async d => {
    const ok = await d.exec('exit 1');
    assert.deepEqual([ok.status, ok.body.exitCode, ok.body.success, ok.body.code], [200, 1, false, undefined]);
    noExit(await d.exec('pwd', { cwd: '/no/such' }));
    noExit(await d.get('/api/execution/none'));
    noExit(await d.get('/api/process/none/wait'));
    noExit(await d.post('/api/session/delete', { sessionId: 'none' }));
    const st = d.execStream('echo $$; exec sleep 1000', { sessionId: 'b017-' + d.name });
    await st.until(e => e.type === 'stdout');
    await d.post('/api/session/delete', { sessionId: 'b017-' + d.name });
    await st.done;
    assert.deepEqual([st.last().type, 'exitCode' in st.last()], ['complete', false], 'a deleted session ends its streams without an exit code');
  });

  both('B020', 'an execution id is started at most once', async (d, s) => {
    const f = `${s.workspace}/once-${d.name}`, executionId = 'b020-' + d.name, command = `echo x >> ${f}; sleep 0.1; echo done`;
    const e = await d.another();
    const all = await Promise.all([d, d, e].map(x => x.exec(command, { executionId })));
    all.push(await e.exec(command, { executionId })); // long after
    for (const r of all) assert.deepEqual([r.status, r.body.stdout, r.body.executionId], [200, 'done\n', executionId]);
    assert.equal(await readFile(f, 'utf8'), 'x\n');
    const other = await d.exec('echo something else', { executionId });
    assert.deepEqual([other.status, other.body.code], [409, 'EXECUTION_CONFLICT']);
    assert.equal((await d.get('/api/execution/' + executionId)).body.stdout, 'done\n');
    await e.close();
  });

  both('B021', 'the exit code is an integer, 0 included, in every final answer', async d => {
    for (const sessionId of [OFF, 'b021']) {
      assert.strictEqual((await d.exec('true', { sessionId })).body.exitCode, 0);
      const st = d.execStream('true', { sessionId });
      await st.done;
      assert.deepEqual([st.last().type, st.last().exitCode], ['complete', 0]);
      const id = `b021-${d.name}-${sessionId}`;
      await d.startProcess(id, 'true', { sessionId });
      assert.strictEqual((await d.wait(id)).body.process.exitCode, 0);
      assert.strictEqual((await d.process(id)).exitCode, 0);
      const log = d.stream(`/api/process/${id}/stream`);
      await log.done;
      assert.deepEqual([log.last().type, log.last().exitCode], ['exit', 0]);
    }
  });
});

const FILL = `
import os, signal, sys
try:
    while os.fork(): pass
    signal.pause()
except OSError:
    print('full', flush=True)
    sys.stdin.read()
`;
if (process.getuid() === 0) // the limit is not for root
  own('B016', 'a full table of processes: each request has one answer, and afterwards all is well', { user: 54321, prefix: ['prlimit', '--nproc=400:400'], env: { HOME: '/' } }, async d => {
    assert.equal((await d.exec('echo before')).body.stdout, 'before\n');
    await d.post('/api/process/start', { args: ['/usr/bin/env', 'python3', '-c', FILL], stdin: 'open', processId: 'filler', sessionId: OFF });
    assert.equal((await d.logged('filler', 'full')).status, 200);
    const all = await Promise.all([...times(20, i => d.post('/api/execute', { args: ['echo', String(i)], sessionId: OFF, timeoutMs: 20000 })),
      ...times(4, () => d.exec('sleep 0.01 & wait', { timeoutMs: 2000 })), ...times(4, i => d.exec('echo x', { sessionId: 'b016-' + i, timeoutMs: 2000 }))]);
    for (const r of all) assert.ok(r.status === 200 ? Number.isInteger(r.body.exitCode) : r.body.code && r.body.exitCode === undefined, JSON.stringify(r.body));
    assert.ok(all.some(r => r.status >= 400), 'the limit was met');
    assert.equal((await d.get('/api/ping')).status, 200);
    assert.equal((await d.del('/api/process/filler')).status, 200);
    const after = await until(async () => { const r = await d.exec('echo after'); return r.status === 200 && r.body; }, 'a command to run again');
    assert.equal(after.stdout, 'after\n');
  });

for (const how of ['the server is killed', 'the connection is cut'])
  own('B019', `${how} in the middle of a command: nobody is told an exit code`, {}, async (d, s) => {
    const victim = await d.another();
    const st = victim.execStream('echo up; exec sleep 1000');
    await st.sees('up');
    const call = victim.exec('echo up; sleep 1000', { executionId: 'b019' }).then(r => r, e => e);
    await until(async () => (await d.get('/api/execution/b019/logs?stream=stdout&from=0')).body.data === 'up\n', 'the command to be up');
    if (how.startsWith('the server')) process.kill(await serverPid(s), 'SIGKILL');
    else victim.cut();
    assert.ok(await call instanceof Error, 'a broken connection is an error');
    assert.equal((await st.done).lost, true, 'a broken stream does not look as if it had ended');
    assert.ok(!st.events.some(e => e.type === 'complete' || 'exitCode' in e));
    await victim.close();
  });
