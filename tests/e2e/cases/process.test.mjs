// Field cases, group "Process management".
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import net from 'node:net';
import { OFF, alive, full, gone, group, openDoor, own, plainOwn, times } from '../lib/door.mjs';
import { descriptors } from '../../fault/lib/proc.mjs';
import { afterTimeout, get, serverPid, start, until } from '../lib/server.mjs';

const freePort = () => new Promise(resolve => { const k = net.createServer().listen(0, '127.0.0.1', () => { const { port } = k.address(); k.close(() => resolve(port)); }); });
// What binds after a while, as servers do.
const binder = (port, delay) => `exec python3 -c 'import socket,time; time.sleep(${delay}); s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", ${port})); s.listen(); print("bound", flush=True); time.sleep(1000)'`;

group('process', {}, ({ both, plain }) => {
  both('B038', 'kill reaches what left the group and the session', async d => {
    for (const sessionId of [OFF, 'b038-' + d.name]) {
      const id = `b038-${d.name}-${sessionId}`;
      await d.startProcess(id, 'setsid sleep 1000 & echo $!; setsid sh -c "setsid sleep 1000 & echo \\$!; wait" & wait; sleep 1000', { sessionId });
      const pids = await until(async () => { const l = (await d.get(`/api/process/${id}/logs`)).body.stdout.trim().split('\n'); return l.length === 2 && l.map(Number); }, 'two pids');
      const k = await d.del('/api/process/' + id);
      assert.deepEqual([k.status, k.body.survivors], [200, []]);
      for (const pid of pids) { assert.ok(pid > 1 && k.body.killed.includes(pid)); await gone(pid); }
    }
  });

  both('B039', 'what ignores TERM is killed after the grace, at a timeout as well', async d => {
    const deaf = 'trap "" TERM; echo up; while :; do sleep 0.05; done', id = 'b039-' + d.name;
    await d.startProcess(id, deaf);
    await d.logged(id, 'up');
    assert.equal((await d.del(`/api/process/${id}?graceMs=200`)).status, 200);
    const p = await d.process(id);
    assert.deepEqual([p.status, p.signal], ['killed', 'SIGKILL']);
    const r = (await afterTimeout((timeoutMs, mark) => d.exec(deaf.replace('up;', `up; ${mark};`), { timeoutMs }))).body;
    assert.deepEqual([r.timedOut, r.exitCode, r.outcome, r.stdout], [true, 124, 'timeout', 'up\n']);
  });

  both('B040', 'closing the connection: a command runs on, with onDisconnect "kill" its tree ends', async d => {
    for (const onDisconnect of [undefined, 'kill']) for (const how of ['execute', 'stream']) {
      const c = await d.another(), executionId = `b040-${d.name}-${how}-${onDisconnect}`, command = 'setsid sleep 1000 & echo $!; sleep 1000';
      const call = how === 'execute' ? c.exec(command, { executionId, onDisconnect }).catch(() => {}) : c.execStream(command, { executionId, onDisconnect }).done;
      const pid = await until(async () => Number((await d.get(`/api/execution/${executionId}/logs?stream=stdout&from=0`)).body.data), 'the pid');
      c.cut();
      await call;
      if (onDisconnect) {
        await gone(pid);
        const r = (await d.get(`/api/execution/${executionId}?waitMs=30000`)).body;
        assert.equal(r.outcome ?? r.context.outcome, 'cancelled', JSON.stringify(r));
      } else {
        assert.equal((await d.get('/api/execution/' + executionId)).status, 202);
        assert.ok(alive(pid));
        process.kill(pid, 'SIGKILL');
      }
      await c.close();
    }
  });

  // script(1) brings the terminals, as long as the server has none of its own.
  both('B041', 'shells on 50 terminals whose clients vanish: none stays, nor its terminal', async (d, s) => {
    const doors = await Promise.all(times(5, () => d.another()));
    const command = `exec script -qfc 'echo up $PPID $$ end; exec bash --norc' /dev/null`;
    const shells = doors.flatMap(e => times(10, () => e.execStream(command, { stdin: 'open', onDisconnect: 'kill' })));
    const pids = [];
    for (const st of shells) {
      await st.sees(' end');
      pids.push(.../up (\d+) (\d+) end/.exec(st.text()).slice(1).map(Number));
    }
    assert.ok(new Set(pids).size === 100 && pids.every(alive));
    for (const e of doors) e.cut();
    for (const pid of pids) await gone(pid);
    for (const pid of [s.child.pid, await serverPid(s)]) assert.deepEqual((await descriptors(pid)).filter(f => /ptmx|pts/.test(f)), []);
    for (const e of doors) await e.close();
  });

  plain('B040', '[ws] cancel ends the tree of a command and says so; a stream is detached, or killed on request', async s => {
    const d = await openDoor('ws', s), { m } = d, command = 'setsid sleep 1000 & echo $!; sleep 1000';
    for (const sessionId of [OFF, 'b040']) {
      const id = 'cancel-' + sessionId;
      const r = m.post('/api/execute', { command, sessionId, executionId: id }, { id });
      const pid = await until(async () => Number((await d.get(`/api/execution/${id}/logs?stream=stdout&from=0`)).body.data), 'the pid');
      m.send({ type: 'cancel', id });
      const a = await r;
      assert.deepEqual([a.status, a.body.code], [499, 'CANCELLED'], JSON.stringify(a));
      await gone(pid);
    }
    for (const kill of [undefined, true]) {
      const st = d.execStream(command);
      await st.sees('\n');
      const pid = Number(st.text());
      st.cancel(kill);
      const end = await st.done;
      assert.equal(end.status, kill ? 499 : 200);
      if (kill) await gone(pid);
      else { assert.ok(alive(pid)); process.kill(pid, 'SIGKILL'); }
    }
    m.send({ type: 'cancel', id: 'nobody' });
    assert.equal((await d.get('/api/ping')).status, 200);
    await d.close();
  });

  both('B043', 'what cannot start has a record, with its errno', async d => {
    const id = 'b043-' + d.name;
    const r = await d.post('/api/process/start', { args: ['/nope'], processId: id, sessionId: OFF });
    assert.equal(r.body.processId, id);
    const p = await until(async () => { const q = await d.process(id); return q && q.status !== 'starting' && q; }, 'its status');
    assert.ok(['failed', 'error'].includes(p.status), p.status);
    assert.match(JSON.stringify(p), /ENOENT/);
    assert.ok((await d.get('/api/process/list')).body.processes.some(q => q.id === id));
    assert.ok((await d.wait(id)).status < 500);
  });

  both('B046', 'no hidden limit for what runs in the background', async d => {
    const id = 'b046-' + d.name, seconds = full(90, 1);
    await d.startProcess(id, `sleep ${seconds}; echo lived; exec sleep 1000`);
    await until(async () => (await d.get(`/api/process/${id}/logs`)).body.stdout === 'lived\n', 'it to outlive its time', 120000);
    const p = await d.process(id);
    assert.deepEqual([p.status, p.timeoutMs ?? null], ['running', null]);
    assert.equal((await d.del('/api/process/' + id)).status, 200);
  });

  both('B048', 'wait for a port, a line, the end; what ends first fails the wait with its code', async d => {
    const id = 'b048-' + d.name, port = await freePort();
    await d.startProcess(id, binder(port, full(2, 0.2)));
    const w = await d.wait(id, `&for=port&port=${port}`);
    assert.deepEqual([w.status, w.body.process?.id], [200, id], JSON.stringify(w.body));
    await new Promise((resolve, reject) => net.connect(port, '127.0.0.1', resolve).on('error', reject));
    assert.equal((await d.logged(id, 'bou')).body.line, 'bound');
    const late = await d.get(`/api/process/${id}/wait?for=exit&timeoutMs=100`);
    assert.deepEqual([late.status, late.body.code], [408, 'PROCESS_READY_TIMEOUT']);
    await d.del('/api/process/' + id);
    const dies = id + '-dies';
    await d.startProcess(dies, 'sleep 0.2; echo could not bind >&2; exit 5');
    for (const what of [`&for=port&port=${await freePort()}`, '&for=log&pattern=never']) {
      const early = await d.wait(dies, what);
      assert.deepEqual([early.status, early.body.code, early.body.context.exitCode], [500, 'PROCESS_EXITED_BEFORE_READY', 5]);
      assert.match(JSON.stringify(early.body), /could not bind/);
    }
    await d.startProcess(id + '-parts', 'printf "rea"; sleep 0.1; echo "dy now"; sleep 1000');
    assert.deepEqual([(await d.logged(id + '-parts', 'ready')).body.line], ['ready now'], 'matched across pieces');
    await d.del(`/api/process/${id}-parts`);
  });

  both('B049', 'a kill after the end says so, and touches nobody who got the pid since', async d => {
    const id = 'b049-' + d.name;
    const { pid } = (await d.startProcess(id, 'exit 0')).body;
    await d.wait(id);
    const innocent = await reuse(pid);
    assert.deepEqual([(await d.del('/api/process/' + id)).status, (await d.del('/api/process/' + id)).body.code], [404, 'COMMAND_NOT_FOUND']);
    assert.ok((await d.post(`/api/process/${id}/signal`, { signal: 'KILL', tree: true })).status >= 400);
    if (innocent) {
      assert.ok(innocent.exitCode === null && alive(pid));
      innocent.kill('SIGKILL');
    }
  });

  both('B050', 'killed, ended by a signal, and exit 143 are told apart', async d => {
    const id = n => `b050-${d.name}-${n}`;
    await d.startProcess(id('exit'), 'exit 143');
    await d.startProcess(id('killed'), 'exec sleep 1000');
    await d.startProcess(id('signal'), 'kill -SEGV $$');
    assert.equal((await d.del('/api/process/' + id('killed'))).status, 200);
    const of = async n => { const { process: p } = (await d.wait(id(n))).body; return [p.status, p.exitCode, p.outcome, p.signal ?? null]; };
    assert.deepEqual(await of('exit'), ['failed', 143, 'exited', null]);
    assert.deepEqual(await of('killed'), ['killed', 143, 'signal', 'SIGTERM']);
    assert.deepEqual(await of('signal'), ['failed', 139, 'signal', 'SIGSEGV']);
    const r = (await d.exec('kill -9 $$')).body;
    assert.deepEqual([r.exitCode, r.outcome, r.signal], [137, 'signal', 'SIGKILL']);
  });

  both('B052', 'after a stop the port is free', async d => {
    const port = await freePort();
    for (let i = 0; i < full(20, 4); i++) {
      const id = `b052-${d.name}-${i}`;
      await d.startProcess(id, binder(port, 0));
      const w = await d.logged(id, 'bound');
      assert.equal(w.status, 200, JSON.stringify(w.body));
      assert.equal((await d.del('/api/process/' + id)).status, 200);
    }
  });
});

