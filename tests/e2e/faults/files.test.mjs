// Trees and folders that are deeper, longer or more than was thought of.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { ASAN, OFF, group, memory } from '../lib/door.mjs';
import { serverPid, until } from '../lib/server.mjs';

const DEEP = 3000;
// Trees like these take a disk its time.
const fast = await mkdtemp('/dev/shm/conflux-faults-').catch(() => mkdtemp(path.join(tmpdir(), 'conflux-faults-')));
after(() => clear(fast));
// By names from one folder to the next, since the whole path is longer than the kernel takes.
const grow = (root, depth) => execFileSync(process.execPath, ['-e',
  'const fs = require("fs"); for (let i = 0; i < +process.argv[1]; i++) { fs.mkdirSync("d"); process.chdir("d"); } fs.writeFileSync("end", "deep");', depth], { cwd: root });
// Node's own rm takes whole paths, too.
const clear = (...paths) => execFileSync('rm', ['-rf', ...paths]);
const count = root => Number(execFileSync('sh', ['-c', 'find . -mindepth 1 | wc -l'], { cwd: root }));

group('deep trees', { workspace: fast }, ({ both, plain }) => {
  both('X01', `a tree of ${DEEP.toLocaleString('en')} nested folders can be listed, changed, copied, searched and moved`, async (d, s) => {
    const root = `${s.workspace}/${d.name}`, tree = `${root}/t`, copy = `${root}/copy`;
    await mkdir(tree, { recursive: true });
    grow(tree, DEEP);
    const ok = async (route, body) => {
      const r = await d.post(route, { sessionId: OFF, ...body });
      assert.equal(r.status, 200, `${route}: ${JSON.stringify(r.body).slice(0, 500)}`);
      return r.body;
    };
    const l = await ok('/api/list-files', { path: tree, options: { recursive: true } });
    assert.deepEqual([l.count, l.skipped], [DEEP + 1, undefined]);
    assert.equal(l.files.at(-1).relativePath, 'd/'.repeat(DEEP) + 'end');
    await ok('/api/files/chmod', { path: tree, mode: '0700', recursive: true });
    await ok('/api/files/chown', { path: tree, uid: process.getuid(), recursive: true });
    assert.equal((await ok('/api/files/copy', { source: tree, destination: copy, recursive: true })).bytes, 4);
    assert.equal(count(copy), DEEP + 1);
    const found = d.stream('/api/files/search', { path: copy, glob: 'end' });
    await found.done;
    assert.deepEqual(found.events.map(e => [e.type, e.relativePath, e.skipped]), [['match', 'd/'.repeat(DEEP) + 'end', undefined], ['complete', undefined, 0]]);
    const lines = d.stream('/api/files/grep', { path: copy, pattern: 'deep' });
    await lines.done;
    assert.deepEqual(lines.events.map(e => e.type), ['match', 'complete']);
    clear(tree, copy);
    // To another file system: copied and removed.
    const there = path.join(s.dir, `there-${d.name}`);
    await mkdir(tree);
    grow(tree, DEEP / 5);
    await ok('/api/move', { sourcePath: tree, destinationPath: there });
    assert.equal(count(there), DEEP / 5 + 1);
    assert.deepEqual(await readdir(root), []);
    assert.equal((await d.exec('echo alive')).body.stdout, 'alive\n');
  });

  plain('X01', 'an archive of a deep tree is unpacked again', async s => {
    const tree = `${s.workspace}/packed`, back = `${s.workspace}/unpacked`;
    const url = p => `${s.base}/api/files/archive?path=${encodeURIComponent(p)}`;
    await mkdir(tree);
    grow(tree, DEEP);
    const packed = await (await fetch(url(tree), { headers: { 'Accept-Encoding': 'identity' } })).arrayBuffer();
    const r = await fetch(url(back), { method: 'PUT', body: packed });
    assert.equal(r.status, 200, await r.text());
    assert.equal(count(back), DEEP + 1);
    clear(tree, back);
  });
});

// Each entry of the answer is long, because the folder's path is.
async function longFolder(root, n) {
  const deep = path.join(root, ...Array(14).fill('x'.repeat(250)));
  await mkdir(deep, { recursive: true });
  execFileSync('sh', ['-c', `seq ${n} | xargs touch`], { cwd: deep });
  return deep;
}
const MANY = 10000;

