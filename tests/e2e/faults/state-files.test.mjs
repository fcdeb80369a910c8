// X07, X83: each file and each folder of the state, as a live server lists it, removed, replaced, closed and emptied:
// while the server runs, and when the next one starts. What runs goes on; what was lost is told; the next call works.
import assert from 'node:assert/strict';
import { chmod, mkdir, mkdtemp, readdir, rename, stat, truncate, writeFile, chown } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { nextServer, openDoor } from '../lib/door.mjs';
import { few, serverPid, start, takeAway, until } from '../lib/server.mjs';

const USER = process.getuid() === 0 ? 54321 : undefined; // root may do what a mode forbids
const CODE = /^[A-Z_]+$/;
const stateOf = s => path.join(s.dir, 'state');

// ---- faults ----

const belongs = async p => { if (USER) await chown(p, USER, USER); };
// Something else under that name, at once: the server may put its own there again as soon as the name is free.
const inPlace = make => async p => {
  const other = p.slice(0, p.lastIndexOf('/state')) + '/other';
  await make(other);
  await belongs(other);
  for (;;) {
    await takeAway(p);
    try { return await rename(other, p); } catch (e) { if (!['EISDIR', 'ENOTDIR', 'ENOTEMPTY', 'EEXIST'].includes(e.code)) throw e; }
  }
};
const asFile = inPlace(p => writeFile(p, '')), asFolder = inPlace(mkdir);
const faults = {
  removed: takeAway,
  'a file in its place': asFile,
  'a folder in its place': asFolder,
  closed: p => chmod(p, 0),
  emptied: async (p, folder) => {
    if (!folder) return truncate(p, 0).catch(() => {}); // a FIFO has nothing to lose
    for (const n of await readdir(p)) await takeAway(path.join(p, n));
  },
};

// ---- what a state folder holds ----

async function* entries(dir, under = '') {
  for (const e of await readdir(path.join(dir, under), { withFileTypes: true })) {
    const name = path.join(under, e.name);
    yield { name, folder: e.isDirectory() };
    if (e.isDirectory()) yield* entries(dir, name);
  }
}

// Without what is drawn: the same thing has the same kind in every server.
const kindOf = name => name.replace(/^sessions\/[^/]+/, 'sessions/TOKEN').replace(/TOKEN\/([oeigx])\d+$/, 'TOKEN/$1N')
  .replace(/^logs\/[^/]+\.(out|err)/, 'logs/ID.$1').replace(/-[0-9a-f]{8,}/g, '-RANDOM');

async function list(s) {
  const found = new Map();
  for await (const e of entries(stateOf(s))) if (!/damaged/.test(e.name)) found.set(kindOf(e.name), e);
  return found;
}

// ---- what a server is asked ----

async function furnish(d, s, tag) {
  const r = await d.exec('X=kept; echo set', { sessionId: tag });
  assert.equal(r.body.stdout, 'set', JSON.stringify(r));
  assert.equal((await d.startProcess(tag, 'echo begun; while read -r l; do echo "got $l"; done', { stdin: 'open' })).status, 200);
  await d.logged(tag, 'begun');
  const up = await d.post('/api/write', { path: path.join(s.workspace, tag), content: 'first', uploadId: tag, offset: 0, final: false });
  assert.equal(up.status, 200, JSON.stringify(up));
}

// True, or the code of a typed error; anything else has claimed success over a loss.
function right(r, what, good) {
  if (r.status === 200 && good(r.body)) return true;
  assert.ok(r.status >= 400 && CODE.test(r.body?.code ?? ''), `${what}: ${r.status} ${JSON.stringify(r.body)}`);
  return r.body.code;
}

// Every answer that was not right, by what was asked.
async function ask(d, s, tag, n) {
  const wrong = {}, note = (what, ok) => { if (ok !== true) wrong[what] = ok; };
  note('plain', right(await d.post('/api/execute', { command: 'echo plain' }), 'plain', b => b.stdout.trim() === 'plain'));
  note('session', right(await d.exec('echo $X', { sessionId: tag }), 'session', b => b.stdout === 'kept'));
  note('new session', right(await d.exec(`echo new ${n}`, { sessionId: `new-${tag}-${n}` }), 'new session', b => b.stdout === `new ${n}`));
  note('new process', right(await d.startProcess(`new-${tag}-${n}`, `echo begun; exec sleep 1000`), 'new process', b => b.success));
  if (!wrong['new process']) {
    note('its log', right(await d.logged(`new-${tag}-${n}`, 'begun'), 'its log', b => b.success));
    await d.del(`/api/process/new-${tag}-${n}`);
  }
  const p = await d.process(tag);
  assert.equal(p?.status, 'running', `the process that ran: ${JSON.stringify(p)}`);
  note('stdin', right(await d.post(`/api/process/${tag}/stdin`, { data: `line ${n}\n` }), 'stdin', b => b.success));
  const whole = await until(async () => {
    const r = await d.get(`/api/process/${tag}/logs`);
    return (r.status !== 200 || wrong.stdin || r.body.stdout.includes(`got line ${n}`)) && r;
  }, 'what it says to that');
  note('whole log', right(whole, 'whole log', () => true));
  if (!wrong['whole log'] && !whole.body.stdout.startsWith('begun')) wrong['whole log'] = 'cut';
  const file = path.join(s.workspace, `${tag}-${n}`);
  const piece = (uploadId, content, offset, final) => d.post('/api/write', { path: file, content, uploadId, offset, final });
  note('upload', right(await piece(`${tag}-${n}`, 'one', 0, false), 'upload', b => b.success));
  if (!wrong.upload) note('its end', right(await piece(`${tag}-${n}`, 'two', 3, true), 'its end', b => b.success));
  if (!wrong.upload && !wrong['its end']) assert.equal((await d.post('/api/read', { path: file })).body.content, 'onetwo');
  note('old upload', right(await d.get(`/api/files/upload/${tag}`), 'old upload', b => b.size === 5));
  return wrong;
}

