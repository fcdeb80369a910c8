// The command line: every command of the real program, as a shell meets it.
import { after, before, describe, test } from 'node:test';
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { chmod, mkdir, mkdtemp, readFile, readdir, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { conflux, run } from './lib/cli.mjs';
import { ASAN } from './lib/door.mjs';
import { BIN, gone, start, until } from './lib/server.mjs';

const exec = promisify(execFile);
const ALL_BYTES = Buffer.from(Array.from({ length: 256 * 300 }, (_, i) => i & 255)); // in no piece at the same place
const lines = text => text.trim().split('\n');
const json = r => { assert.equal(r.code, 0, r.stderr); return lines(r.stdout).map(line => JSON.parse(line)); };
const sha = data => createHash('sha256').update(data).digest('hex');
const ok = r => { assert.deepEqual([r.code, r.signal], [0, null], r.stderr); return r.stdout; };

let s, dir;
before(async () => { s = await start(); dir = await mkdtemp(path.join(tmpdir(), 'conflux-cli-')); });
after(async () => { await s.stop(); await rm(dir, { recursive: true, force: true }); });
const c = (args, o) => run(s, args, o);

describe('exec', () => {
  test('its output is the command\'s, on both streams, and nothing else', async () => {
    const r = await c(['exec', '--', 'sh', '-c', 'echo out; echo err >&2']);
    assert.deepEqual([r.code, r.stdout, r.stderr], [0, 'out\n', 'err\n']);
  });

  for (const [status, ...command] of [
    [0, 'true'], [1, 'false'], [77, 'sh', '-c', 'exit 77'], [255, 'sh', '-c', 'exit 255'], [124, 'sh', '-c', 'exit 124'],
    [137, 'sh', '-c', 'kill -9 $$'], [143, 'sh', '-c', 'kill $$'], [127, 'no-such-program'], [126, '/etc/passwd'],
  ]) test(`status ${status} of ${command.join(' ')}`, async () => assert.equal((await c(['exec', '--', ...command])).code, status));

  test('a time-out is status 124, and ends the command', async () => {
    const child = conflux(s, ['exec', '--timeout', '200ms', '--', 'sh', '-c', 'echo $$; exec sleep 1000']);
    const r = await child.done;
    assert.equal(r.code, 124);
    await gone(Number(r.stdout));
  });

  for (const mode of ['websocket', 'http']) {
    test(`[${mode}] every byte value, in and out, on both streams`, async () => {
      const r = await c(['exec', '--mode', mode, '--', 'cat'], { input: ALL_BYTES });
      assert.equal(r.code, 0, r.stderr);
      assert.equal(Buffer.compare(r.out, ALL_BYTES), 0);
      const child = conflux(s, ['exec', '--mode', mode, '-c', 'cat >&2'], { input: ALL_BYTES });
      const parts = [];
      child.stderr.on('data', d => parts.push(d));
      await child.done;
      assert.equal(Buffer.compare(Buffer.concat(parts), ALL_BYTES), 0);
    });

    test(`[${mode}] output flows while input does, both larger than all buffers`, async () => {
      const data = randomBytes(24 << 20);
      const r = await c(['exec', '--mode', mode, '--', 'cat'], { input: data });
      assert.equal(r.code, 0, r.stderr);
      assert.equal(sha(r.out), sha(data));
    });

    test(`[${mode}] a command that reads slowly gets all of it`, async () => {
      const data = randomBytes(4 << 20);
      const r = await c(['exec', '--mode', mode, '-c', 'sleep 0.5; sha256sum'], { input: data });
      assert.equal(r.stdout.slice(0, 64), sha(data), r.stderr);
    });
  }

  test('tar c | conflux exec -- tar x: 64 MB, the same tree', async () => {
    const from = path.join(dir, 'tree'), to = path.join(s.workspace, 'tar');
    await mkdir(path.join(from, 'sub'), { recursive: true });
    await mkdir(to);
    await writeFile(path.join(from, 'big'), randomBytes(64 << 20));
    await writeFile(path.join(from, 'sub', 'all'), ALL_BYTES);
    await symlink('../big', path.join(from, 'sub', 'link'));
    const tar = spawn('tar', ['c', '-C', from, '.']);
    ok(await c(['exec', '--', 'tar', 'x', '-C', to], { input: tar.stdout }));
    for (const name of ['big', 'sub/all']) assert.equal(sha(await readFile(path.join(to, name))), sha(await readFile(path.join(from, name))));
    assert.equal(await readlink(path.join(to, 'sub/link')), '../big');
  });

  test('a command that reads nothing is not waited for', async () => {
    const child = conflux(s, ['exec', '--', 'true'], { input: 'open' });
    assert.equal((await child.done).code, 0);
  });

  test('what is behind the command that ends early is not read', async () => {
    const r = await exec('sh', ['-c', `{ ${BIN} exec -- head -n1; cat; } <<'X'\nfirst\nX\n`], { env: { ...process.env, CONFLUX_URL: s.base, XDG_CONFIG_HOME: '/nonexistent' } });
    assert.equal(r.stdout, 'first\n');
    const loop = await exec('sh', ['-c', `printf '1\\n2\\n' | while read -r n; do ${BIN} exec -n -- echo $n; done`], { env: { ...process.env, CONFLUX_URL: s.base, XDG_CONFIG_HOME: '/nonexistent' } });
    assert.equal(loop.stdout, '1\n2\n');
  });

  test('output comes as it is written', async () => {
    const child = conflux(s, ['exec', '--', 'cat'], { input: 'open' });
    for (let i = 0; i < 20; i++) {
      child.stdin.write(`turn ${i}\n`);
      await until(() => child.seen.endsWith(`turn ${i}\n`), `the answer to turn ${i}`);
    }
    child.stdin.end();
    assert.equal((await child.done).code, 0);
  });

  test('folder, variables and words arrive as they are', async () => {
    const word = 'a b\'"$HOME\\\n*ü';
    assert.equal((await c(['exec', '-C', '/', '-e', `X=${word}`, '-e', 'Y', '--', 'sh', '-c', 'pwd; printf %s "$X$Y$1"', 'sh', word], { env: { Y: 'why' } })).stdout, `/\n${word}why${word}`);
    assert.equal((await c(['exec', '--session', 'words', '--', 'printf', '%s|', word, ''])).stdout, `${word}||`);
  });

  test('options of the command are the command\'s', async () =>
    assert.equal((await c(['exec', 'printf', '%s %s', '--json', '-h'])).stdout, '--json -h'));

  test('a session keeps what its commands leave; beside its shell nothing stays', async () => {
    ok(await c(['exec', '-s', 'S', '-c', 'cd /; X=5; f() { echo f $X; }']));
    assert.equal(ok(await c(['exec', '-s', 'S', '--', 'pwd'])), '/\n');
    assert.equal(ok(await c(['exec', '-s', 'S', '-c', 'f'])), 'f 5\n');
    ok(await c(['exec', '-s', 'S', '--stream', '-c', 'X=6; cd /tmp']));
    assert.equal(ok(await c(['exec', '-s', 'S', '-c', 'echo $X; pwd'])), '5\n/\n');
    assert.equal(ok(await c(['exec', '-s', 'S', '--', 'cat'], { input: 'in a session' })), 'in a session');
    const child = conflux(s, ['exec', '-s', 'S', '-c', 'echo first; read -r x; echo $x'], { input: 'open' });
    await until(() => child.seen === 'first\n', 'output while it runs');
    child.stdin.end('second\n');
    assert.equal((await child.done).stdout, 'first\nsecond\n');
    const r = await c(['exec', '-s', 'S', '-c', 'exit 9']);
    assert.equal(r.code, 9);
    assert.match(r.stderr, /shell exited/);
  });

  test('closed descriptors are no trap', async () => {
    const status = async redirect => (await exec('sh', ['-c', `exec 3>&1; ${BIN} exec -- echo out ${redirect}; echo $? >&3`], { env: { ...process.env, CONFLUX_URL: s.base, XDG_CONFIG_HOME: '/nonexistent' } })).stdout;
    assert.equal(await status('<&-'), 'out\n0\n');
    assert.equal(await status('2>&-'), 'out\n0\n');
    assert.equal(await status('>&-'), '125\n');
  });

  test('a session\'s input over HTTP goes with the request, and is bounded', async () => {
    const r = await c(['exec', '-s', 'H', '--mode', 'http', '--', 'cat'], { input: ALL_BYTES });
    assert.equal(Buffer.compare(r.out, ALL_BYTES), 0, r.stderr);
    const data = randomBytes((16 << 20) + 1);
    const over = await c(['exec', '-s', 'H', '--mode', 'http', '--', 'sha256sum'], { input: data });
    assert.deepEqual([over.code, over.stdout], [125, '']);
    assert.match(over.stderr, /16 MiB/);
    assert.equal(ok(await c(['exec', '-s', 'H', '--mode', 'http', '--', 'sha256sum'], { input: data.subarray(1) })).slice(0, 64), sha(data.subarray(1)));
    assert.equal(ok(await c(['exec', '-s', 'H', '--stream', '--mode', 'http', '--', 'sha256sum'], { input: data })).slice(0, 64), sha(data));
  });

  test('the same id starts once', async () => {
    const file = path.join(dir, 'once');
    for (let i = 0; i < 2; i++) assert.equal(ok(await c(['exec', '--id', 'only.once', '-c', `echo x >>${file}; echo did`])), 'did\n');
    assert.equal(await readFile(file, 'utf8'), 'x\n');
    const other = await c(['exec', '--id', 'only.once', '--', 'true']);
    assert.equal(other.code, 125);
    assert.match(other.stderr, /EXECUTION_CONFLICT/);
  });

  test('--json: each event is a line', async () => {
    const events = json(await c(['exec', '--json', '-c', 'echo out; echo err >&2']));
    assert.equal(events[0].type, 'start');
    assert.deepEqual(events.filter(e => e.data).map(e => [e.type, e.data]).sort(), [['stderr', 'err\n'], ['stdout', 'out\n']]);
    assert.deepEqual([events.at(-1).type, events.at(-1).exitCode], ['complete', 0]);
    const exact = json(await c(['exec', '--json', '--base64', '--', 'printf', '\\377']));
    assert.equal(exact.find(e => e.type === 'stdout').data, '/w==');
  });

  test('closed stdout: it dies as cat would, and so does the command', async () => {
    const child = conflux(s, ['exec', '-c', 'echo $$; exec yes']);
    await until(() => child.seen.includes('\ny\n'), 'output');
    child.stdout.destroy();
    assert.equal((await child.done).signal, 'SIGPIPE');
    await gone(Number.parseInt(child.seen, 10));
  });

  test('closed stdout while input waits to be taken', async () => {
    const child = conflux(s, ['exec', '-c', 'echo $$; exec yes'], { input: randomBytes(4 << 20) });
    await until(() => child.seen.includes('\ny\n'), 'output');
    child.stdout.destroy();
    assert.equal((await child.done).signal, 'SIGPIPE');
    await gone(Number.parseInt(child.seen, 10));
  });

  test('a reader that rests: the command waits for it, memory stays small, and nothing is lost', async () => {
    const child = conflux(s, ['exec', '-c', 'seq 1 5000000; echo written >&2']);
    await new Promise(resolve => child.stdout.once('data', resolve));
    child.stdout.pause();
    ok(await c(['exec', '--', 'true'])); // others do not wait
    const rss = Number(/VmHWM:\s+(\d+)/.exec(await readFile(`/proc/${child.pid}/status`, 'utf8'))[1]);
    if (!ASAN) assert.ok(rss < 64 << 10, `${rss} KiB`);
    assert.equal(child.said, ''); // 38 MB are more than pipes, windows and sockets hold
    child.stdout.resume();
    const r = await child.done;
    const { stdout } = await exec('sh', ['-c', 'seq 1 5000000 | sha256sum']);
    assert.equal(sha(r.out), stdout.slice(0, 64));
  });

  test('Ctrl-C interrupts the command, with its descendants; its status counts', async () => {
    const child = conflux(s, ['exec', '-c', 'trap "echo caught; exit 42" INT; echo ready; while :; do sleep 0.05; done']);
    await until(() => child.seen === 'ready\n', 'the command');
    child.kill('SIGINT');
    const r = await child.done;
    assert.deepEqual([r.code, r.stdout], [42, 'ready\ncaught\n'], r.stderr);
  });

  test('Ctrl-C in a session: the command ends, and the session stays', async () => {
    ok(await c(['exec', '-s', 'C', '-c', 'X=1']));
    const child = conflux(s, ['exec', '-s', 'C', '-c', 'echo ready; sleep 1000']);
    await until(() => child.seen === 'ready\n', 'the command');
    child.kill('SIGINT');
    const r = await child.done;
    assert.equal(r.code, 130, r.stderr);
    assert.equal(ok(await c(['exec', '-s', 'C', '-c', 'echo still $X'])), 'still 1\n');
  });

  test('the second Ctrl-C leaves it; its id is told, and serves', async () => {
    const child = conflux(s, ['exec', '-c', 'trap "echo no" INT; echo $$; while :; do sleep 0.05; done']);
    await until(() => child.seen, 'the command');
    child.kill('SIGINT');
    await until(() => child.seen.includes('no\n'), 'the first');
    child.kill('SIGINT');
    const r = await child.done;
    assert.equal(r.code, 130);
    const id = /conflux kill (\S+)\)/.exec(r.stderr)[1];
    assert.match((await c(['logs', id])).stdout, /^\d+\nno\n/);
    assert.match(ok(await c(['kill', '--signal', 'KILL', id])), new RegExp(`killed.* ${Number.parseInt(r.stdout, 10)}\\b`));
    await gone(Number.parseInt(r.stdout, 10));
  });

  test('bad usage is 125 and says what is wrong', async () => {
    for (const [args, what] of [
      [['exec'], /there is no command/], [['exec', '--nope', 'x'], /no option --nope/], [['exec', '-t', 'soon', 'x'], /takes a time/],
      [['exec', '-e', '1X=2', 'x'], /NAME=VALUE/], [['exec', '-e', 'NOT_THERE_AT_ALL', 'x'], /no such variable/], [['exec', '--mode', 'pigeon', 'x'], /auto\|websocket\|http/],
      [['exec', '-c', 'x', 'y'], /exclude/], [['exec', '--user'], /needs a value/], [['exec', '--user', 'nobody-there', 'true'], /nobody-there/],
      [['ps', 'x'], /unexpected argument/], [['logs'], /usage: conflux logs/], [['kill'], /ids, or --all/], [['exec', '--url', 'ftp://x', 'true'], /must begin with http/],
    ]) {
      const r = await c(args);
      assert.equal(r.code, 125, `${args}: ${r.stderr}`);
      assert.match(r.stderr, what);
      assert.match(r.stderr, /^conflux: .*\n$/);
    }
  });
});