group('long lists', { workspace: path.join(fast, 'lists') }, ({ both, plain }) => {
  both('X38', 'a long list is whole over HTTP, refused where it would be one message, and there in parts', async (d, s) => {
    const deep = await longFolder(`${s.workspace}/${d.name}`, MANY);
    const whole = await d.post('/api/list-files', { path: deep });
    if (d.name === 'http') assert.deepEqual([whole.status, whole.body.count, whole.body.files.length], [200, MANY, MANY]);
    else assert.deepEqual([whole.status, whole.body.code, /options\.limit/.test(whole.body.message)], [413, 'PAYLOAD_TOO_LARGE', true]);
    const batch = await d.post('/api/files/batch', { operations: [{ path: '/api/list-files', body: { path: deep } }, { path: '/api/exists', body: { path: deep } }] });
    assert.deepEqual(batch.body.results.map(r => r.status), [413, 200]);
    const names = new Set();
    let next, pages = 0;
    do {
      const r = await d.post('/api/list-files', { path: deep, options: { limit: 9999, ...next && { after: next } } });
      assert.equal(r.status, 200);
      for (const f of r.body.files) names.add(f.name);
      assert.equal(r.body.truncated, r.body.next !== undefined);
      next = r.body.next;
      pages++;
    } while (next);
    assert.deepEqual([names.size, pages], [MANY, 2]);
    await rm(`${s.workspace}/${d.name}`, { recursive: true });
  });

  both('X38', 'the list of an ordinary folder is as it was', async (d, s) => {
    const root = `${s.workspace}/plain-${d.name}`;
    await mkdir(`${root}/sub`, { recursive: true });
    const r = await d.post('/api/list-files', { path: root });
    assert.deepEqual([Object.keys(r.body), Object.keys(r.body.files[0])],
      [['success', 'path', 'files', 'count', 'timestamp'], ['name', 'absolutePath', 'relativePath', 'type', 'size', 'modifiedAt', 'mode', 'permissions']]);
    for (const [options, field] of [[{ limit: 0 }, 'limit'], [{ after: 'x' }, 'after']]) {
      const bad = await d.post('/api/list-files', { path: root, options });
      assert.deepEqual([bad.status, bad.body.code, bad.body.message.startsWith(field)], [400, 'VALIDATION_FAILED', true]);
    }
  });

  plain('X38', 'clients that do not read a long list cost the server nothing', async s => {
    const deep = await longFolder(`${s.workspace}/unread`, MANY), clients = 12;
    const body = JSON.stringify({ path: deep });
    const pid = await serverPid(s), before = await memory(pid);
    const asked = await Promise.all(Array.from({ length: clients }, async () => {
      const req = http.request(`${s.base}/api/list-files`, { method: 'POST', agent: false, headers: { 'Content-Type': 'application/json', 'Content-Length': body.length } });
      req.on('error', () => {});
      req.end(body);
      const [res] = await once(req, 'response');
      res.pause();
      return [req, res];
    }));
    assert.deepEqual([...new Set(asked.map(([, res]) => res.statusCode))], [200]);
    const grown = await memory(pid) - before; // one alone would be 40 MiB
    for (const [req] of asked) req.destroy();
    if (!ASAN) assert.ok(grown < 40, `${grown} MiB more`);
  });
});

const bits = async p => ((await stat(p)).mode & 0o7777).toString(8);
const staged = async dir => (await readdir(dir)).filter(n => n.startsWith('.conflux-'));
// Not the usual one: a mode that is merely built in would show.
const masked = { prefix: ['sh', '-c', 'umask 027; exec "$@"', 'sh'] };
// Begins a PUT, holds it half-way, looks at the file that is being written, and ends it.
async function putSlowly(s, file, query, look) {
  const half = Buffer.alloc(256 * 1024, 'x');
  const req = http.request(`${s.base}/api/files/raw?path=${encodeURIComponent(file)}${query}`, { method: 'PUT', agent: false, headers: { 'Content-Length': 2 * half.length } });
  const answer = once(req, 'response');
  req.write(half);
  const temp = await until(async () => {
    for (const n of await staged(path.dirname(file))) if ((await stat(path.join(path.dirname(file), n))).size > 0) return path.join(path.dirname(file), n);
  }, 'a temporary file with content');
  await look(temp);
  req.end(half);
  const [res] = await answer;
  res.resume();
  assert.equal(res.statusCode, 200);
}

