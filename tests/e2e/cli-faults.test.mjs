// The command line when things go wrong: servers that die, connections that are cut, refusals, and who may know the token.
import { after, before, describe, test } from 'node:test';
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { proxy } from './js/lib/proxy.mjs';
import { conflux, exec, run, sha } from './lib/cli.mjs';
import { BIN, few, gone, serverPid, start, until } from './lib/server.mjs';

const seq = async (a, b) => (await exec('seq', [String(a), String(b)], { maxBuffer: 1 << 28 })).stdout;

// Bytes that a program has read so far.
const read = async child => Number(/rchar: (\d+)/.exec(await readFile(`/proc/${child.pid}/io`, 'utf8'))[1]);

// The server is killed; the keeper starts another, which has to be there before anything goes on.
async function kill9(s) {
  const old = await serverPid(s);
  process.kill(old, 'SIGKILL');
  await until(async () => { const pid = await serverPid(s); return pid && pid !== old && fetch(`${s.base}/healthz`).then(r => r.ok, () => false); }, 'the next server');
}

describe('a lost connection', () => {
  let s, p, dir;
  before(async () => { s = await start(); p = await proxy(() => s); dir = await mkdtemp(path.join(tmpdir(), 'conflux-cli-')); });
  after(async () => { await p.close(); await s.stop(); await rm(dir, { recursive: true, force: true }); });

  // Writes half, waits to be let go, writes the rest, and fails with a status of its own.
  const halves = (name, n) => `seq 1 ${n}; while [ ! -e ${dir}/${name} ]; do sleep 0.02; done; seq ${n + 1} ${2 * n}; echo err >&2; exit 7`;

  for (const mode of ['websocket', 'http']) {
    for (const [what, lose, via] of [['server killed', () => kill9(s), () => s], ['connection cut', async () => p.cut(), () => p]])
      test(`[${mode}] ${what} in mid-exec: nothing is lost, nothing comes twice, the status is the command's`, async () => {
        const name = `${mode}-${what}`.replaceAll(' ', '-');
        const child = conflux(via(), ['exec', '--mode', mode, '-c', halves(name, 20000)]);
        await until(() => child.seen.endsWith('\n20000\n'), 'the first half');
        for (let i = 0; i < 2; i++) await lose();
        await writeFile(path.join(dir, name), '');
        const r = await child.done;
        assert.deepEqual([r.code, r.stderr], [7, 'err\n']);
        assert.equal(r.stdout, await seq(1, 40000));
      });

    test(`[${mode}] cut again and again while output flows`, async () => {
      const child = conflux(p, ['exec', '--mode', mode, '--', 'sh', '-c', 'seq 1 1000000; exit 3']);
      let over = false;
      child.done.then(() => { over = true; });
      let at = 0;
      await until(() => { // at each further MB, while there is one
        if (child.seen.length > at + 100000) { at = child.seen.length; p.cut(); }
        return over;
      }, 'the end', 60000);
      const r = await child.done;
      assert.equal(r.code, 3, r.stderr);
      assert.equal(sha(r.out), sha(await seq(1, 1000000)));
    });

    test(`[${mode}] server killed: input that has been taken is not sent again, and what follows arrives`, async () => {
      const child = conflux(s, ['exec', '--mode', mode, '--', 'cat'], { input: 'open' });
      child.stdin.write('before\n');
      await until(() => child.seen === 'before\n', 'the answer');
      await kill9(s);
      child.stdin.write('after\n');
      await until(() => child.seen === 'before\nafter\n', 'the answer afterwards');
      child.stdin.end('end\n');
      const r = await child.done;
      assert.deepEqual([r.code, r.stdout], [0, 'before\nafter\nend\n'], r.stderr);
    });
  }

  test('input that may or may not have arrived: 255, and never a status that the command did not have', async () => {
    const child = conflux(p, ['exec', '--id', 'fed', '--', 'sleep', '1000'], { input: 'open' });
    child.stdin.write(randomBytes(4 << 20));
    // Of what it has read from us the command's pipe holds 64 KiB: the rest is on its way.
    await until(async () => await read(child) > 600000, 'input to be on its way');
    p.cut();
    const r = await child.done;
    assert.equal(r.code, 255);
    assert.match(r.stderr, /how much of the input has arrived is not known/);
    assert.match(r.stderr, /conflux logs --from \S+ fed /);
    await run(s, ['kill', 'fed']);
  });

  for (const mode of ['websocket', 'http']) test(`[${mode}] a server that is upgraded under a command`, async () => {
    const child = conflux(s, ['exec', '--mode', mode, '-c', halves(`upgraded-${mode}`, 1000)]);
    await until(() => child.seen.endsWith('\n1000\n'), 'the first half');
    const old = await serverPid(s);
    s.child.kill('SIGHUP');
    await until(async () => { const pid = await serverPid(s); return pid && pid !== old; }, 'the next server');
    await writeFile(path.join(dir, `upgraded-${mode}`), '');
    const r = await child.done;
    assert.deepEqual([r.code, r.stderr], [7, 'err\n']);
    assert.equal(r.stdout, await seq(1, 2000));
  });

  test('a session\'s command is found again, too', async () => {
    const child = conflux(s, ['exec', '-s', 'found', '-c', halves('session', 1000)]);
    await until(() => child.seen.endsWith('\n1000\n'), 'the first half');
    await kill9(s);
    await writeFile(path.join(dir, 'session'), '');
    const r = await child.done;
    assert.equal(r.stdout, await seq(1, 2000));
    assert.equal(r.code, 7, r.stderr);
  });

  test('logs -f, wait and events go on as well', async () => {
    const id = (await run(s, ['run', '-c', halves('follow', 1000)])).stdout.trim();
    const logs = conflux(p, ['logs', '-f', id]), wait = conflux(p, ['wait', id]), events = conflux(p, ['events', '--from', '0', '--json']);
    await until(() => logs.seen.endsWith('\n1000\n') && events.seen.includes(id), 'both');
    p.cut();
    await writeFile(path.join(dir, 'follow'), '');
    assert.equal((await logs.done).stdout, await seq(1, 2000));
    assert.equal((await wait.done).stdout, '7\n');
    await until(() => new RegExp(`process\\.exited.*${id}`).test(events.seen), 'the event');
    events.kill();
    const ids = events.seen.trim().split('\n').map(line => JSON.parse(line).id);
    assert.equal(new Set(ids).size, ids.length);
  });

  test('cp goes on where it was cut, both ways', async () => {
    const data = randomBytes(few(48, 24) << 20), local = path.join(dir, 'data');
    await writeFile(local, data);
    const cutting = async (child, begun) => {
      let over = false;
      child.done.then(() => { over = true; });
      await until(begun, 'the copy to be under way');
      const before = p.connections;
      await until(() => { p.cut(); return over || p.connections > before + 4; }, 'some cuts');
      const r = await child.done;
      assert.equal(r.code, 0, r.stderr);
    };
    const up = conflux(p, ['cp', local, 'remote:cut']);
    await cutting(up, async () => await read(up) > 4 << 20);
    assert.equal(sha(await readFile(path.join(s.workspace, 'cut'))), sha(data));
    await cutting(conflux(p, ['cp', 'remote:cut', path.join(dir, 'back')]), async () => (await readdir(dir)).some(name => name.endsWith('.part')));
    assert.equal(sha(await readFile(path.join(dir, 'back'))), sha(data));
    assert.deepEqual((await readdir(dir)).filter(name => name.endsWith('.part')), []);
  });

  test('an interrupted cp is finished by the same command', async () => {
    const data = randomBytes(few(32, 12) << 20), local = path.join(dir, 'long');
    await writeFile(local, data);
    const child = conflux(s, ['cp', local, 'remote:long']);
    await until(async () => (await readdir(s.workspace)).some(name => /^\.conflux|upload|\.tmp/.test(name)), 'a beginning');
    child.kill('SIGKILL');
    await child.done;
    const r = await run(s, ['cp', local, 'remote:long']);
    assert.equal(r.code, 0, r.stderr);
    assert.equal(sha(await readFile(path.join(s.workspace, 'long'))), sha(data));
  });
});

