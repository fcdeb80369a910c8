// The command line's file commands, and what a terminal may be shown.
import { describe, test } from 'node:test';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, readFile, readdir, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ALL_BYTES, environment, exec, json, lines, ok, sha, shared } from './lib/cli.mjs';
import { BIN, until } from './lib/server.mjs';

const t = shared(), { c } = t;

describe('files', () => {
  const remote = name => path.join(t.s.workspace, name);

  test('write and read, exact, with permissions; append', async () => {
    ok(await c(['write', 'new/folder/all', '--perm', '640'], { input: ALL_BYTES }));
    assert.equal(Buffer.compare(await readFile(remote('new/folder/all')), ALL_BYTES), 0);
    assert.equal((await stat(remote('new/folder/all'))).mode & 0o777, 0o640);
    assert.equal(Buffer.compare((await c(['read', 'new/folder/all'])).out, ALL_BYTES), 0);
    ok(await c(['write', 'log'], { input: 'a' }));
    ok(await c(['write', '--append', 'log'], { input: 'b' }));
    assert.equal(ok(await c(['read', 'log', 'log'])), 'abab');
    ok(await c(['write', 'empty'], { input: '' }));
    assert.equal((await stat(remote('empty'))).size, 0);
    assert.equal(ok(await c(['read', 'empty'])), '');
    assert.match(ok(await c(['read', '/proc/self/status'])), /^Name:/);
    assert.deepEqual(json(await c(['read', '--json', 'log'])).map(x => [x.content, x.size]), [['ab', 2]]);
    const r = await c(['read', 'nowhere']);
    assert.deepEqual([r.code, r.stdout], [1, '']);
    assert.match(r.stderr, /nowhere.*FILE_NOT_FOUND/);
  });

  test('ls, stat, find, grep', async () => {
    await mkdir(remote('look/sub'), { recursive: true });
    await writeFile(remote('look/b'), 'second\nneedle here\n');
    await writeFile(remote('look/a'), 'x');
    await writeFile(remote('look/.hidden'), '');
    await writeFile(remote('look/sub/c.txt'), 'a needle');
    await symlink('a', remote('look/link'));
    assert.equal(ok(await c(['ls', 'look'])), 'a\nb\nlink\nsub\n');
    assert.equal(ok(await c(['ls', '-a', '-r', 'look'])), '.hidden\na\nb\nlink\nsub\nsub/c.txt\n');
    assert.match(ok(await c(['ls', '-l', 'look/sub'])), /^-rw-r--r-- +8 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +c\.txt\n$/);
    assert.equal(ok(await c(['ls', 'look/b'])), 'look/b\n');
    assert.match(ok(await c(['stat', 'look/link'])), /look\/link -> a\n +symlink/);
    assert.match(ok(await c(['stat', '-L', 'look/link'])), /file of 1 bytes/);
    assert.equal(ok(await c(['find', 'look', '-g', '**/*.txt'])), 'look/sub/c.txt\n');
    assert.deepEqual(lines(ok(await c(['grep', 'needle', 'look']))).sort(), ['look/b:2:needle here', 'look/sub/c.txt:1:a needle']);
    assert.deepEqual(lines(ok(await c(['grep', '-E', '^n.*e$', 'look']))), ['look/b:2:needle here']);
    const none = await c(['grep', 'nowhere to be found', 'look']);
    assert.deepEqual([none.code, none.stdout], [1, '']);
    assert.equal(json(await c(['ls', '--json', 'look']))[0].count, 4);
    assert.equal(json(await c(['stat', '--json', 'look/a']))[0].size, 1);
    assert.deepEqual(json(await c(['grep', '--json', 'needle', 'look'])).map(e => e.type).sort(), ['complete', 'match', 'match']);
    assert.equal((await c(['ls', 'nowhere'])).code, 1);
  });

  test('relative paths start in the session\'s folder', async () => {
    ok(await c(['exec', '-s', 'F', '-c', `mkdir -p ${remote('sess')} && cd ${remote('sess')}`]));
    ok(await c(['write', '-s', 'F', 'here'], { input: 'x' }));
    assert.equal(await readFile(remote('sess/here'), 'utf8'), 'x');
    ok(await c(['cp', '-s', 'F', 'remote:here', path.join(t.dir, 'from-session')]));
    assert.equal(await readFile(path.join(t.dir, 'from-session'), 'utf8'), 'x');
  });

  test('cp: a file there and back, with its permissions, to names and into folders', async () => {
    const data = randomBytes(7 << 20), local = path.join(t.dir, 'data');
    await writeFile(local, data);
    await chmod(local, 0o750);
    await mkdir(remote('into'), { recursive: true });
    ok(await c(['cp', local, 'remote:copy']));
    assert.equal(sha(await readFile(remote('copy'))), sha(data));
    assert.equal((await stat(remote('copy'))).mode & 0o777, 0o750);
    ok(await c(['cp', local, 'remote:into']));
    ok(await c(['cp', 'remote:copy', `${t.dir}/back`]));
    assert.equal(sha(await readFile(`${t.dir}/back`)), sha(data));
    assert.equal((await stat(`${t.dir}/back`)).mode & 0o777, 0o750);
    await mkdir(`${t.dir}/several`);
    ok(await c(['cp', 'remote:copy', 'remote:into/data', `${t.dir}/several`]));
    assert.deepEqual((await readdir(`${t.dir}/several`)).sort(), ['copy', 'data']);
    ok(await c(['cp', 'remote:copy', 'remote:third']));
    assert.equal(sha(await readFile(remote('third'))), sha(data));
    await rm(remote('copy'));
    ok(await c(['cp', local, 'remote:copy'])); // the upload that is complete is not taken for this one
    assert.equal(sha(await readFile(remote('copy'))), sha(data));
    for (const [args, what, code] of [[['cp', local, `${t.dir}/x`], /neither/, 125], [['cp', 'remote:nowhere', t.dir], /there is no nowhere/, 1],
      [['cp', `${t.dir}/nowhere`, 'remote:x'], /there is no/, 125], [['cp', local, local, 'remote:copy'], /no folder/, 125]]) {
      const r = await c(args);
      assert.equal(r.code, code, r.stderr);
      assert.match(r.stderr, what);
    }
  });

  test('cp: a link is written through, and a device is not replaced', async () => {
    await writeFile(path.join(t.dir, 'behind'), 'old');
    await symlink('behind', path.join(t.dir, 'through'));
    ok(await c(['write', 'small'], { input: 'new' }));
    ok(await c(['cp', 'remote:small', path.join(t.dir, 'through')]));
    assert.equal(await readFile(path.join(t.dir, 'behind'), 'utf8'), 'new');
    assert.equal(await readlink(path.join(t.dir, 'through')), 'behind');
    const fifo = path.join(t.dir, 'fifo');
    await exec('mkfifo', [fifo]);
    const [copied, text] = await Promise.all([c(['cp', 'remote:small', fifo]), readFile(fifo, 'utf8')]);
    ok(copied);
    assert.equal(text, 'new');
    const [sent] = await Promise.all([c(['cp', fifo, 'remote:from-fifo']), writeFile(fifo, 'piped')]);
    ok(sent);
    assert.equal(await readFile(remote('from-fifo'), 'utf8'), 'piped');
  });

  test('cp: on a terminal it tells how far it is', async ctx => {
    const fifo = path.join(t.dir, 'slow');
    await exec('mkfifo', [fifo]);
    const child = spawn('script', ['-qec', `${BIN} cp ${fifo} remote:slow`, '/dev/null'], { env: { ...environment(t.s), TERM: 'dumb' } });
    const missing = await new Promise(resolve => { child.on('error', () => resolve(true)); child.on('spawn', () => resolve(false)); });
    if (missing) return ctx.skip('script(1) is not installed');
    let seen = '';
    child.stdout.on('data', d => { seen += d; });
    const writer = spawn('sh', ['-c', `cat >${fifo}`]);
    const piece = Buffer.alloc(2 << 20);
    await until(async () => { // pieces, until one of them was told of
      await new Promise(resolve => writer.stdin.write(piece, resolve));
      return /slow [\d.]+ MiB, [\d.]+ \w+\/s/.test(seen);
    }, 'the line');
    writer.stdin.end();
    assert.equal(await new Promise(resolve => child.on('close', resolve)), 0);
    assert.ok(seen.endsWith('\r\x1b[K'));
  });

  test('cp: a folder there and back is the same tree', async () => {
    const from = path.join(t.dir, 'folder');
    await mkdir(`${from}/deep/er`, { recursive: true });
    await mkdir(`${from}/empty`);
    await mkdir(`${from}/closed`);
    await writeFile(`${from}/deep/er/all`, ALL_BYTES);
    await writeFile(`${from}/large`, randomBytes(5 << 20));
    await writeFile(`${from}/${'n'.repeat(200)}ü`, 'long name');
    await writeFile(`${from}/.hidden`, 'h');
    await writeFile(`${from}/program`, '#!/bin/sh\n');
    await writeFile(`${from}/closed/file`, 'c');
    for (let i = 0; i < 300; i++) await writeFile(`${from}/deep/${i}`, randomBytes(30000));
    await symlink('er/all', `${from}/deep/link`);
    await chmod(`${from}/program`, 0o755);
    await chmod(`${from}/closed`, 0o555);
    ok(await c(['cp', from, 'remote:tree']));
    await exec('diff', ['-r', '--no-dereference', from, remote('tree')]);
    assert.equal((await stat(remote('tree/program'))).mode & 0o777, 0o755);
    assert.equal((await stat(remote('tree/closed'))).mode & 0o777, 0o555);
    ok(await c(['cp', 'remote:tree', `${t.dir}/again`]));
    await exec('diff', ['-r', '--no-dereference', from, `${t.dir}/again`]);
    ok(await c(['cp', '-z', 'remote:tree', `${t.dir}/zipped/`]));
    await exec('diff', ['-r', '--no-dereference', from, `${t.dir}/zipped/tree`]);
    ok(await c(['cp', from, 'remote:tree'])); // now it is there: into it
    assert.ok((await stat(remote('tree/folder/large'))).isFile());
    await chmod(`${from}/closed`, 0o755);
  });

  test('cp: links that lead out are left out, and said to be', async () => {
    const from = path.join(t.dir, 'links');
    await mkdir(`${from}/sub`, { recursive: true });
    await writeFile(`${from}/file`, 'f');
    await symlink('../file', `${from}/sub/inside`);
    await symlink('/etc/passwd', `${from}/absolute`);
    await symlink('../../outside', `${from}/sub/above`);
    const r = await c(['cp', from, 'remote:links']);
    assert.equal(r.code, 125);
    assert.match(r.stderr, /left out .*absolute/);
    assert.match(r.stderr, /left out .*sub\/above/);
    assert.equal(lines(r.stderr).length, 2);
    assert.deepEqual(await readdir(remote('links/sub')), ['inside']);
  });
});