group('what others may read', masked, ({ both, plain }) => {
  plain('X23', 'a file is for its owner alone while PUT writes it, and then as it was asked for, as it was, or as the umask says', async s => {
    const dir = `${s.workspace}/put`;
    await mkdir(dir);
    await writeFile(`${dir}/old`, 'old', { mode: 0o600 });
    await writeFile(`${dir}/wide`, 'old');
    await chmod(`${dir}/wide`, 0o664);
    for (const [name, query, after] of [['asked', '&mode=0600', '600'], ['more', '&mode=0644', '644'], ['old', '', '600'], ['wide', '', '664'], ['wide', '&mode=0600', '600'], ['new', '', '640']]) {
      await putSlowly(s, `${dir}/${name}`, query, async temp => assert.equal(await bits(temp), '600', name + query));
      assert.equal(await bits(`${dir}/${name}`), after, name + query);
    }
    assert.deepEqual(await staged(dir), []);
  });

  both('X23', 'an upload in pieces is for its owner alone until it is whole', async (d, s) => {
    const dir = `${s.workspace}/pieces-${d.name}`;
    await mkdir(dir);
    await writeFile(`${dir}/old`, 'old', { mode: 0o600 });
    for (const [name, more, after] of [['asked', { mode: '0600' }, '600'], ['old', {}, '600'], ['new', {}, '640']]) {
      const piece = async rest => {
        const r = await d.post('/api/write', { path: `${dir}/${name}`, uploadId: `x23-${d.name}-${name}`, ...rest });
        assert.equal(r.status, 200, JSON.stringify(r.body));
      };
      await piece({ content: 'one', offset: 0 });
      const [temp] = await staged(dir);
      assert.equal(await bits(path.join(dir, temp)), '600', name);
      await piece({ content: 'two', offset: 3, final: true, ...more });
      assert.deepEqual([await readFile(`${dir}/${name}`, 'utf8'), await bits(`${dir}/${name}`)], ['onetwo', after], name);
    }
  });

  both('X23', 'write: a new file as the umask says, also in place, by append and through a link to nowhere; a copy as it was', async (d, s) => {
    const dir = `${s.workspace}/write-${d.name}`;
    await mkdir(dir);
    await symlink('nowhere', `${dir}/link`);
    for (const [name, more, after] of [['a', {}, '640'], ['b', { atomic: false }, '640'], ['c', { append: true }, '640'], ['link', { atomic: false }, '640'],
      ['d', { atomic: false, mode: '0666' }, '666'], ['d', { atomic: false }, '666'], ['d', { atomic: false, mode: '0600' }, '600'], ['d', { append: true, mode: '0644' }, '644']]) {
      const r = await d.post('/api/write', { path: `${dir}/${name}`, content: 'x', ...more });
      assert.equal(r.status, 200, JSON.stringify(r.body));
      assert.equal(await bits(`${dir}/${name}`), after, name + JSON.stringify(more));
    }
    assert.equal(await readFile(`${dir}/nowhere`, 'utf8'), 'x');
    assert.equal(await readFile(`${dir}/d`, 'utf8'), 'xx');
    for (const [name, mode, after] of [['a', 0o666, '640'], ['b', 0o600, '600']]) {
      await chmod(`${dir}/${name}`, mode);
      assert.equal((await d.post('/api/files/copy', { source: `${dir}/${name}`, destination: `${dir}/${name}-copy` })).status, 200);
      assert.equal(await bits(`${dir}/${name}-copy`), after, name);
    }
  });

  plain('X23', 'the registry is for our own user alone', async s => {
    for (const name of (await readdir(path.join(s.dir, 'state'))).filter(n => n.startsWith('registry.db')))
      assert.equal((await stat(path.join(s.dir, 'state', name))).mode & 0o777, 0o600, name);
  });
});
