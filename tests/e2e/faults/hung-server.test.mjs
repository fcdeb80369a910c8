// A server that has gone, and the next one. It may be killed while a thread of it hangs in the kernel, where not even KILL ends it:
// the next one serves on the same port beside what is left, and the end is as it always is (X03, X08).
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { nextServer, openDoor } from '../lib/door.mjs';
import { hold, silent } from '../lib/hold.mjs';
import { get, gone, serverPid, start, until } from '../lib/server.mjs';

async function someThreadHangs(pid) {
  for (const t of await readdir(`/proc/${pid}/task`).catch(() => []))
    if (/request_wait_answer/.test(await readFile(`/proc/${pid}/task/${t}/wchan`, 'utf8').catch(() => ''))) return true;
  return false;
}

// A thread of the server hangs; `first` is that server. free() lets it go.
async function hang(t, s, d) {
  const place = path.join(s.dir, 'silent');
  await mkdir(place);
  const h = await hold(silent, place);
  if (!h.held) { t.skip(`a file system of our own cannot be mounted: ${h.said.trim()}`); return null; }
  t.after(h.release);
  const first = await serverPid(s), lost = d.post('/api/read', { path: `${place}/file` }).catch(() => 'lost');
  await until(() => someThreadHangs(first), 'a thread that hangs');
  return { first, lost, free: h.release };
}

for (const name of ['http', 'ws']) test(`X03 [${name}] the next server takes over from one that hangs when it is killed`, async t => {
  const s = await start();
  t.after(s.stop);
  const d = await openDoor(name, s);
  assert.equal((await d.exec('X=kept', { sessionId: 'a' })).status, 200);
  assert.equal((await d.startProcess('p', 'echo begun; while read -r l; do echo "got $l"; done', { stdin: 'open' })).status, 200);
  await d.logged('p', 'begun');
  const hung = await hang(t, s, d);
  if (!hung) return;

  const next = await nextServer(s, d);
  t.after(() => next.close());
  assert.equal((await next.exec('echo $X', { sessionId: 'a' })).body.stdout, 'kept', 'a session goes on');
  assert.equal((await next.post('/api/process/p/stdin', { data: 'more\n' })).status, 200);
  await next.logged('p', 'got more');
  assert.equal((await next.exec('echo plain')).body.stdout.trim(), 'plain');
  assert.match(s.stderr, new RegExp(`event=keeper.server_hangs .*pid=${hung.first}`));
  assert.match(await readFile(`/proc/${hung.first}/stat`, 'utf8'), /\) Z /, 'the first one is still there');

  const second = await serverPid(s);
  s.child.kill('SIGHUP');
  await until(async () => { const p = await serverPid(s); return p && p !== second; }, 'a server after SIGHUP');
  const third = await d.another();
  t.after(() => third.close());
  assert.equal((await third.exec('echo $X', { sessionId: 'a' })).body.stdout, 'kept', 'what was stored beside the first one is there');

  await hung.free();
  await gone(hung.first);
  assert.equal(await hung.lost, 'lost');
  assert.equal((await third.exec('echo $X', { sessionId: 'a' })).body.stdout, 'kept');
});

test('who connects while there is no server waits for the next one', async t => {
  const s = await start();
  t.after(s.stop);
  for (const end of [pid => process.kill(pid, 'SIGKILL'), () => s.child.kill('SIGHUP'), pid => process.kill(pid, 'SIGKILL')]) {
    const first = await serverPid(s), answers = [];
    end(first);
    do { // what has been sent to the server that ends may be lost with it; nobody is turned away
      answers.push(await get(s, '/healthz', { connection: 'close' }).then(r => r.status, e => e.cause.code));
    } while (!await serverPid(s).then(p => p && p !== first) || answers.at(-1) !== 200);
    assert.deepEqual(answers.filter(a => !['ECONNRESET', 'UND_ERR_SOCKET', 200].includes(a)), []);
  }
});

test('X03 what hangs keeps neither the end nor the port', async t => {
  const s = await start(), d = await openDoor('http', s);
  const hung = await hang(t, s, d);
  if (!hung) return s.stop();
  await (await nextServer(s, d)).close();
  s.child.kill('SIGTERM');
  assert.deepEqual(await s.exit, { code: 0, signal: null });
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-e2e-'));
  t.after(() => rm(dir, { recursive: true, force: true }));
  const other = await start({ port: s.port, dir });
  assert.equal((await get(other, '/healthz')).status, 200, other.stderr);
  await other.stop();
  await hung.free();
  await hung.lost;
  await s.stop();
});
