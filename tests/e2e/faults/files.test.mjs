// Trees and folders that are deeper, longer or more than was thought of.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, chown, constants, mkdir, mkdtemp, open, readFile, readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { ASAN, OFF, group, memory } from '../lib/door.mjs';
import { gone, post, serverPid, start, until } from '../lib/server.mjs';

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

const recorded = async s => (await readdir(path.join(s.dir, 'state'))).filter(n => n.startsWith('temps-'));
// The server stands still with a temporary of its own in dir: in the middle of it. False: the work was over before.
async function freeze(pid, dir, over) {
  while (!over.is) {
    process.kill(pid, 'SIGSTOP');
    await until(async () => /^\d+ \(.*\) [Tt]/s.test(await readFile(`/proc/${pid}/stat`, 'utf8')), 'the server to stand still');
    if ((await staged(dir)).length) return true;
    process.kill(pid, 'SIGCONT');
    await new Promise(setImmediate);
  }
  return false;
}
// The keeper starts the next one.
async function dies(s, pid) {
  process.kill(pid, 'SIGKILL');
  await gone(pid);
  await until(async () => (await fetch(s.base + '/readyz').catch(() => null))?.ok, 'the next server');
}
async function nothingOfOurs(s, dir) {
  await until(async () => !(await staged(dir)).length, 'our temporary files to be removed');
  await until(async () => !(await recorded(s)).length, 'the record to be removed');
}
// A request whose body is sent to its half, and no further.
async function half(s, route, body, dir) {
  const req = http.request(s.base + route, { method: 'PUT', agent: false, headers: { 'Content-Length': 2 * body.length } });
  req.on('error', () => {});
  req.write(body);
  await until(async () => {
    for (const n of await staged(dir)) if ((await stat(path.join(dir, n)).catch(() => ({ size: 0 }))).size > 0) return true;
  }, 'a temporary file with content');
  return req;
}
const many = (dir, n, text) => execFileSync(process.execPath, ['-e',
  'const fs = require("fs"); for (let i = 0; i < +process.argv[1]; i++) fs.writeFileSync("f" + i, process.argv[2]);', n, text], { cwd: dir });
const raw = file => `/api/files/raw?path=${encodeURIComponent(file)}`;
// A header of one file, of 8 MiB, and the first of its bytes.
function tarBegin(name, size, sent) {
  const h = Buffer.alloc(512);
  h.write(name, 0);
  h.write('0000644\0' + '0000000\0' + '0000000\0', 100);
  h.write(size.toString(8).padStart(11, '0') + '\0' + '00000000000\0' + '        ' + '0', 124);
  h.write('ustar\0' + '00', 257);
  h.write(h.reduce((a, b) => a + b).toString(8).padStart(6, '0') + '\0 ', 148);
  return Buffer.concat([h, Buffer.alloc(sent, 'x')]);
}

group('a server that is killed', {}, ({ both, plain }) => {
  plain('X14', 'in a PUT: the old file is whole, and nothing of ours stays beside it', async s => {
    const dir = `${s.workspace}/put-killed`;
    await mkdir(dir);
    await writeFile(`${dir}/old`, 'old');
    for (const name of ['old', 'new']) {
      await half(s, raw(`${dir}/${name}`), Buffer.alloc(256 * 1024, 'x'), dir);
      await dies(s, await serverPid(s));
      await nothingOfOurs(s, dir);
      assert.deepEqual([await readdir(dir), await readFile(`${dir}/old`, 'utf8')], [['old'], 'old'], name);
    }
  });

  plain('X14', 'while it unpacks an archive: what is unpacked is whole, and nothing of ours stays', async s => {
    const dir = `${s.workspace}/unpack-killed`;
    await mkdir(dir);
    await writeFile(`${dir}/file`, 'old');
    await half(s, `/api/files/archive?path=${encodeURIComponent(dir)}`, tarBegin('file', 8 << 20, 256 * 1024), dir);
    await dies(s, await serverPid(s));
    await nothingOfOurs(s, dir);
    assert.deepEqual([await readdir(dir), await readFile(`${dir}/file`, 'utf8')], [['file'], 'old']);
  });

  both('X14', 'while it copies a tree, to a new name and over another: nothing of ours stays, and each file is whole', async (d, s) => {
    for (const overwrite of [false, true]) {
      const dir = `${s.workspace}/copy-${d.name}-${overwrite}`, tree = `${dir}/tree`, copy = `${dir}/to/tree`, beside = overwrite ? copy : `${dir}/to`;
      await mkdir(`${tree}/closed`, { recursive: true });
      await chmod(`${tree}/closed`, 0o555);
      for (let files = 1000, held = false; !held; files *= 2) {
        assert.ok(files <= 64000, 'no copy was slow enough to be held');
        clear(`${dir}/to`);
        await mkdir(beside, { recursive: true });
        many(tree, files, 'new');
        if (overwrite) many(copy, files, 'old');
        const door = await d.another(), over = { is: false };
        const answer = door.post('/api/files/copy', { source: tree, destination: `${dir}/to`, recursive: true, overwrite })
          .catch(() => {}).finally(() => { over.is = true; });
        const pid = await serverPid(s);
        held = await freeze(pid, beside, over);
        if (held) await dies(s, pid);
        await answer;
        await door.close();
      }
      await nothingOfOurs(s, beside);
      assert.deepEqual(await readdir(`${dir}/to`), overwrite ? ['tree'] : []);
      if (overwrite) for (const n of (await readdir(copy)).filter(n => n !== 'closed')) assert.match(await readFile(path.join(copy, n), 'utf8'), /^(old|new)$/);
      clear(dir);
    }
  });

  both('X14', 'between the pieces of an upload: it goes on, and nothing of ours stays when it is whole', async (d, s) => {
    const dir = `${s.workspace}/upload-${d.name}`, uploadId = `x14-${d.name}`;
    const piece = (door, rest) => door.post('/api/write', { path: `${dir}/file`, uploadId, ...rest });
    await mkdir(dir);
    await writeFile(`${dir}/file`, 'old');
    const before = await d.another();
    assert.equal((await piece(before, { content: 'one', offset: 0 })).status, 200);
    await dies(s, await serverPid(s));
    await before.close();
    const [temp] = await staged(dir);
    assert.deepEqual([await readFile(path.join(dir, temp), 'utf8'), await readFile(`${dir}/file`, 'utf8')], ['one', 'old']);
    const next = await d.another();
    const r = await piece(next, { content: 'two', offset: 3, final: true });
    assert.equal(r.status, 200, JSON.stringify(r.body));
    await next.close();
    assert.deepEqual([await readdir(dir), await readFile(`${dir}/file`, 'utf8')], [['file'], 'onetwo']);
  });
});