describe('a terminal cannot be driven by names and texts', () => {
  const evil = 'a\x1b]0;owned\x07\x9b31m\u202eb';

  test('in errors', async () => {
    const r = await c(['read', evil]);
    assert.equal(r.code, 1);
    assert.doesNotMatch(r.stderr, /[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]/);
    assert.match(r.stderr, /a\\x1b]0;owned\\x07/);
  });

  test('in lists, on a terminal; elsewhere they are as they are', async ctx => {
    await mkdir(path.join(t.s.workspace, 'evil'), { recursive: true });
    await writeFile(path.join(t.s.workspace, 'evil', evil), '');
    assert.equal(ok(await c(['ls', 'evil'])), `${evil}\n`);
    ok(await c(['exec', '-c', `: '${evil}'`]));
    for (const args of [['ls', 'evil'], ['ls', '-l', 'evil'], ['ls', '--json', 'evil'], ['find', 'evil'], ['ps']]) {
      const command = `${BIN} ${args.join(' ')}`;
      let r;
      try { r = await exec('script', ['-qec', command, '/dev/null'], { env: { ...environment(t.s), TERM: 'dumb' } }); } catch (e) {
        if (e.code === 'ENOENT') return ctx.skip('script(1) is not installed');
        throw e;
      }
      assert.match(r.stdout, /owned/);
      assert.doesNotMatch(r.stdout, /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]/, args.join(' '));
    }
  });
});
