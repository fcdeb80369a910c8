// GET and PUT /api/files/archive, judged by the system's tar and gzip where that is there.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { chmod, lstat, mkdir, readFile, readdir, readlink, symlink, truncate, utimes, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { connect } from 'node:net';
import { gunzipSync, gzipSync } from 'node:zlib';
import { ASAN, group, memory } from './lib/door.mjs';
import { serverPid } from './lib/server.mjs';

const tar = (args, input) => execFileSync('tar', args, { input, maxBuffer: 1 << 28 });
const noTar = spawnSync('tar', ['--version']).error ? 'there is no tar' : false;
const long = 'n'.repeat(200);

async function tree(root) {
  await mkdir(`${root}/sub/${long}/empty`, { recursive: true });
  await writeFile(`${root}/text`, 'hello\n');
  await writeFile(`${root}/sub/big`, Buffer.alloc(3 << 20, 'big '));
  await writeFile(`${root}/sub/${long}/${long}`, 'deep');
  await writeFile(`${root}/.hidden`, '');
  await chmod(`${root}/text`, 0o751);
  await utimes(`${root}/text`, 1e9, 1e9);
  await symlink('../text', `${root}/sub/link`);
}
async function same(a, b) {
  assert.deepEqual((await readdir(a)).sort(), (await readdir(b)).sort());
  for (const n of await readdir(a)) {
    const x = await lstat(`${a}/${n}`), y = await lstat(`${b}/${n}`);
    assert.equal(x.mode, y.mode, n);
    if (x.isDirectory()) await same(`${a}/${n}`, `${b}/${n}`);
    else if (x.isSymbolicLink()) assert.equal(await readlink(`${a}/${n}`), await readlink(`${b}/${n}`));
    else assert.deepEqual([Math.floor(x.mtimeMs / 1000), (await readFile(`${a}/${n}`)).equals(await readFile(`${b}/${n}`))], [Math.floor(y.mtimeMs / 1000), true], n);
  }
}
// fetch undoes gzip by itself; this does not.
const raw = (url, headers) => new Promise((resolve, reject) => {
  http.get(url, { headers }, res => {
    const parts = [];
    res.on('data', d => parts.push(d)).on('error', reject).on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: Buffer.concat(parts) }));
  }).on('error', reject);
});