// Keeper and server at once: what is left is for whoever starts next with this state folder.
async function allDie(s) {
  const pid = await serverPid(s);
  for (const p of [s.child.pid, pid]) process.kill(p, 'SIGKILL');
  await s.exit;
  await gone(pid);
}

test('X14 keeper and server are killed: the next start removes what they have left, sockets and FIFOs of sessions too', async () => {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-e2e-')), target = path.join(dir, 'workspace');
  try {
    let s = await start({ dir });
    await writeFile(`${target}/old`, 'old');
    await half(s, raw(`${target}/old`), Buffer.alloc(256 * 1024, 'x'), target);
    assert.equal((await post(s, '/api/session/create', { id: 'one' })).status, 200);
    assert.equal((await post(s, '/api/execute', { command: 'echo', sessionId: 'one' })).status, 200);
    const [token] = await readdir(`${dir}/state/sessions`);
    assert.ok((await readdir(`${dir}/state/sessions/${token}`)).includes('s'));
    assert.ok((await readdir('/dev/shm')).includes(`conflux-record-${token}`));
    await writeFile(`${dir}/state/.conflux-spill-abcdef`, 'of an answer'); // where files without a name cannot be made
    await allDie(s);
    assert.equal((await staged(target)).length, 1);
    s = await start({ dir });
    await nothingOfOurs(s, target);
    assert.deepEqual(await readdir(`${dir}/state/sessions`), []);
    assert.ok(!(await readdir('/dev/shm')).includes(`conflux-record-${token}`));
    await until(async () => !(await staged(`${dir}/state`)).length, 'the answer to be removed');
    assert.deepEqual([await readdir(target), await readFile(`${target}/old`, 'utf8')], [['old'], 'old']);
    await s.stop();
    assert.deepEqual(await recorded(s), []);
  } finally { clear(dir); }
});

group('what is no file', {}, ({ plain }) => {
  plain('X03', 'a pipe is not opened by whoever asks to read it: its writer goes on waiting for its reader', async s => {
    const pipe = `${s.workspace}/pipe`, q = encodeURIComponent(pipe);
    execFileSync('mkfifo', [pipe]);
    const writer = spawn('sh', ['-c', 'printf data > "$0"', pipe]), ended = once(writer, 'exit');
    await until(async () => (await readFile(`/proc/${writer.pid}/stat`, 'utf8')).includes(') S '), 'a writer that waits');
    for (const [p, body] of [['/api/read', { path: pipe }], ['/api/read/stream', { path: pipe }], ['/api/files/grep', { path: pipe, pattern: 'd' }],
      ['/api/files/replace', { path: pipe, edits: [{ old: 'd', new: 'e' }] }], [`/api/files/raw?path=${q}`], [`/api/files/archive?path=${q}`]]) {
      const r = await fetch(s.base + p, body && { method: 'POST', body: JSON.stringify({ ...body, sessionId: OFF }) });
      assert.match(await r.text(), /regular file/i, p);
    }
    const reader = await open(pipe, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      assert.deepEqual(await ended, [0, null]);
      assert.equal((await reader.read(Buffer.alloc(8), 0, 8)).buffer.toString('utf8', 0, 4), 'data');
    } finally { await reader.close(); }
  });
});

test('X14 --child-user: what was made as that user is removed, also by a start without it', { skip: process.getuid() !== 0 }, async () => {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-e2e-')), target = path.join(dir, 'workspace');
  const shared = () => readdir('/dev/shm').then(all => all.filter(n => /^conflux-[0-9a-f]{8}$/.test(n)));
  try {
    const others = await shared();
    await chmod(dir, 0o755);
    await mkdir(target);
    await chown(target, 65534, 65534);
    for (const again of [['--child-user', 'nobody'], []]) {
      let s = await start({ dir, args: ['--child-user', 'nobody'] });
      await half(s, raw(`${target}/new`), Buffer.alloc(256 * 1024, 'x'), target);
      assert.equal((await stat(path.join(target, (await staged(target))[0]))).uid, 65534);
      assert.equal((await post(s, '/api/session/create', { id: 'one' })).status, 200);
      await allDie(s);
      const [folder] = (await shared()).filter(n => !others.includes(n));
      assert.equal((await readdir(`/dev/shm/${folder}`)).length, 1);
      s = await start({ dir, args: again });
      await nothingOfOurs(s, target);
      assert.deepEqual(await readdir(target), []);
      if (again.length) assert.deepEqual(await readdir(`/dev/shm/${folder}`), []);
      else assert.ok(!(await shared()).includes(folder));
      await s.stop();
      assert.ok(!(await shared()).includes(folder));
    }
  } finally { clear(dir); }
});