own('B046', 'the default timeout is for calls that somebody waits for, never for what runs in the background', { args: ['--command-timeout', '300'] }, async d => {
  for (const sessionId of [OFF, 'b046']) {
    const id = 'b046-' + sessionId;
    await d.startProcess(id, 'exec sleep 1000', { sessionId });
    const st = d.execStream('sleep 0.8; echo lasts', { sessionId });
    const call = await d.exec('sleep 1000', { sessionId });
    assert.equal((sessionId === OFF ? call.body : call.body.context).timedOut, true);
    await st.done;
    assert.equal(st.text(), 'lasts\n');
    assert.equal((await d.process(id)).status, 'running');
    assert.equal((await d.del('/api/process/' + id)).status, 200);
  }
});

own('B051', 'TERM of the server: children get theirs, and the time to do what their trap does', {}, async (d, s) => {
  const mark = s.workspace + '/trapped';
  await d.startProcess('b051', `trap 'echo done > ${mark}; exit 0' TERM; echo up; while :; do sleep 0.05; done`);
  await d.logged('b051', 'up');
  const { pid } = await d.process('b051');
  s.child.kill('SIGTERM');
  assert.equal((await s.exit).code, 0);
  assert.equal(await readFile(mark, 'utf8'), 'done\n');
  assert.ok(!alive(pid));
});