describe('processes', () => {
  test('run, ps, logs, wait', async () => {
    const go = path.join(dir, 'go');
    const id = ok(await c(['run', '-c', `echo one; while [ ! -e ${go} ]; do sleep 0.02; done; echo two; echo err >&2; exit 3`])).trim();
    assert.match(id, /^\S+$/);
    assert.equal(ok(await c(['wait', id, '--pattern', 'one'])), 'one\n');
    assert.match(ok(await c(['ps', '--status', 'running'])), new RegExp(`${id}.*running.*echo one`));
    const follow = conflux(s, ['logs', '-f', id]);
    await until(() => follow.seen === 'one\n', 'what there is');
    assert.equal((await c(['wait', id, '--timeout', '50ms'])).code, 124);
    await writeFile(go, '');
    const followed = await follow.done;
    assert.deepEqual([followed.code, followed.stdout, followed.stderr], [0, 'one\ntwo\n', 'err\n']);
    assert.equal(ok(await c(['wait', id])), '3\n');
    const r = await c(['logs', id]);
    assert.deepEqual([r.stdout, r.stderr], ['one\ntwo\n', 'err\n']);
    assert.equal((await c(['logs', '--from', '4', '--stream', 'stdout', id])).stdout, 'two\n');
    assert.match((await c(['ps'])).stdout, new RegExp(`${id} .*failed \\(3\\)`));
    const [listed] = json(await c(['ps', '--json']));
    assert.equal(listed.processes.find(p => p.id === id).exitCode, 3);
  });

  test('logs are exact, whole and from an offset', async () => {
    const id = ok(await c(['run', '--', 'sh', '-c', 'head -c 3000000 /dev/urandom | tee urandom'])).trim();
    ok(await c(['wait', id]));
    const data = await readFile(path.join(s.workspace, 'urandom'));
    assert.equal(sha((await c(['logs', id])).out), sha(data));
    assert.equal(sha((await c(['logs', '-f', '--from', '1234567', id])).out), sha(data.subarray(1234567)));
  });

  test('kill takes the whole tree and lists it', async () => {
    const id = ok(await c(['run', '--id', 'tree', '-c', 'sleep 1000 & echo $!; setsid sleep 1000 & echo $!; wait'])).trim();
    assert.equal(id, 'tree');
    ok(await c(['wait', id, '--regex', '--pattern', '^[0-9]+$', '--stream', 'stdout']));
    await until(async () => lines((await c(['logs', id])).stdout).length === 2, 'both');
    const pids = lines((await c(['logs', id])).stdout);
    const said = ok(await c(['kill', id]));
    for (const pid of pids) {
      assert.match(said, new RegExp(` ${pid}\\b`));
      await gone(Number(pid));
    }
    const again = await c(['kill', id]);
    assert.equal(again.code, 1);
    assert.match(again.stderr, /COMMAND_NOT_FOUND/);
    const [answer] = json(await c(['kill', '--json', ok(await c(['run', '--', 'sleep', '1000'])).trim()]));
    assert.equal(answer.killed.length, 1);
  });

  test('signal and stdin', async () => {
    const id = ok(await c(['run', '--stdin', '-c', 'trap "echo hup" HUP; echo ready; cat; echo end'])).trim();
    ok(await c(['wait', id, '--pattern', 'ready']));
    ok(await c(['stdin', '--no-eof', id], { input: 'some ' }));
    ok(await c(['stdin', id], { input: ALL_BYTES }));
    ok(await c(['wait', id]));
    const { out } = await c(['logs', id]);
    assert.equal(Buffer.compare(out, Buffer.concat([Buffer.from('ready\nsome '), ALL_BYTES, Buffer.from('end\n')])), 0);
    const trapped = ok(await c(['run', '-c', 'trap "echo hup; exit 5" HUP; echo ready; while :; do sleep 0.02; done'])).trim();
    ok(await c(['wait', trapped, '--pattern', 'ready']));
    ok(await c(['signal', trapped, 'HUP']));
    assert.equal(ok(await c(['wait', trapped])), '5\n');
    assert.match((await c(['signal', trapped, 'NOSUCH'])).stderr, /VALIDATION_FAILED/);
  });

  test('more input than a process takes waits for it', async () => {
    const go = path.join(dir, 'read-now'), data = randomBytes(20 << 20);
    const id = ok(await c(['run', '--stdin', '-c', `while [ ! -e ${go} ]; do sleep 0.02; done; sha256sum`])).trim();
    const feed = conflux(s, ['stdin', id], { input: data });
    await writeFile(go, '');
    ok(await feed.done);
    ok(await c(['wait', id]));
    assert.equal((await c(['logs', id])).stdout.slice(0, 64), sha(data));
  });

  test('wait for a port; kill --all', async () => {
    const id = ok(await c(['run', '--', process.execPath, '-e', 'require("net").createServer().listen(0, "127.0.0.1", function () { console.log("port " + this.address().port) })'])).trim();
    const port = /\d+/.exec(ok(await c(['wait', id, '--pattern', 'port'])))[0];
    assert.equal(ok(await c(['wait', id, '--port', port])), `${port}\n`);
    assert.match(ok(await c(['ports'])), new RegExp(`^${port} .*${id}$`, 'm'));
    assert.match(ok(await c(['kill', '--all'])), /^[1-9]\d* killed\n$/);
    assert.equal((await c(['ps', '--status', 'running'])).stdout.trim().split('\n').length, 1);
  });

  test('what cannot be started, and what is not there', async () => {
    assert.equal((await c(['run', '--', 'no-such-program'])).code, 127);
    for (const command of ['logs', 'wait', 'kill', 'stdin']) {
      const r = await c([command, 'nobody'], { input: 'x' });
      assert.equal(r.code, 1, command);
      assert.match(r.stderr, /nobody.*PROCESS_NOT_FOUND/);
    }
  });
});