test('the keeper is killed: 255 when the time to reconnect is over, with what gets the rest', async () => {
  const s = await start();
  const child = conflux(s, ['exec', '--reconnect', '1', '--id', 'gone', '-c', 'echo $$; sleep 1000']);
  await until(() => child.seen, 'the command');
  s.child.kill('SIGKILL');
  const r = await child.done;
  assert.equal(r.code, 255);
  assert.match(r.stderr, /connection to http.* lost/);
  assert.match(r.stderr, /conflux logs --from \d+-\d+ gone .*conflux wait gone/);
  await gone(Number(r.stdout));
  await s.stop();
});

describe('nobody there, or nobody who lets us in', () => {
  test('a refused connection says so, and what to look at', async () => {
    const server = net.createServer().listen(0, '127.0.0.1');
    await new Promise(resolve => server.on('listening', resolve));
    const base = `http://127.0.0.1:${server.address().port}`;
    await new Promise(resolve => server.close(resolve));
    for (const args of [['exec', 'true'], ['ps'], ['cp', BIN, 'remote:x'], ['events']]) {
      const r = await run({ base }, args);
      assert.equal(r.code, 125, args[0]);
      assert.match(r.stderr, new RegExp(`^conflux: cannot reach ${base}: .*refused.*; is "conflux serve" running there\\?\n$`, 'i'));
    }
  });

  test('a server that is silent: the connect time-out ends it', async () => {
    const s = await start(), p = await proxy(() => s);
    p.silent = true;
    const r = await run(p, ['exec', '--connect-timeout', '300ms', 'true']);
    assert.equal(r.code, 125, r.stderr);
    assert.match(r.stderr, /cannot reach/);
    await p.close();
    await s.stop();
  });

  test('something else than a Conflux answers', async () => {
    const server = net.createServer(k => { k.on('error', () => {}); k.once('data', () => k.end('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello')); }).listen(0, '127.0.0.1');
    await new Promise(resolve => server.on('listening', resolve));
    const r = await run({ base: `http://127.0.0.1:${server.address().port}` }, ['ps']);
    assert.equal(r.code, 125);
    assert.match(r.stderr, /not that of a Conflux server/);
    server.close();
  });

  test('refused WebSockets: HTTP in their place, with input; or said, when nothing else is wanted', async () => {
    const s = await start(), p = await proxy(() => s);
    p.refuse = '404 Not Found';
    const data = randomBytes(300000);
    const r = await run(p, ['exec', '--', 'cat'], { input: data });
    assert.equal(r.code, 0, r.stderr);
    assert.equal(sha(r.out), sha(data));
    const forced = await run(p, ['exec', '--mode', 'websocket', 'true']);
    assert.equal(forced.code, 125);
    assert.match(forced.stderr, /no WebSocket at .*404.*--mode http/);
    const doctor = await run(p, ['doctor']);
    assert.equal(doctor.code, 0);
    assert.match(doctor.stdout, /^note +WebSocket .*404/m);
    await p.close();
    await s.stop();
  });
});