// A program that has this pid, if the kernel lets us choose: null otherwise.
async function reuse(pid) {
  for (let i = 0; i < 20; i++) {
    if (!await writeFile('/proc/sys/kernel/ns_last_pid', String(pid - 1)).then(() => true, () => false)) return null;
    const p = spawn('sleep', ['1000'], { stdio: 'ignore' });
    if (p.pid === pid) return p;
    p.kill('SIGKILL');
  }
  return null;
}

plainOwn('B049', 'after the keeper was killed: the next start reports its processes as lost and spares who has the pid now', {}, async s => {
  const body = JSON.stringify({ command: 'exec sleep 1000', processId: 'b049', sessionId: OFF });
  const { pid } = await (await fetch(s.base + '/api/process/start', { method: 'POST', body })).json();
  s.child.kill('SIGKILL');
  await until(() => !alive(pid), 'the process to die with its keeper');
  const innocent = await reuse(pid);
  const t = await start({ dir: s.dir });
  try {
    const p = (await get(t, '/api/process/b049')).body.process;
    assert.notEqual(p.status, 'running');
    assert.equal(p.outcome, 'lost');
    assert.ok((await (await fetch(t.base + '/api/process/b049', { method: 'DELETE' })).json()).code);
    if (innocent) assert.ok(innocent.exitCode === null && innocent.signalCode === null);
  } finally {
    innocent?.kill('SIGKILL');
    await t.stop();
  }
});
