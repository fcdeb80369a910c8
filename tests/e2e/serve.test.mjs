// The program as a container's first process: start-up, signals, CMD, restart of a killed server.
import { test, describe } from 'node:test';
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { connect } from './lib/mux.mjs';
import { BIN, del, get, post, serverPid, sse, start, until } from './lib/server.mjs';

const run = promisify(execFile);
const OFF = '__DISABLE_SESSION__';
const alive = pid => { try { process.kill(pid, 0); return true; } catch { return false; } };

test('--help, --version, and clear refusals', async () => {
  assert.match((await run(BIN, ['--version'])).stdout, /^conflux \d+\.\d+\.\d+\n$/);
  assert.match((await run(BIN, ['--help'])).stdout, /serve/);
  const help = (await run(BIN, ['serve', '--help'])).stdout;
  for (const o of ['--host', '--port', '--state', '--workspace', '--token-file', '--token-fd', '--insecure', '--file-root', '--child-user', '--allow-origin', '--log-level', '--log-format', '--config'])
    assert.match(help, new RegExp(o));
  for (const [args, what] of [[['serve', '--prot', '1'], /--prot/], [['frobnicate'], /frobnicate/], [['serve', '--port', 'x'], /port/]])
    await assert.rejects(run(BIN, args), e => { assert.notEqual(e.code, 0); assert.match(e.stderr, what); return true; });
});

test('start-up prints one line that says where it listens', async () => {
  const s = await start();
  try { assert.match(s.stdout, /^conflux: listening on http:\/\/127\.0\.0\.1:\d+\n$/); } finally { await s.stop(); }
});

const nofile = n => ['sh', '-c', `ulimit -n ${n}; exec "$@"`, 'sh'];

test('a limit of open files that is too low ends the start with the one that is needed', async () => {
  const s = await start({ prefix: nofile(63) });
  assert.equal((await s.exit).code, 1);
  assert.match(s.stderr, /open files is 63, at least 64 are needed.*ulimit/);
  assert.equal(s.stderr.trim().split('\n').length, 1, s.stderr);
  await rm(s.dir, { recursive: true, force: true });
});

test('descriptors that run out: starts and connections are refused, health answers, and room comes back', async () => {
  const s = await start({ prefix: nofile(272), args: ['--http-workers', '8'] });
  const held = [];
  try {
    const X = sessionId => post(s, '/api/execute', { command: 'echo on', sessionId });
    const many = async one => { // until it is refused
      for (let i = 0; i < 300; i++) {
        const r = await one(i);
        if (r.status === 200) continue;
        assert.deepEqual([r.status, r.body.code], [429, 'LIMIT_EXCEEDED'], JSON.stringify(r.body));
        assert.match(r.body.message, /descriptors.*272/);
        return i;
      }
      assert.fail('never refused');
    };
    const n = await many(i => X(`fd${i}`));
    assert.ok(n >= 2);
    await many(i => post(s, '/api/session/create', { id: `created${i}` }));
    await many(i => post(s, '/api/process/start', { command: 'sleep 1000', processId: `p${i}`, sessionId: OFF }));
    let full;
    while (!full && held.length < 300) await connect(s).then(m => held.push(m), e => { full = e.status; });
    assert.equal(full, 429);
    assert.ok(held.length > 0, 'a connection is taken where nothing can be started');
    assert.equal((await get(s, '/healthz')).status, 200);
    const one = await held[0].post('/api/session/delete', { sessionId: 'fd0' });
    assert.equal(one.status, 200, JSON.stringify(one));
    for (const m of held.splice(0)) await m.close();
    for (let i = 1; i < n; i++) await post(s, '/api/session/delete', { sessionId: `fd${i}` });
    await until(async () => (await X('again')).status === 200, 'room for another');
  } finally { for (const m of held) await m.close(); await s.stop(); }
});

// All are admitted before the first has opened anything.
for (const [what, limit, one] of [
  ['starts', 64, (m, i) => m.post('/api/process/start', { command: 'sleep 1000', processId: `p${i}`, sessionId: OFF })],
  ['commands of new sessions', 272, (m, i) => m.post('/api/execute', { command: 'echo on', sessionId: `s${i}` })],
  ['watchers', 64, (m, i) => m.post('/api/watch/check', { path: '.', exclude: [`x${i}`] })],
]) test(`many ${what} at once leave what a client needs to be heard, and to end something`, async () => {
  const s = await start({ prefix: nofile(limit), args: ['--http-workers', '4'] });
  let other;
  const m = await connect(s);
  try {
    assert.equal((await post(s, '/api/process/start', { command: 'sleep 1000', processId: 'first', sessionId: OFF })).status, 200);
    const all = await Promise.all(Array.from({ length: 200 }, (_, i) => one(m, i)));
    assert.ok(all.some(r => r.status === 429));
    for (const r of all) if (r.status !== 200) assert.deepEqual([r.status, r.body.code], [429, 'LIMIT_EXCEEDED'], JSON.stringify(r.body));
    other = await connect(s);
    const open = (await readdir(`/proc/${await serverPid(s)}/fd`)).length;
    assert.ok(open <= limit - 8 - Math.trunc(limit / 8), `${open} are open`);
    const r = await del(s, '/api/process/first');
    assert.equal(r.status, 200, JSON.stringify(r.body));
  } finally { await m.close(); await other?.close(); await s.stop(); }
});

