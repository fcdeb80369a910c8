// The state folder is somebody else's too: it was there before us, it is another server's, things lie in it that we have not put there.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { lstat, mkdir, mkdtemp, readFile, rm, symlink, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { openDoor } from '../lib/door.mjs';
import { serverPid, start, gone } from '../lib/server.mjs';

const there = p => lstat(p).then(() => true, () => false);
async function withFolder(body) {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-own-'));
  try { await body(dir, path.join(dir, 'state')); } finally { await rm(dir, { recursive: true, force: true }); }
}

test('X166 what lies in the state folder and is not of ours stays, also behind links; what we have left goes', () => withFolder(async (dir, state) => {
  const mine = ['sessions/top.txt', 'sessions/important/thesis.doc', 'sessions/important/sub/deep', 'sessions/0123456789ab/notes', 'logs/build.out',
    'logs/app.err', 'logs/run.cmd', 'logs/exec_today.out', 'logs/keep.log', 'temps-0123456789abcdef', 'registry.db.damaged-my-notes-of-that-time'];
  const ours = ['sessions/0123456789ab/s', 'sessions/0123456789ab/c', 'sessions/0123456789ab/o12', 'logs/exec_1700000000000_0123abcd.out', 'logs/~12-3.cmd'];
  const beyond = ['s', 'c', 'o1', 'thesis.doc'].map(n => path.join(dir, 'elsewhere', n));
  const files = [...mine.map(n => path.join(state, n)), ...beyond], left = ours.map(n => path.join(state, n));
  for (const f of [...files, ...left]) {
    await mkdir(path.dirname(f), { recursive: true, mode: 0o700 });
    await writeFile(f, 'mine');
  }
  await symlink(path.join(dir, 'elsewhere'), path.join(state, 'sessions/ba9876543210'));
  const s = await start({ dir });
  const d = await openDoor('http', s);
  assert.equal((await d.exec('echo hi', { sessionId: 'a' })).body.stdout, 'hi');
  assert.equal((await d.del('/api/session/a')).status < 500, true);
  const pid = await serverPid(s);
  process.kill(pid, 'SIGKILL'); // the next one sweeps as well
  await gone(pid);
  assert.equal((await d.another().exec('echo hi')).body.stdout, 'hi\n');
  await d.close();
  await s.stop();
  for (const f of files) assert.equal(await readFile(f, 'utf8'), 'mine', f);
  for (const f of left) assert.equal(await there(f), false, f);
}));

test('X167 a second server for the state folder is refused, whatever files the first one has lost', () => withFolder(async (dir, state) => {
  const s = await start({ dir });
  const d = await openDoor('http', s);
  try {
    assert.equal((await d.startProcess('p', 'exec sleep 1000')).status, 200);
    assert.equal((await d.exec('X=kept', { sessionId: 'a' })).status, 200);
    for (const file of ['keeper.lock', 'keeper.mark']) {
      await unlink(path.join(state, file));
      const t = await start({ dir });
      if (t.base) await t.stop();
      assert.equal(t.base, undefined, 'it serves');
      assert.deepEqual(await t.exit, { code: 1, signal: null });
      assert.ok(t.stderr.includes(`uses the state folder ${state}`), t.stderr);
      if (file === 'keeper.lock') assert.ok(t.stderr.includes(`another conflux (pid ${s.child.pid})`), t.stderr);
    }
    assert.equal((await d.process('p')).status, 'running');
    assert.equal((await d.exec('echo $X', { sessionId: 'a' })).body.stdout, 'kept');
  } finally { await d.close(); await s.stop(); }
}));

// What is put in the place of a file of the state; the file it leads to, if it does, must stay as it was.
const kinds = {
  'a link': (p, victim) => symlink(victim, p),
  'a link to nothing': (p, victim) => symlink(victim + '.new', p),
  'a link to itself': p => symlink(path.basename(p), p),
  'a second name': (p, victim) => execFileSync('ln', [victim, p]),
  'a pipe': p => execFileSync('mkfifo', [p]),
  'a folder': p => mkdir(p),
};
for (const [kind, make] of Object.entries(kinds))
  test(`X168 ${kind} in the place of each file that a start opens: moved aside with a word, and nothing outside is touched`, () => withFolder(async (dir, state) => {
    let s = await start({ dir });
    let d = await openDoor('http', s);
    assert.equal((await d.exec('echo kept', { executionId: 'kept' })).status, 200);
    await d.close();
    await s.stop();
    const names = ['keeper.lock', 'keeper.mark', 'registry.db-wal', 'registry.db-shm'], victim = path.join(dir, 'victim');
    await writeFile(victim, 'not ours', { mode: 0o644 });
    for (const n of names) {
      await rm(path.join(state, n), { force: true });
      await make(path.join(state, n), victim);
    }
    s = await start({ dir });
    assert.ok(s.base, s.stderr);
    d = await openDoor('http', s);
    try {
      assert.equal((await d.get('/api/execution/kept')).body.stdout, 'kept\n');
      assert.equal((await d.exec('echo hi', { sessionId: 'b' })).body.stdout, 'hi');
      for (const n of names.filter(n => n !== 'registry.db-wal' || kind !== 'a second name')) assert.ok(s.stderr.includes(`${n}.damaged-`), `${n}: ${s.stderr}`);
    } finally { await d.close(); await s.stop(); }
    assert.equal(await readFile(victim, 'utf8'), 'not ours');
    assert.equal((await lstat(victim)).mode & 0o777, 0o644);
    assert.equal(await there(victim + '.new'), false);
  }));