describe('a token', () => {
  const TOKEN = 'correct-horse-battery';
  let s, dir, file;
  before(async () => {
    dir = await mkdtemp(path.join(tmpdir(), 'conflux-cli-'));
    file = path.join(dir, 'token');
    await writeFile(file, `${TOKEN}\nsecond line\n`, { mode: 0o600 });
    s = await start({ args: ['--token-file', file] });
  });
  after(async () => { await s.stop(); await rm(dir, { recursive: true, force: true }); });

  test('missing and wrong', async () => {
    for (const mode of ['websocket', 'http', 'auto']) {
      const missing = await run(s, ['exec', '--mode', mode, 'true']);
      assert.equal(missing.code, 125);
      assert.match(missing.stderr, /--token-file/);
      const wrong = await run(s, ['ps', '--mode', mode], { env: { CONFLUX_TOKEN: 'wrong-token-here' } });
      assert.equal(wrong.code, 1);
      assert.match(wrong.stderr, /right token/);
      assert.doesNotMatch(wrong.stderr, /wrong-token-here/);
    }
  });

  test('by flag, file, environment and configuration, in this order', async () => {
    const works = async (args, env) => { const r = await run(s, ['ps', ...args], { env }); assert.equal(r.code, 0, r.stderr); };
    const config = async (text, mode = 0o600) => {
      await mkdir(path.join(dir, 'conflux'), { recursive: true });
      await writeFile(path.join(dir, 'conflux', 'config'), text);
      await chmod(path.join(dir, 'conflux', 'config'), mode);
      return { XDG_CONFIG_HOME: dir };
    };
    await works(['--token', TOKEN], { CONFLUX_TOKEN: 'wrong-token-here' });
    await works(['--token-file', file], { CONFLUX_TOKEN: 'wrong-token-here' });
    await works([], { CONFLUX_TOKEN: TOKEN });
    await works([], { CONFLUX_TOKEN_FILE: file });
    await works([], await config(`# mine\n\nurl = ${s.base}\ntoken = ${TOKEN}\n`));
    await works([], { ...await config(`url = ${s.base}\ntoken-file = ${file}\nmode = http\n`), CONFLUX_URL: undefined });
    await works([], { ...await config('token = wrong-token-here\n'), CONFLUX_TOKEN: TOKEN });
    for (const [text, what] of [['nonsense\n', /config:1: a line is/], ['url = x\ncolour = blue\n', /config:2: there is no setting "colour"/], ['mode = pigeon\n', /mode is auto/], ['token =\n', /has no value/]]) {
      const r = await run(s, ['ps'], { env: await config(text) });
      assert.equal(r.code, 125);
      assert.match(r.stderr, what);
    }
    const open = await run(s, ['ps'], { env: await config(`token = ${TOKEN}\n`, 0o644) });
    assert.equal(open.code, 125);
    assert.match(open.stderr, /may be read by others: chmod 600/);
  });

  test('a token file that others may read is warned of, and doctor calls it bad', async () => {
    const open = path.join(dir, 'open');
    await writeFile(open, TOKEN);
    await chmod(open, 0o644);
    const r = await run(s, ['ps', '--token-file', open]);
    assert.equal(r.code, 0);
    assert.match(r.stderr, /may be read by others/);
    const doctor = await run(s, ['doctor', '--token-file', open]);
    assert.equal(doctor.code, 1);
    assert.match(doctor.stdout, /^BAD +token .*\n +-> chmod 600/m);
    // The server's own file, which its commands can read: they run as its owner.
    assert.match(doctor.stdout, new RegExp(`^note +exposure .*${file}`, 'm'));
    assert.doesNotMatch(doctor.stdout + doctor.stderr, new RegExp(TOKEN));
  });

  test('it is gone from where other users see it, and in no log', async () => {
    const child = conflux(s, ['exec', '-v', '--token', TOKEN, '-c', 'echo on; read -r x'], { input: 'open', env: { CONFLUX_TOKEN: TOKEN } });
    await until(() => child.seen === 'on\n', 'the command');
    for (const name of ['cmdline', 'environ']) {
      const text = await readFile(`/proc/${child.pid}/${name}`, 'latin1');
      assert.match(text, name === 'cmdline' ? /--token\0/ : /CONFLUX_URL/);
      assert.ok(!text.includes(TOKEN), name);
    }
    child.stdin.end('\n');
    const r = await child.done;
    assert.equal(r.code, 0, r.stderr);
    assert.match(r.stderr, /execute\/stream/);
    assert.ok(!r.stderr.includes(TOKEN));
  });
});

