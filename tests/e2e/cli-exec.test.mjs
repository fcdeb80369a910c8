// conflux exec: as if the command were here.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import http from 'node:http';
import { once } from 'node:events';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, readlink, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ALL_BYTES, conflux, environment, exec, json, ok, sha, shared } from './lib/cli.mjs';
import { ASAN } from './lib/door.mjs';
import { BIN, afterTimeout, few, gone, until } from './lib/server.mjs';

const t = shared(), { c } = t;

test('its output is the command\'s, on both streams, and nothing else', async () => {
  const r = await c(['exec', '--', 'sh', '-c', 'echo out; echo err >&2']);
  assert.deepEqual([r.code, r.stdout, r.stderr], [0, 'out\n', 'err\n']);
});

for (const [status, ...command] of [
  [0, 'true'], [1, 'false'], [77, 'sh', '-c', 'exit 77'], [255, 'sh', '-c', 'exit 255'], [124, 'sh', '-c', 'exit 124'],
  [137, 'sh', '-c', 'kill -9 $$'], [143, 'sh', '-c', 'kill $$'], [127, 'no-such-program'], [126, '/etc/passwd'],
]) test(`status ${status} of ${command.join(' ')}`, async () => assert.equal((await c(['exec', '--', ...command])).code, status));

test('a time-out is status 124, and ends the command', async () => {
  const r = await afterTimeout((ms, mark) => conflux(t.s, ['exec', '--timeout', `${ms}ms`, '--', 'sh', '-c', `echo $$; ${mark}; exec sleep 1000`]).done);
  assert.equal(r.code, 124);
  await gone(Number(r.stdout));
});