// What is lost is lost, and may be answered with an error for as long as it is asked for.
const LASTS = ['session', 'old upload', 'whole log'];
const tells = w => w['old upload'] === 'UPLOAD_NOT_FOUND' && Object.keys(w).length === 1; // who asks is told
const told = async (s, from) => /"level":"(error|warn)"|\b(ERROR|WARN)\b/i.test(s.stderr.slice(from)) || (await fetch(s.base + '/readyz')).status !== 200;

async function expectService(d, s, tag, n, from, entry) {
  const first = await ask(d, s, tag, n);
  if (process.env.SHOW) console.log(tag, entry?.name, JSON.stringify(first));
  if (Object.keys(first).length && !tells(first)) assert.ok(await told(s, from), `nothing tells of ${JSON.stringify(first)}`);
  if (entry && Object.keys(first).some(k => !LASTS.includes(k))) { // put right, it works
    const there = path.join(stateOf(s), entry.name);
    if (await stat(there).catch(() => null)) await chmod(there, entry.folder ? 0o700 : 0o600);
  }
  if (!Object.keys(first).length && few(false, true)) return; // that it stays so is seen in the run on the release build
  const then = await until(async () => {
    const w = await ask(d, s, tag, ++n);
    return Object.keys(w).every(k => LASTS.includes(k)) && w;
  }, `service after ${JSON.stringify(first)}`);
  if (then.session) await furnish(d, s, tag + 'x');
}

// ---- the table ----

const whens = {
  'while it runs': async (s, d, damage) => {
    const pid = await serverPid(s);
    await damage();
    return { next: d, alive: async () => assert.equal(await serverPid(s), pid, 'the server has died: ' + s.stderr.slice(-2000)) };
  },
  'when the next one starts': async (s, d, damage) => {
    const next = await nextServer(s, d, { meanwhile: damage, at: '/healthz' });
    return { next, alive: async () => {} };
  },
};

async function furnished(name) {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-state-'));
  await chmod(dir, 0o755);
  const s = await start({ dir, user: USER });
  const d = await openDoor(name, s);
  return { s, d, free: async () => { await s.stop(); await takeAway(dir); } };
}

let kinds;
test('X83 the state folder of a furnished server', async () => {
  const { s, d, free } = await furnished('http');
  await furnish(d, s, 'a');
  kinds = await list(s);
  if (process.env.SHOW) console.log([...kinds.keys()]);
  for (const k of ['keeper.lock', 'keeper.mark', 'registry.db', 'registry.db-wal', 'sessions', 'sessions/TOKEN', 'sessions/TOKEN/s', 'logs', 'logs/ID.out', 'uploads', 'uploads/u-a'])
    assert.ok(kinds.has(k), `${k} is not in ${[...kinds.keys()]}`);
  await d.close();
  await free();
});

const concerns = (what, kind) => {
  const folder = kind === '.' || kinds.get(kind).folder;
  return what === 'a file in its place' ? folder : what === 'a folder in its place' ? !folder : true;
};

// Each entry has a server of its own: one that has died often is started again with a delay.
for (const [name, [when, act]] of [['http', Object.entries(whens)[0]], ['ws', Object.entries(whens)[1]]]) {
  for (const [what, damage] of Object.entries(faults)) test(`X83 [${name}] ${what}, ${when}: each entry of the state folder`, { timeout: 120000, concurrency: 4 }, async t => {
    await Promise.all([...kinds.keys(), '.'].filter(kind => concerns(what, kind)).map(kind => t.test(kind, async () => {
      const tag = 'tag', { s, d, free } = await furnished(name);
      const doors = [d];
      try {
        await furnish(d, s, tag);
        const entry = kind === '.' ? { name: '', folder: true } : (await list(s)).get(kind.replace('u-a', `u-${tag}`));
        assert.ok(entry, 'it is not there');
        const from = s.stderr.length;
        const { next, alive } = await act(s, d, () => damage(path.join(stateOf(s), entry.name), entry.folder));
        if (next !== d) doors.push(next);
        await expectService(next, s, tag, 1000, from, entry);
        await alive();
      } finally {
        for (const door of doors) await door.close();
        await free();
      }
    })));
  });
}