test('TLS: a certificate is trusted by its authority alone, or by --insecure', async t => {
  const dir = await mkdtemp(path.join(tmpdir(), 'conflux-cli-'));
  const ca = name => exec('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj', `/CN=${name}`,
    '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', `${dir}/${name}.key`, '-out', `${dir}/${name}.pem`]);
  try { await ca('good'); await ca('other'); } catch (e) {
    if (e.code === 'ENOENT') return t.skip('openssl is not installed');
    throw e;
  }
  const s = await start();
  const p = await proxy(() => s, { key: await readFile(`${dir}/good.key`), cert: await readFile(`${dir}/good.pem`) });
  const data = randomBytes(100000);
  for (const mode of ['websocket', 'http']) {
    for (const how of [['--cacert', `${dir}/good.pem`], ['--insecure']]) {
      const r = await run(p, ['exec', ...how, '--mode', mode, '--', 'cat'], { input: data });
      assert.equal(r.code, 0, r.stderr);
      assert.equal(sha(r.out), sha(data));
    }
    for (const how of [[], ['--cacert', `${dir}/other.pem`]]) {
      const r = await run(p, ['exec', ...how, '--mode', mode, '--', 'true']);
      assert.equal(r.code, 125);
      assert.match(r.stderr, /no trust in https:.*--cacert/);
    }
  }
  const doctor = await run(p, ['doctor']);
  assert.equal(doctor.code, 1);
  assert.match(doctor.stdout, /^BAD +HTTP .*\n +-> --cacert/m);
  const file = path.join(dir, 'back');
  assert.equal((await run(p, ['cp', '--cacert', `${dir}/good.pem`, BIN, 'remote:over-tls'])).code, 0);
  assert.equal((await run(p, ['cp', '--cacert', `${dir}/good.pem`, 'remote:over-tls', file])).code, 0);
  assert.equal(sha(await readFile(file)), sha(await readFile(BIN)));
  await p.close();
  await s.stop();
  await rm(dir, { recursive: true, force: true });
});