for (const mode of ['websocket', 'http']) {
  test(`[${mode}] every byte value, in and out, on both streams`, async () => {
    const r = await c(['exec', '--mode', mode, '--', 'cat'], { input: ALL_BYTES });
    assert.equal(r.code, 0, r.stderr);
    assert.equal(Buffer.compare(r.out, ALL_BYTES), 0);
    const child = conflux(t.s, ['exec', '--mode', mode, '-c', 'cat >&2'], { input: ALL_BYTES });
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

test('tar c | conflux exec -- tar x: more than all buffers hold, the same tree', async () => {
  const from = path.join(t.dir, 'tree'), to = path.join(t.s.workspace, 'tar');
  await mkdir(path.join(from, 'sub'), { recursive: true });
  await mkdir(to);
  await writeFile(path.join(from, 'big'), randomBytes(few(64, 16) << 20));
  await writeFile(path.join(from, 'sub', 'all'), ALL_BYTES);
  await symlink('../big', path.join(from, 'sub', 'link'));
  const tar = spawn('tar', ['c', '-C', from, '.']);
  ok(await c(['exec', '--', 'tar', 'x', '-C', to], { input: tar.stdout }));
  for (const name of ['big', 'sub/all']) assert.equal(sha(await readFile(path.join(to, name))), sha(await readFile(path.join(from, name))));
  assert.equal(await readlink(path.join(to, 'sub/link')), '../big');
});

test('a command that reads nothing is not waited for', async () => {
  const child = conflux(t.s, ['exec', '--', 'true'], { input: 'open' });
  assert.equal((await child.done).code, 0);
});

test('what is behind the command that ends early is not read', async () => {
  const r = await exec('sh', ['-c', `{ ${BIN} exec -- head -n1; cat; } <<'X'\nfirst\nX\n`], { env: environment(t.s) });
  assert.equal(r.stdout, 'first\n');
  const loop = await exec('sh', ['-c', `printf '1\\n2\\n' | while read -r n; do ${BIN} exec -n -- echo $n; done`], { env: environment(t.s) });
  assert.equal(loop.stdout, '1\n2\n');
});

test('output comes as it is written', async () => {
  const child = conflux(t.s, ['exec', '--', 'cat'], { input: 'open' });
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
  const child = conflux(t.s, ['exec', '-s', 'S', '-c', 'echo first; read -r x; echo $x'], { input: 'open' });
  await until(() => child.seen === 'first\n', 'output while it runs');
  child.stdin.end('second\n');
  assert.equal((await child.done).stdout, 'first\nsecond\n');
  const r = await c(['exec', '-s', 'S', '-c', 'exit 9']);
  assert.equal(r.code, 9);
  assert.match(r.stderr, /shell exited/);
});

test('closed descriptors are no trap', async () => {
  const status = async redirect => (await exec('sh', ['-c', `exec 3>&1; ${BIN} exec -- echo out ${redirect}; echo $? >&3`], { env: environment(t.s) })).stdout;
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
  const file = path.join(t.dir, 'once');
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
  const child = conflux(t.s, ['exec', '-c', 'echo $$; exec yes']);
  await until(() => child.seen.includes('\ny\n'), 'output');
  child.stdout.destroy();
  assert.equal((await child.done).signal, 'SIGPIPE');
  await gone(Number.parseInt(child.seen, 10));
});

test('closed stdout while input waits to be taken', async () => {
  const child = conflux(t.s, ['exec', '-c', 'echo $$; exec yes'], { input: randomBytes(4 << 20) });
  await until(() => child.seen.includes('\ny\n'), 'output');
  child.stdout.destroy();
  assert.equal((await child.done).signal, 'SIGPIPE');
  await gone(Number.parseInt(child.seen, 10));
});

test('a reader that rests: the command waits for it, memory stays small, and nothing is lost', async () => {
  const child = conflux(t.s, ['exec', '-c', 'seq 1 5000000; echo written >&2']);
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
  const child = conflux(t.s, ['exec', '-c', 'trap "echo caught; exit 42" INT; echo ready; while :; do sleep 0.05; done']);
  await until(() => child.seen === 'ready\n', 'the command');
  child.kill('SIGINT');
  const r = await child.done;
  assert.deepEqual([r.code, r.stdout], [42, 'ready\ncaught\n'], r.stderr);
});

test('Ctrl-C in a session: the command ends, and the session stays', async () => {
  ok(await c(['exec', '-s', 'C', '-c', 'X=1']));
  const child = conflux(t.s, ['exec', '-s', 'C', '-c', 'echo ready; sleep 1000']);
  await until(() => child.seen === 'ready\n', 'the command');
  child.kill('SIGINT');
  const r = await child.done;
  assert.equal(r.code, 130, r.stderr);
  assert.equal(ok(await c(['exec', '-s', 'C', '-c', 'echo still $X'])), 'still 1\n');
});

test('Ctrl-C over HTTP: though it overtakes the command, that ends', async () => {
  const statuses = [];
  let arrived = false;
  const between = http.createServer(async (req, res) => {
    if (req.method === 'POST') { // on its way until an end of it has been answered
      arrived = true;
      await until(() => statuses.length, 'the end to come first');
    }
    req.pipe(http.request(t.s.base + req.url, { method: req.method, headers: req.headers }, answer => {
      if (req.method === 'DELETE') statuses.push(answer.statusCode);
      answer.pipe(res.writeHead(answer.statusCode, answer.headers));
    }));
  }).listen(0, '127.0.0.1');
  await once(between, 'listening');
  try {
    const child = conflux({ base: `http://127.0.0.1:${between.address().port}` }, ['exec', '--mode', 'http', '--', 'sleep', '1000']);
    await until(() => arrived, 'the command to be sent');
    child.kill('SIGINT');
    const r = await child.done;
    assert.equal(r.code, 130, r.stderr);
    assert.equal(statuses[0], 404);
  } finally { between.close(); }
});

test('the second Ctrl-C leaves it; its id is told, and serves', async () => {
  const child = conflux(t.s, ['exec', '-c', 'trap "echo no" INT; echo $$; while :; do sleep 0.05; done']);
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