test('a port that is taken ends the start with its name', async () => {
  const holder = net.createServer().listen(0, '127.0.0.1');
  await new Promise(r => holder.once('listening', r));
  const port = holder.address().port;
  const s = await start({ port });
  assert.equal((await s.exit).code, 1);
  assert.match(s.stderr, new RegExp(`${port}`));
  holder.close();
  await rm(s.dir, { recursive: true, force: true });
});

test('a second program on the same state folder is refused', async () => {
  const s = await start();
  try {
    const t = await start({ dir: s.dir });
    assert.notEqual((await t.exit).code, 0);
    assert.match(t.stderr, /another conflux/);
  } finally { await s.stop(); }
});

test('the port can be bound again at once, many times', async () => {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-bind-'));
  let port = 0;
  for (let i = 0; i < 10; i++) {
    const s = await start({ dir, port });
    assert.ok(s.base, s.stderr);
    port = Number(s.port);
    assert.equal((await get(s, '/api/ping')).status, 200);
    await s.stop();
  }
  await rm(dir, { recursive: true });
});

describe('serve -- CMD', () => {
  test('a CMD that fails ends the program with its code', async () => {
    const s = await start({ command: ['sh', '-c', 'exit 7'] });
    assert.equal((await s.exit).code, 7);
    await s.stop();
  });
  test('a CMD that ends with 0 leaves the server', async () => {
    const s = await start({ command: ['sh', '-c', 'echo from-cmd'] });
    try {
      await until(() => /from-cmd/.test(s.stdout), 'the output of CMD');
      assert.equal((await get(s, '/api/ping')).status, 200);
    } finally { await s.stop(); }
  });
  test('signals are forwarded; TERM ends all, children included, with 0', async () => {
    const s = await start({ command: ['sh', '-c', 'trap "echo got-usr1" USR1; trap "echo got-term; exit 0" TERM; echo up; while :; do sleep 0.05; done'] });
    await until(() => /up/.test(s.stdout), 'CMD to be up');
    s.child.kill('SIGUSR1');
    await until(() => /got-usr1/.test(s.stdout), 'USR1 to arrive');
    const p = await post(s, '/api/process/start', { command: 'sleep 1000', sessionId: OFF });
    s.child.kill('SIGTERM');
    assert.equal((await s.exit).code, 0);
    assert.match(s.stdout, /got-term/);
    assert.equal(alive(p.body.pid), false);
    await s.stop();
  });
  test('a CMD that cannot be run: 127', async () => {
    const s = await start({ command: ['/no/such/program'] });
    assert.equal((await s.exit).code, 127);
    assert.match(s.stderr, /\/no\/such\/program/);
    await s.stop();
  });
});

test('TERM lets the last replies arrive, whole, buffered and streamed', async () => {
  const s = await start();
  const up = path.join(s.workspace, 'up');
  const trapped = n => `trap 'head -c 3000000 /dev/zero | tr "\\0" x; exit 9' TERM; touch ${up}${n}; while :; do sleep 0.02; done`;
  const body = n => JSON.stringify({ command: trapped(n), sessionId: OFF });
  const buffered = post(s, '/api/execute', { command: trapped(1), sessionId: OFF });
  const events = (async () => {
    const all = [];
    for await (const e of sse(await fetch(s.base + '/api/execute/stream', { method: 'POST', body: body(2) }))) all.push(e.data);
    return all;
  })();
  for (const n of [1, 2]) await until(() => readFile(up + n).catch(() => null), `command ${n} to be up`);
  s.child.kill('SIGTERM');
  const { body: reply } = await buffered;
  assert.deepEqual([reply.exitCode, reply.stdout.length], [9, 3000000]);
  const all = await events;
  assert.equal(all.filter(e => e.type === 'stdout').map(e => e.data).join('').length, 3000000);
  assert.deepEqual([all.at(-1).type, all.at(-1).exitCode], ['complete', 9]);
  assert.equal((await s.exit).code, 0);
  await s.stop();
});

test('HUP tells the requests under way that they are interrupted', async () => {
  const s = await start();
  try {
    const up = path.join(s.workspace, 'up');
    const before = await serverPid(s);
    const waits = post(s, '/api/execute', { command: `touch ${up}; sleep 1000`, sessionId: OFF });
    await until(() => readFile(up).catch(() => null), 'the command to be up');
    s.child.kill('SIGHUP');
    assert.equal((await waits).body.code, 'OPERATION_INTERRUPTED');
    await until(async () => { const pid = await serverPid(s); return pid && pid !== before && get(s, '/api/ping').catch(() => null); }, 'the new server');
  } finally { await s.stop(); }
});