describe('files', () => {
  const remote = name => path.join(s.workspace, name);

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
    ok(await c(['cp', '-s', 'F', 'remote:here', path.join(dir, 'from-session')]));
    assert.equal(await readFile(path.join(dir, 'from-session'), 'utf8'), 'x');
  });

  test('cp: a file there and back, with its permissions, to names and into folders', async () => {
    const data = randomBytes(7 << 20), local = path.join(dir, 'data');
    await writeFile(local, data);
    await chmod(local, 0o750);
    await mkdir(remote('into'), { recursive: true });
    ok(await c(['cp', local, 'remote:copy']));
    assert.equal(sha(await readFile(remote('copy'))), sha(data));
    assert.equal((await stat(remote('copy'))).mode & 0o777, 0o750);
    ok(await c(['cp', local, 'remote:into']));
    ok(await c(['cp', 'remote:copy', `${dir}/back`]));
    assert.equal(sha(await readFile(`${dir}/back`)), sha(data));
    assert.equal((await stat(`${dir}/back`)).mode & 0o777, 0o750);
    await mkdir(`${dir}/several`);
    ok(await c(['cp', 'remote:copy', 'remote:into/data', `${dir}/several`]));
    assert.deepEqual((await readdir(`${dir}/several`)).sort(), ['copy', 'data']);
    ok(await c(['cp', 'remote:copy', 'remote:third']));
    assert.equal(sha(await readFile(remote('third'))), sha(data));
    await rm(remote('copy'));
    ok(await c(['cp', local, 'remote:copy'])); // the upload that is complete is not taken for this one
    assert.equal(sha(await readFile(remote('copy'))), sha(data));
    for (const [args, what, code] of [[['cp', local, `${dir}/x`], /neither/, 125], [['cp', 'remote:nowhere', dir], /there is no nowhere/, 1],
      [['cp', `${dir}/nowhere`, 'remote:x'], /there is no/, 125], [['cp', local, local, 'remote:copy'], /no folder/, 125]]) {
      const r = await c(args);
      assert.equal(r.code, code, r.stderr);
      assert.match(r.stderr, what);
    }
  });

  test('cp: a link is written through, and a device is not replaced', async () => {
    await writeFile(path.join(dir, 'behind'), 'old');
    await symlink('behind', path.join(dir, 'through'));
    ok(await c(['write', 'small'], { input: 'new' }));
    ok(await c(['cp', 'remote:small', path.join(dir, 'through')]));
    assert.equal(await readFile(path.join(dir, 'behind'), 'utf8'), 'new');
    assert.equal(await readlink(path.join(dir, 'through')), 'behind');
    const fifo = path.join(dir, 'fifo');
    await exec('mkfifo', [fifo]);
    const [copied, text] = await Promise.all([c(['cp', 'remote:small', fifo]), readFile(fifo, 'utf8')]);
    ok(copied);
    assert.equal(text, 'new');
    const [sent] = await Promise.all([c(['cp', fifo, 'remote:from-fifo']), writeFile(fifo, 'piped')]);
    ok(sent);
    assert.equal(await readFile(remote('from-fifo'), 'utf8'), 'piped');
  });

  test('cp: on a terminal it tells how far it is', async t => {
    const fifo = path.join(dir, 'slow');
    await exec('mkfifo', [fifo]);
    const child = spawn('script', ['-qec', `${BIN} cp ${fifo} remote:slow`, '/dev/null'], { env: { ...process.env, XDG_CONFIG_HOME: '/nonexistent', CONFLUX_URL: s.base, TERM: 'dumb' } });
    const missing = await new Promise(resolve => { child.on('error', () => resolve(true)); child.on('spawn', () => resolve(false)); });
    if (missing) return t.skip('script(1) is not installed');
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
    const from = path.join(dir, 'folder');
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
    ok(await c(['cp', 'remote:tree', `${dir}/again`]));
    await exec('diff', ['-r', '--no-dereference', from, `${dir}/again`]);
    ok(await c(['cp', '-z', 'remote:tree', `${dir}/zipped/`]));
    await exec('diff', ['-r', '--no-dereference', from, `${dir}/zipped/tree`]);
    ok(await c(['cp', from, 'remote:tree'])); // now it is there: into it
    assert.ok((await stat(remote('tree/folder/large'))).isFile());
    await chmod(`${from}/closed`, 0o755);
  });

  test('cp: links that lead out are left out, and said to be', async () => {
    const from = path.join(dir, 'links');
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

describe('the server', () => {
  test('sessions', async () => {
    assert.equal(ok(await c(['sessions', 'create', 'mine', '-C', '/', '-e', 'V=1'])), 'mine\n');
    assert.equal(ok(await c(['exec', '-s', 'mine', '-c', 'pwd; echo $V'])), '/\n1\n');
    assert.ok(lines(ok(await c(['sessions']))).includes('mine'));
    assert.match((await c(['sessions', 'create', 'mine'])).stderr, /SESSION_ALREADY_EXISTS/);
    ok(await c(['sessions', 'delete', 'mine']));
    assert.ok(!json(await c(['sessions', 'list', '--json']))[0].data.includes('mine'));
    assert.equal((await c(['sessions', 'nonsense'])).code, 125);
  });

  test('ports, pending, usage', async () => {
    assert.match(ok(await c(['ports'])), new RegExp(`^${s.port} `, 'm'));
    assert.ok(json(await c(['ports', '--json']))[0].ports.some(p => p.port === Number(s.port)));
    const held = conflux(s, ['exec', '--', 'cat'], { input: 'open' });
    await until(async () => /execute\/stream/.test((await c(['pending'])).stdout), 'the request');
    assert.ok(Array.isArray(json(await c(['pending', '--json']))[0].connections));
    held.stdin.end();
    await held.done;
    assert.match(ok(await c(['usage'])), /^cpu [\d.]+ s on \d+ cores +memory .* of .* +disk .* of .*\n$/);
    assert.ok(json(await c(['usage', '--json']))[0].memory.usedBytes > 0);
    const usage = conflux(s, ['usage', '-f', '--interval', '100ms', '--json']);
    await until(() => lines(usage.seen).length > 2, 'three samples');
    usage.kill();
    for (const line of lines(usage.seen)) assert.equal(JSON.parse(line).type, 'usage');
  });

  test('events, from the first that is kept and as they come', async () => {
    const child = conflux(s, ['events', '--from', '0', '--json']);
    ok(await c(['exec', '--id', 'eventful', '--', 'true']));
    await until(() => /process\.exited.*"eventful"/.test(child.seen), 'the event');
    child.kill();
    await child.done;
    const ids = lines(child.seen).slice(0, -1).map(line => JSON.parse(line).id);
    assert.deepEqual(ids, [...new Set(ids)].sort((a, b) => a - b));
    const text = conflux(s, ['events', '--from', String(ids[0])]);
    await until(() => /process\.exited processId=\S+ executionId=eventful pid=\d+ exitCode=0 outcome=exited\n/.test(text.seen), 'the line');
    text.kill();
  });

  test('doctor: all is well, or what to do', async () => {
    assert.doesNotMatch(ok(await c(['doctor'])), /BAD/);
    const [report] = json(await c(['doctor', '--json']));
    assert.deepEqual(report.checks.map(x => x.check), ['settings', 'token', 'HTTP', 'WebSocket', 'version', 'readiness', 'round trip', 'commands']);
    const r = await c(['doctor', '--url', 'http://127.0.0.1:1']);
    assert.equal(r.code, 1);
    assert.match(r.stdout, /BAD +HTTP .*\n +-> .*conflux serve/);
  });

  test('help: every command has it, and every option of it is described', async () => {
    const names = [...(await exec(BIN, ['help'])).stdout.matchAll(/^ {2}(\S+) {2,}\S/gm)].map(m => m[1]);
    assert.ok(names.includes('exec') && names.includes('doctor') && names.length > 20, names.join());
    for (const name of names.filter(n => !['help', 'version'].includes(n))) {
      const { stdout } = await exec(BIN, [name, '--help']);
      assert.match(stdout, new RegExp(`^usage: conflux ${name} `));
      assert.equal((await exec(BIN, ['help', name])).stdout, stdout);
      if (name !== 'serve') for (const line of stdout.split('\n')) assert.ok(line.length <= 88, line);
    }
    await assert.rejects(exec(BIN, ['frobnicate']), e => e.code === 2 && /unknown command "frobnicate"/.test(e.stderr));
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

  test('in lists, on a terminal; elsewhere they are as they are', async t => {
    await mkdir(path.join(s.workspace, 'evil'), { recursive: true });
    await writeFile(path.join(s.workspace, 'evil', evil), '');
    assert.equal(ok(await c(['ls', 'evil'])), `${evil}\n`);
    ok(await c(['exec', '-c', `: '${evil}'`]));
    for (const args of [['ls', 'evil'], ['ls', '-l', 'evil'], ['ls', '--json', 'evil'], ['find', 'evil'], ['ps']]) {
      const command = `${BIN} ${args.join(' ')}`;
      let r;
      try { r = await exec('script', ['-qec', command, '/dev/null'], { env: { ...process.env, XDG_CONFIG_HOME: '/nonexistent', CONFLUX_URL: s.base, TERM: 'dumb' } }); } catch (e) {
        if (e.code === 'ENOENT') return t.skip('script(1) is not installed');
        throw e;
      }
      assert.match(r.stdout, /owned/);
      assert.doesNotMatch(r.stdout, /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]/, args.join(' '));
    }
  });
});
