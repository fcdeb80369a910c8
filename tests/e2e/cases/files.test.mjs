// Field cases, group "Files", as far as the routes exist. The confinement to a root (B083) is in ../safety.test.mjs.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { open, readFile, readdir, stat } from 'node:fs/promises';
import { ASAN, full, group, memory, times } from '../lib/door.mjs';
import { get, gone, serverPid, until } from '../lib/server.mjs';

const sha = b => createHash('sha256').update(b).digest('hex');
const pattern = n => { const b = Buffer.alloc(n); for (let i = 0; i < n; i++) b[i] = (i * 31 + (i >> 8)) & 255; return b; };

group('files', {}, ({ both, plain }) => {
  both('B079', 'files of every size are there, whole, when the write has been answered', async (d, s) => {
    const sizes = [0, 1, 4095, 4096, 18433, 65536, 1 << 20, ...full([8 << 20], [])]; // base64 in one message of at most 16 MiB
    for (const size of sizes) {
      const data = pattern(size), f = `${s.workspace}/b079-${d.name}-${size}`;
      const w = await d.post('/api/write', { path: f, content: data.toString('base64'), encoding: 'base64' });
      assert.equal(w.status, 200, JSON.stringify(w.body));
      assert.equal(sha(await readFile(f)), sha(data));
      const r = (await d.post('/api/read', { path: f, encoding: 'base64' })).body;
      assert.deepEqual([r.size, sha(Buffer.from(r.content, 'base64'))], [size, sha(data)]);
    }
  });

  plain('B079', '[http] raw bodies', async s => {
    for (const size of [0, 1, 4096, 65537, (32 << 20) + 1, ...full([100 << 20], [])]) {
      const data = pattern(size), f = `${s.workspace}/b079-raw-${size}`, url = `${s.base}/api/files/raw?path=${f}`;
      const w = await fetch(url, { method: 'PUT', body: data, headers: { 'X-Checksum-Sha256': sha(data) } });
      assert.ok(w.ok, await w.text());
      assert.deepEqual([(await stat(f)).size, sha(await readFile(f))], [size, sha(data)]);
      assert.equal(sha(Buffer.from(await (await fetch(url)).arrayBuffer())), sha(data));
    }
  });

  both('B082', 'bytes that are no text come back as they were, and are flagged', async (d, s) => {
    const data = Buffer.alloc(256 * 1000, Buffer.from(times(256, i => i))), f = `${s.workspace}/b082-${d.name}`;
    await d.post('/api/write', { path: f, content: data.toString('base64'), encoding: 'base64' });
    const r = (await d.post('/api/read', { path: f })).body;
    assert.deepEqual([r.isBinary, r.encoding, sha(Buffer.from(r.content, 'base64'))], [true, 'base64', sha(data)]);
    const st = d.stream('/api/read/stream', { path: f });
    await st.done;
    assert.equal(sha(Buffer.concat(st.events.filter(e => e.type === 'chunk').map(e => Buffer.from(e.data, 'base64')))), sha(data));
  });

  both('B084', 'mode as asked for; by default the umask; a file that is there keeps its own', async (d, s) => {
    const f = `${s.workspace}/b084-${d.name}`, mode = async () => ((await stat(f)).mode & 0o7777).toString(8);
    assert.equal((await d.post('/api/write', { path: f, content: 'x' })).status, 200);
    assert.equal(await mode(), '644');
    assert.equal((await d.post('/api/files/chmod', { path: f, mode: '0750' })).status, 200);
    assert.equal((await d.post('/api/write', { path: f, content: 'y' })).status, 200);
    assert.equal(await mode(), '750', 'it keeps its mode');
    assert.equal((await d.post('/api/write', { path: f, content: 'z', mode: '0755' })).status, 200);
    assert.equal(await mode(), '755');
    if (process.getuid() === 0) {
      assert.equal((await d.post('/api/files/chown', { path: f, uid: 1000, gid: 1000 })).status, 200);
      const st = await stat(f);
      assert.deepEqual([st.uid, st.gid], [1000, 1000]);
    }
  });

  both('B086', '580 small files at once', async (d, s) => {
    const all = await Promise.all(times(580, i => d.post('/api/write', { path: `${s.workspace}/b086-${d.name}/${i % 20}/${i}`, content: 'file ' + i })));
    for (const r of all) assert.equal(r.status, 200);
    for (let i = 0; i < 580; i += 29) assert.equal(await readFile(`${s.workspace}/b086-${d.name}/${i % 20}/${i}`, 'utf8'), 'file ' + i);
  });

  both('B086', '580 small files in one batch, a status for each', async (d, s) => {
    const dir = `${s.workspace}/b086-batch-${d.name}`;
    await d.post('/api/write', { path: `${dir}/blocked`, content: 'a file' });
    const at = i => (i % 100 === 99 ? `${dir}/blocked/${i}` : `${dir}/${i % 20}/${i}`); // every hundredth cannot be
    const r = await d.post('/api/files/batch', { operations: times(580, i => ({ path: '/api/write', body: { path: at(i), content: 'file ' + i } })) });
    assert.equal(r.status, 200, JSON.stringify(r.body).slice(0, 300));
    assert.deepEqual(r.body.results.map(x => x.status === 200), times(580, i => i % 100 !== 99));
    assert.deepEqual([r.body.failed, r.body.results[99].body.code], [5, 'FILESYSTEM_ERROR']);
    for (let i = 0; i < 580; i++) if (i % 100 !== 99) assert.equal(await readFile(at(i), 'utf8'), 'file ' + i);
    const back = await d.post('/api/files/batch', { operations: times(580, i => ({ path: '/api/read', body: { path: at(i), encoding: 'utf-8' } })) });
    assert.deepEqual(back.body.results.map(x => x.body.content ?? x.status), times(580, i => (i % 100 === 99 ? 404 : 'file ' + i)));
  });

  both('B088', 'a large copy that is cut goes on at the offset that the server names, also a new one', async (d, s) => {
    const data = pattern(full(500 << 20, 3 << 20)), f = `${s.workspace}/b088-${d.name}`, id = 'b088-' + d.name, step = full(4 << 20, 256 << 10);
    const send = (door, at) => door.post('/api/write', { path: f, uploadId: id, offset: at, final: at + step >= data.length,
      content: data.subarray(at, at + step).toString('base64'), encoding: 'base64' });
    let at = 0, door = d, last;
    for (let n = 0; at < data.length; n++) {
      if (n === 3) { // the connection goes, the reply with it
        send(door, at).catch(() => {});
        door.cut();
        const pid = await serverPid(s);
        process.kill(pid, 'SIGKILL');
        await gone(pid);
        const st = await until(() => get(s, '/api/files/upload/' + id).catch(() => null), 'the next server');
        assert.equal(st.status, 200, JSON.stringify(st.body));
        assert.deepEqual([st.body.path, st.body.complete], [f, false]);
        assert.ok(st.body.size >= at, 'what was acknowledged is there');
        door = await d.another();
        at = st.body.size;
      }
      last = await send(door, at);
      assert.equal(last.status, 200, JSON.stringify(last.body));
      at = last.body.size;
      if (n === 1) { // the same piece again: told where to go on
        const again = await send(door, 0);
        assert.equal(again.status, 409);
        if (d.name === 'http') assert.deepEqual([again.body.code, again.body.context.size], ['OFFSET_CONFLICT', at]);
        await assert.rejects(stat(f), { code: 'ENOENT' });
      }
    }
    assert.deepEqual([last.body.complete, last.body.size], [true, data.length]);
    assert.equal(sha(await readFile(f)), sha(data));
    assert.deepEqual((await readdir(s.workspace)).filter(n => n.startsWith('.conflux-')), []);
    if (door !== d) await door.close();
  });

  both('B087', 'a part of a huge file is read alone', async (d, s) => {
    const f = `${s.workspace}/b087-${d.name}`, size = 10 * 2 ** 30, server = await serverPid(s);
    const h = await open(f, 'w');
    await h.truncate(size);
    await h.write('the end', size - 7);
    await h.close();
    const before = await memory(server);
    const r = (await d.post('/api/read', { path: f, offset: size - 7, limit: 1 << 20, encoding: 'base64' })).body;
    assert.equal(Buffer.from(r.content, 'base64').toString(), 'the end', JSON.stringify(r).slice(0, 300));
    const m = (await d.post('/api/read', { path: f, offset: 5 * 2 ** 30, limit: 1 << 20, encoding: 'base64' })).body;
    assert.equal(Buffer.from(m.content, 'base64').length, 1 << 20);
    if (!ASAN) assert.ok(await memory(server) - before < 32);
  });
});