describe('kill -9 of the server', () => {
  test('a background process lives on, is listed, all its output and its exit code arrive', async () => {
    const s = await start();
    try {
      const started = await post(s, '/api/process/start', { command: 'for i in $(seq 1 400); do echo line $i; echo err $i >&2; [ $((i % 4)) != 0 ] || sleep 0.06; done; exit 5', processId: 'bg' });
      assert.equal(started.status, 200);
      const streamed = await post(s, '/api/process/start', { command: 'echo only; exit 3', processId: 'ended', sessionId: OFF });
      assert.equal(streamed.status, 200);
      await until(async () => (await get(s, '/api/process/ended')).body.process.status === 'failed', 'the short one to end');
      await until(async () => /line 20\n/.test((await get(s, '/api/process/bg/logs')).body.stdout), 'some output');
      const before = await serverPid(s);
      process.kill(before, 'SIGKILL');
      const list = await until(async () => get(s, '/api/process/list').catch(() => null), 'an answer after the restart');
      assert.notEqual(await serverPid(s), before);
      const bg = list.body.processes.find(p => p.id === 'bg');
      assert.equal(bg.pid, started.body.pid);
      assert.equal(bg.status, 'running');
      assert.ok(alive(bg.pid));
      await until(async () => (await get(s, '/api/process/bg')).body.process.status !== 'running', 'the process to end');
      const p = (await get(s, '/api/process/bg')).body.process;
      assert.deepEqual([p.status, p.exitCode], ['failed', 5]);
      const logs = (await get(s, '/api/process/bg/logs')).body;
      const want = w => Array.from({ length: 400 }, (_, i) => `${w} ${i + 1}\n`).join('');
      assert.equal(logs.stdout, want('line'));
      assert.equal(logs.stderr, want('err'));
      const old = (await get(s, '/api/process/ended')).body.process;
      assert.deepEqual([old.status, old.exitCode], ['failed', 3]);
      assert.equal((await get(s, '/api/process/ended/logs')).body.stdout, 'only\n');
    } finally { await s.stop(); }
  });

  test('a process that ends while there is no server keeps its true exit code; new work is served', async () => {
    const s = await start();
    try {
      await post(s, '/api/process/start', { command: 'read line; exit 42', processId: 'waits', stdin: 'open', sessionId: OFF });
      const p = (await get(s, '/api/process/waits')).body.process;
      process.kill(await serverPid(s), 'SIGKILL');
      process.kill(p.pid, 'SIGTERM');
      await until(async () => get(s, '/api/ping').catch(() => null), 'an answer');
      await until(async () => (await get(s, '/api/process/waits')).body.process.status !== 'running', 'the end');
      const q = (await get(s, '/api/process/waits')).body.process;
      assert.equal(q.exitCode, 143);
      assert.equal((await post(s, '/api/execute', { command: 'echo again' })).body.stdout, 'again');
      const ev = [];
      for await (const e of sse(await fetch(s.base + '/api/execute/stream', { method: 'POST', body: JSON.stringify({ command: 'echo x' }) }))) ev.push(e.data.type);
      assert.deepEqual(ev, ['start', 'stdout', 'complete']);
    } finally { await s.stop(); }
  });

  test('a process of a session that is killed afterwards takes neither the session nor its other processes along', async () => {
    const s = await start();
    try {
      const X = async command => (await post(s, '/api/execute', { command, sessionId: 'kept' })).body.stdout;
      const shell = await X('known=1; echo $$');
      for (const processId of ['dies', 'lives']) await post(s, '/api/process/start', { command: 'sleep 1000; true', processId, sessionId: 'kept' });
      process.kill(await serverPid(s), 'SIGKILL');
      await until(async () => get(s, '/api/ping').catch(() => null), 'an answer');
      assert.deepEqual((await del(s, '/api/process/dies')).body.survivors, []);
      assert.equal((await get(s, '/api/process/lives')).body.process.status, 'running');
      assert.equal(await X('echo $$ $known'), `${shell} 1`);
    } finally { await s.stop(); }
  });

  test('SIGHUP starts the server anew and keeps what runs', async () => {
    const s = await start();
    try {
      const p = (await post(s, '/api/process/start', { command: 'sleep 1000', processId: 'stays' })).body;
      const before = await serverPid(s);
      s.child.kill('SIGHUP');
      await until(async () => { const pid = await serverPid(s); return pid && pid !== before && get(s, '/api/ping').catch(() => null); }, 'the new server');
      assert.equal((await get(s, '/api/process/stays')).body.process.pid, p.pid);
      assert.ok(alive(p.pid));
    } finally { await s.stop(); }
  });
});

test('no zombie is left: orphans are adopted and reaped', async () => {
  const s = await start();
  try {
    for (let i = 0; i < 20; i++) await post(s, '/api/execute', { command: '(setsid sh -c "sleep 0.01; exit 3" &) ; true', sessionId: OFF });
    await until(async () => {
      const { stdout } = await run('ps', ['--ppid', String(s.child.pid), '-o', 'stat=']);
      return !/Z/.test(stdout);
    }, 'all orphans to be reaped');
  } finally { await s.stop(); }
});
