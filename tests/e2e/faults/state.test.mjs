// The state folder: each file and folder of it damaged, removed, replaced, read-only, full.
import assert from 'node:assert/strict';
import { open, readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { metric, own } from '../lib/door.mjs';
import { serverPid, until } from '../lib/server.mjs';

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

// Kills the server; a door to the next one when that is ready.
async function again(s, d) {
  const pid = await serverPid(s);
  process.kill(pid, 'SIGKILL');
  await until(async () => { const p = await serverPid(s); return p && p !== pid; }, 'the next server');
  return until(async () => {
    const next = await Promise.resolve(d.another()).catch(() => null);
    if ((await next?.get('/readyz').catch(() => null))?.status === 200) return next;
    await next?.close();
    return null;
  }, 'a door of the next server');
}

own('X07', 'a registry that is damaged while it is used: what runs goes on, starts work, the next server knows all', {}, async (d, s) => {
  await d.startProcess('lasting', 'echo begun; read -r line; echo "got $line"; sleep 1000', { stdin: 'open' });
  await d.exec('X=kept; cd /usr', { sessionId: 'work' });
  const stream = d.execStream('echo one; read -r line; echo two', { stdin: 'open', executionId: 'stream' });
  await stream.sees('one');
  await spoilRegistry(s);
  assert.equal((await d.startProcess('later', 'sleep 1000')).status, 200);
  for (let i = 0; i < 200 && !(await metric(s, 'conflux_registry_renewed_total')); i++) await d.exec('true', { executionId: 'try' + i });
  assert.match(s.stderr, /registry\.damaged/);
  assert.ok((await aside(s)).length >= 1);
  assert.equal((await d.exec('echo $X; pwd', { sessionId: 'work' })).body.stdout, 'kept\n/usr');
  const next = await again(s, d);
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
  const next = await again(s, d);
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