group('archive', {}, ({ plain, both }) => {
  const url = (s, path) => `${s.base}/api/files/archive?path=${encodeURIComponent(path)}`;
  const put = async (s, path, body) => { const r = await fetch(url(s, path), { method: 'PUT', body }); return { status: r.status, body: await r.json() }; };

  plain('archive', 'what is packed is unpacked by tar, and the other way round', async s => {
    const from = `${s.workspace}/from`, to = `${s.workspace}/to`, back = `${s.workspace}/back/new`;
    await tree(from);
    await mkdir(to);
    const plain = await raw(url(s, from), { 'Accept-Encoding': 'br, gzip;q=0' });
    assert.deepEqual([plain.status, plain.headers['content-type'], plain.headers['content-encoding']], [200, 'application/x-tar', undefined]);
    const zipped = await raw(url(s, from), { 'Accept-Encoding': 'br;q=1.0, gzip;q=0.5' });
    assert.equal(zipped.headers['content-encoding'], 'gzip');
    assert.ok(zipped.body.length < plain.body.length / 10);
    assert.ok(gunzipSync(zipped.body).equals(plain.body));
    tar(['-xf', '-', '-C', to], plain.body);
    await same(from, to);
    for (const body of [plain.body, zipped.body, tar(['-cf', '-', '-C', from, '.']), tar(['-czf', '-', '--format=gnu', '-C', from, '.']), tar(['-cf', '-', '--format=pax', '-C', from, '.'])]) {
      const r = await put(s, back, body);
      assert.equal(r.status, 200, JSON.stringify(r.body));
      await same(from, back);
      assert.equal(r.body.bytes, 6 + (3 << 20) + 4);
    }
  }, { skip: noTar });

  plain('archive', 'one file, and what is not there', async s => {
    await writeFile(`${s.workspace}/one`, 'content');
    const r = await raw(url(s, `${s.workspace}/one`));
    assert.equal(tar(['-xOf', '-', 'one'], r.body).toString(), 'content');
    assert.equal((await raw(url(s, `${s.workspace}/none`))).status, 404);
    assert.equal((await raw(`${url(s, s.workspace)}&x=1`)).status, 400);
  }, { skip: noTar });

  plain('archive', 'to a client of HTTP/1.0 it ends with the connection; HEAD has no body, and the connection goes on', async s => {
    await writeFile(`${s.workspace}/old`, 'content');
    const ask = text => new Promise(resolve => {
      const parts = [], k = connect(Number(s.port), '127.0.0.1', () => k.write(text));
      k.on('data', d => parts.push(d)).on('close', () => resolve(Buffer.concat(parts).toString('latin1')));
    });
    const old = await ask(`GET /api/files/archive?path=${s.workspace}/old HTTP/1.0\r\nHost: localhost\r\n\r\n`);
    const [head, body] = [old.slice(0, old.indexOf('\r\n\r\n')), old.slice(old.indexOf('\r\n\r\n') + 4)];
    assert.ok(!/transfer-encoding|content-length/i.test(head) && body.length % 512 === 0 && body.includes('content'), head);
    const two = await ask(`HEAD /api/files/archive?path=${s.workspace}/old HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
    assert.deepEqual([two.match(/HTTP\/1\.1 200/g)?.length, two.includes('healthy'), two.includes('content\0')], [2, true, false], two);
  });

  plain('archive', 'an upload that is cut, damaged or no archive is refused with what it is', async s => {
    const all = (await raw(url(s, (await tree(`${s.workspace}/cut`), `${s.workspace}/cut`)))).body, to = `${s.workspace}/cut-to`;
    for (const [body, code] of [[all.subarray(0, 5000), 'ARCHIVE_INVALID'], [gzipSync(all).subarray(0, 500), 'ARCHIVE_INVALID'], [Buffer.alloc(600, 'x'), 'ARCHIVE_INVALID'],
      [Buffer.alloc(0), 'ARCHIVE_INVALID'], [Buffer.from([0x1f, 0x8b, 1, 2, 3]), 'ARCHIVE_INVALID']]) {
      const r = await put(s, to, body);
      assert.deepEqual([r.status, r.body.code], [400, code]);
    }
  });

  plain('archive', 'a folder that cannot be packed whole is a body without its end', async s => {
    // A path of more than 16 KiB; Node's own mkdir and rm take whole paths, which the kernel does not.
    await mkdir(`${s.workspace}/deep`);
    execFileSync(process.execPath, ['-e', 'for (let i = 0; i < 70; i++) { require("fs").mkdirSync("n".repeat(255)); process.chdir("n".repeat(255)); }'], { cwd: `${s.workspace}/deep` });
    await assert.rejects(raw(url(s, `${s.workspace}/deep`)));
    execFileSync('rm', ['-rf', `${s.workspace}/deep`]);
  });

  plain('archive', 'memory does not grow with what is packed', async s => {
    const pid = await serverPid(s);
    await mkdir(`${s.workspace}/large`);
    for (let i = 0; i < 8; i++) {
      await writeFile(`${s.workspace}/large/${i}`, '');
      await truncate(`${s.workspace}/large/${i}`, 64 << 20); // holes
    }
    await raw(url(s, `${s.workspace}/from-small`));
    const before = await memory(pid);
    const r = await raw(url(s, `${s.workspace}/large`), { 'Accept-Encoding': 'gzip' });
    assert.equal((await put(s, `${s.workspace}/large-too`, r.body)).body.bytes, 8 * (64 << 20));
    if (!ASAN) assert.ok(await memory(pid) - before < 8, `from ${before} to ${await memory(pid)} MB`);
  });

  both('archive', 'HTTP only', async (d, s) => {
    if (d.name === 'ws') assert.equal((await d.get(`/api/files/archive?path=${s.workspace}`)).status, 501);
  });
});
