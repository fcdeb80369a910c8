// The state folder: each file and folder of it damaged, removed, replaced, read-only, full.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, open, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { metric, nextServer, openDoor, own, times } from '../lib/door.mjs';
import { serverPid, start, takeAway, until } from '../lib/server.mjs';

const stateOf = s => path.join(s.dir, 'state');

// All of a file, from its first byte to its last, becomes junk; it keeps its size and its inode.
async function spoil(file) {
  const f = await open(file, 'r+').catch(() => null);
  if (!f) return;
  await f.write(Buffer.alloc((await stat(file)).size, 0x5a), 0);
  await f.close();
}
const spoilRegistry = async s => { for (const part of ['', '-wal', '-shm']) await spoil(path.join(stateOf(s), 'registry.db' + part)); };
const aside = async s => (await readdir(stateOf(s))).filter(n => /^registry\.db\.damaged-\d{4}-/.test(n));

own('X07', 'a registry that is damaged while it is used: what runs goes on, starts work, the next server knows all', {}, async (d, s) => {
  await d.startProcess('lasting', 'echo begun; read -r line; echo "got $line"; sleep 1000', { stdin: 'open' });
  await d.exec('X=kept; cd /usr', { sessionId: 'work' });
  const stream = d.execStream('echo one; read -r line; echo two', { stdin: 'open', executionId: 'stream' });
  await stream.sees('one');
  await spoilRegistry(s);
  assert.equal((await d.startProcess('later', 'sleep 1000')).status, 200);
  for (let i = 0; i < 200 && !(await metric(s, 'conflux_registry_renewed_total')); i++) await d.exec('true', { executionId: 'try' + i });
  await until(() => /registry\.damaged/.test(s.stderr), 'the line in the log');
  assert.ok((await aside(s)).length >= 1);
  assert.equal((await d.exec('echo $X; pwd', { sessionId: 'work' })).body.stdout, 'kept\n/usr');
  const next = await nextServer(s, d);
  const ids = (await next.get('/api/process/list')).body.processes.map(p => [p.id, p.status]);
  assert.deepEqual(new Map(ids).get('lasting'), 'running');
  assert.deepEqual(new Map(ids).get('later'), 'running');
  assert.equal((await next.post('/api/process/lasting/stdin', { data: 'x\n' })).status, 200);
  await next.logged('lasting', 'got x');
  assert.equal((await next.exec('echo $X; pwd', { sessionId: 'work' })).body.stdout, 'kept\n/usr');
  assert.equal((await next.get('/api/execution/stream')).status, 202);
  await next.close();
});

own('X07', 'a registry that the next server finds damaged: what runs goes on under its name, with its output and its true end', {}, async (d, s) => {
  await d.startProcess('lasting', 'echo begun; read -r line; echo "got $line"; exit 7', { stdin: 'open' });
  await d.logged('lasting', 'begun');
  const call = d.exec('echo in session; sleep 2; exit 3', { sessionId: 'work', executionId: 'fg' }).catch(() => {});
  await until(async () => (await d.get('/api/execution/fg/logs?stream=stdout&from=0')).body.data, 'its output');
  await spoilRegistry(s);
  const next = await nextServer(s, d);
  await call;
  assert.equal(await metric(s, 'conflux_registry_renewed_total'), 1);
  const p = await next.process('lasting');
  assert.deepEqual([p.status, p.command.includes('begun')], ['running', true]);
  await next.post('/api/process/lasting/stdin', { data: 'x\n' });
  await next.wait('lasting');
  const end = await next.process('lasting');
  assert.deepEqual([end.status, end.exitCode], ['failed', 7]);
  assert.equal((await next.get('/api/process/lasting/logs')).body.stdout, 'begun\ngot x\n');
  const fg = await until(async () => { const r = await next.get('/api/execution/fg'); return r.status !== 202 && r; }, 'the end of the foreground command');
  assert.deepEqual([fg.status, fg.body.code ?? fg.body.exitCode], [410, 'SESSION_TERMINATED']); // exit ended its shell
  await next.close();
});

// ---- folders ----

// The state folder of a server on a small disk of its own; null, with a word, where the kernel forbids it.
async function smallDisk(t, size = '1m') {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-disk-'));
  const state = path.join(dir, 'state');
  await mkdir(state, { mode: 0o700 });
  try { execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size},mode=700`, 'conflux-test', state], { stdio: 'pipe' }); } catch (e) {
    await rm(dir, { recursive: true });
    t.skip(`a small disk cannot be mounted: ${String(e.stderr).trim()}`);
    return null;
  }
  const disk = { dir, state };
  disk.free = async () => { execFileSync('umount', ['-l', state]); await rm(dir, { recursive: true, force: true }); };
  return disk;
}
const onDisk = (row, what, body, size) => {
  for (const name of ['http', 'ws']) test(`${row} [${name}] ${what}`, { timeout: 120000 }, async t => {
    const disk = await smallDisk(t, size);
    if (!disk) return;
    const s = await start({ dir: disk.dir });
    const d = await openDoor(name, s);
    try { await body(d, s); } finally { await d.close(); await s.stop(); await disk.free(); }
  });
};
const numbers = n => times(n, i => `${i + 1}\n`).join('');
const works = async (d, tag) => {
  assert.equal((await d.exec('echo plain')).body.stdout, 'plain\n');
  assert.equal((await d.post('/api/session/create', { id: 'new-' + tag })).status, 200);
  assert.equal((await d.exec('echo in it', { sessionId: 'new-' + tag })).body.stdout, 'in it');
  assert.equal((await d.startProcess('new-' + tag, 'echo begun; sleep 1000')).status, 200);
  await d.logged('new-' + tag, 'begun');
};

onDisk('X146', 'a stream that the disk has no room for: who watches gets every byte; who comes later is told', async (d, s) => {
  const command = 'seq 1 500000';
  const st = d.execStream(command);
  await st.opened;
  await st.done;
  assert.equal(st.last().type, 'complete');
  const dropped = st.events.filter(e => e.type === 'dropped').reduce((n, e) => n + e.bytes, 0);
  assert.deepEqual([st.text().length + dropped, dropped], [numbers(500000).length, 0]);
  assert.equal(st.text(), numbers(500000));
  await until(() => /output\.write/.test(s.stderr), 'the line in the log');
  const id = (await d.get('/api/process/list')).body.processes[0].id;
  const late = d.stream(`/api/process/${id}/stream`);
  await late.done;
  const told = late.events.filter(e => e.type === 'dropped').reduce((n, e) => n + e.bytes, 0);
  assert.equal(late.text().length + told, numbers(500000).length);
  assert.ok(told > 0);
  const { stdout, dropped: missing } = (await d.get(`/api/process/${id}/logs`)).body;
  assert.deepEqual([missing, stdout.length + told], [{ stdout: told, stderr: 0 }, numbers(500000).length]);
});

onDisk('X146', 'a buffered call that the disk has no room for says what is missing', async d => {
  const r = (await d.exec('seq 1 500000', { maxOutputBytes: 64 << 20 })).body;
  assert.deepEqual([r.stdoutBytes, r.stdoutTruncated], [numbers(500000).length, r.stdout.length < numbers(500000).length]);
  assert.equal(numbers(500000).startsWith(r.stdout), true);
});

own('X07', 'a log whose record was lost is no part of what runs under its name next', {}, async (d, s) => {
  const ids = ['writes', 'silent'], of = (door, id) => door.get(`/api/process/${id}/logs`).then(r => r.body.stdout);
  for (const id of ids) {
    assert.equal((await d.startProcess(id, 'seq 1 5000', { executionId: id })).status, 200);
    assert.equal((await d.wait(id, '')).status, 200);
    assert.equal(await of(d, id), numbers(5000));
  }
  const second = await nextServer(s, d, { meanwhile: async () => {
    for (const name of await readdir(stateOf(s))) if (name.startsWith('registry.db')) await rm(path.join(stateOf(s), name));
  } });
  for (const id of ids) assert.equal((await second.startProcess(id, `${id === 'writes' ? 'echo again; ' : ''}exec sleep 1000`, { executionId: id })).status, 200);
  assert.equal((await second.logged('writes', 'again')).status, 200);
  const third = await nextServer(s, second);
  assert.deepEqual(await Promise.all(ids.map(id => of(third, id))), ['again\n', '']);
  await second.close();
  await third.close();
});

// What is taken away, and by what it is replaced.
const losses = { logs: s => takeAway(path.join(stateOf(s), 'logs')) };
for (const [what, lose] of Object.entries(losses)) own('X83', `removed while it is used: ${what}`, {}, async (d, s) => {
  await d.exec('X=kept; cd /usr', { sessionId: 'before' });
  const busy = d.exec('sleep 1; echo $X', { sessionId: 'busy', executionId: 'fg' });
  const st = d.execStream('echo one; read -r line; seq 1 30000', { stdin: 'open', executionId: 'live' });
  await st.sees('one');
  await d.startProcess('before', 'echo begun; read -r line; echo "got $line"; sleep 1000', { stdin: 'open' });
  await d.logged('before', 'begun');
  await lose(s);
  await works(d, 'after');
  assert.equal((await d.exec('echo $X; pwd', { sessionId: 'before' })).body.stdout, 'kept\n/usr');
  assert.equal((await d.post('/api/process/before/stdin', { data: 'x\n' })).status, 200);
  await d.logged('before', 'got x');
  await d.post(`/api/process/${(await d.get('/api/process/list')).body.processes.find(p => p.executionId === 'live' || p.command.includes('30000')).id}/stdin`, { data: 'x\n' });
  await st.done;
  assert.deepEqual([st.last().type, st.last().exitCode, st.text()], ['complete', 0, 'one\n' + numbers(30000)]);
  assert.equal((await busy).status, 200);
  const next = await nextServer(s, d);
  assert.equal((await next.exec('echo $X; pwd', { sessionId: 'before' })).body.stdout, 'kept\n/usr');
  assert.equal((await next.process('before')).status, 'running');
  await works(next, 'later');
  await next.close();
});

const removeSessions = s => takeAway(path.join(stateOf(s), 'sessions'));
const waiting = dir => `echo begun; until [ -e ${dir}/go ]; do sleep 0.01; done; echo "has $X"; : >${dir}/done`;
const begun = (d, id) => until(async () => (await d.get(`/api/execution/${id}/logs?stream=stdout&from=0`)).body.data, 'its output');

own('X83', 'the sessions are removed: who is at work reports in the folder that has been made again, also to the next server', {}, async (d, s) => {
  const dir = s.workspace;
  await d.exec('X=kept; cd /usr', { sessionId: 'busy' });
  await d.exec('X=idle', { sessionId: 'idle' });
  const busy = d.exec(waiting(dir), { sessionId: 'busy', executionId: 'fg' });
  await begun(d, 'fg');
  await removeSessions(s);
  await until(() => metric(s, 'conflux_state_mended_total'), 'the folder');
  await until(() => /session\.folder .*session=busy/.test(s.stderr), 'its line in the log');
  await works(d, 'after');
  await writeFile(path.join(dir, 'go'), '');
  const r = await busy;
  assert.deepEqual([r.status, r.body.stdout], [200, 'begun\nhas kept']);
  assert.equal((await d.exec('echo $X', { sessionId: 'idle' })).body.stdout, 'idle');
  await rm(path.join(dir, 'go'));
  const second = d.exec(waiting(dir), { sessionId: 'busy', executionId: 'fg2' }).catch(() => {});
  await begun(d, 'fg2');
  const next = await nextServer(s, d);
  await writeFile(path.join(dir, 'go'), '');
  const end = await until(async () => { const e = await next.get('/api/execution/fg2'); return e.status !== 202 && e; }, 'its end');
  assert.deepEqual([end.status, end.body.stdout], [200, 'begun\nhas kept']);
  assert.equal((await next.exec('echo $X; pwd', { sessionId: 'busy' })).body.stdout, 'kept\n/usr');
  await second;
  await next.close();
});

own('X83', 'the sessions are removed, and a command ends before they are made again: it is lost, its shell is not', {}, async (d, s) => {
  const dir = s.workspace, server = await serverPid(s);
  const shell = (await d.exec('X=kept; cd /usr; echo $$', { sessionId: 'busy' })).body.stdout;
  const busy = d.exec(waiting(dir), { sessionId: 'busy', executionId: 'fg' });
  await begun(d, 'fg');
  process.kill(server, 'SIGSTOP'); // or it would make them again in time
  await removeSessions(s);
  await writeFile(path.join(dir, 'go'), '');
  await until(() => stat(path.join(dir, 'done')).catch(() => null), 'its end');
  await until(async () => /^\d+ \(.*\) S/.test(await readFile(`/proc/${shell}/stat`, 'utf8')), 'the shell to wait for more');
  process.kill(server, 'SIGCONT');
  const r = await busy;
  assert.deepEqual([r.status, r.body.code], [500, 'EXECUTION_LOST']);
  assert.equal((await d.exec('echo $X; pwd; echo $$', { sessionId: 'busy' })).body.stdout, `kept\n/usr\n${shell}`);
  await works(d, 'after');
});

// ---- what is stored nowhere ----

const holds = (dir, text) => { try { return execFileSync('grep', ['-rlaF', text, dir], { encoding: 'utf8' }); } catch (e) { if (e.status === 1) return ''; throw e; } };

own('X36', 'values of the environment are never in the state folder: while a command runs, afterwards, and after kill -9', {}, async (d, s) => {
  const key = 'sk-test-' + d.name + '-3f9a', other = 'sk-other-' + d.name + '-77c1';
  await d.post('/api/session/create', { id: 'secret', env: { KEY: key } });
  const busy = d.exec('echo begun; sleep 2; [ "$OTHER" ] && echo has it', { sessionId: 'secret', env: { OTHER: other }, executionId: 'fg' }).catch(() => {});
  await until(async () => (await d.get('/api/execution/fg/logs?stream=stdout&from=0')).body.data, 'its output');
  await d.startProcess('p', 'echo begun; sleep 1000', { env: { OTHER: other } });
  await d.startProcess('q', 'echo begun; sleep 1000', { sessionId: 'second', env: { OTHER: other } });
  await d.logged('p', 'begun');
  await d.logged('q', 'begun');
  assert.equal(holds(stateOf(s), key) + holds(stateOf(s), other), '');
  const next = await nextServer(s, d);
  await busy;
  assert.equal(holds(stateOf(s), key) + holds(stateOf(s), other), '');
  await until(async () => (await next.get('/api/execution/fg')).status === 200, 'the end of the command');
  assert.equal((await next.get('/api/execution/fg')).body.stdout, 'begun\nhas it');
  assert.equal((await next.exec('echo $KEY', { sessionId: 'secret' })).body.stdout, key);
  assert.equal((await next.exec('export OTHER; echo ${OTHER-none}', { sessionId: 'secret' })).body.stdout, 'none');
  assert.equal(holds(stateOf(s), key) + holds(stateOf(s), other), '');
  await next.close();
});

own('X83', 'the registry is gone at a start: what a session is at goes on with all of its output', {}, async (d, s) => {
  const go = path.join(s.dir, 'go'), log = async d => (await d.get('/api/execution/at-it/logs?stream=stdout&from=0')).body;
  execFileSync('mkfifo', [go]);
  const call = d.exec(`echo before; read -r line < ${go}; echo after`, { sessionId: 'work', executionId: 'at-it' }).catch(() => 'lost');
  await until(async () => (await log(d)).data?.includes('before'), 'its first line in the log');
  const gone = async () => { for (const part of ['', '-wal']) await rm(path.join(stateOf(s), 'registry.db' + part)); };
  const next = await nextServer(s, d, { meanwhile: gone });
  await writeFile(go, 'x\n');
  const whole = await until(async () => { const l = await log(next); return l.data?.endsWith('after\n') && l; }, 'the rest of its output');
  assert.deepEqual([whole.data, whole.dropped], ['before\nafter\n', 0]);
  assert.equal(await call, 'lost');
  await next.close();
});
