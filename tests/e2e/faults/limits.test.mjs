// Bounds: what clients can make the server hold, and what a shortage does.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmod, chown, mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { mkdtempSync } from 'node:fs';
import { createHash } from 'node:crypto';
import net from 'node:net';
import path from 'node:path';
import { gone, post, serverPid, start, until } from '../lib/server.mjs';
import { connect } from '../lib/mux.mjs';
import { ASAN, FULL, OFF, full, held, metric, openDoor, own, times } from '../lib/door.mjs';

const MB = 1 << 20;
const exec = (s, command = 'echo served', more = {}) => post(s, '/api/execute', { command, sessionId: OFF, ...more });
const memory = async (pid, what) => Number(new RegExp(`^${what}:\\s+(\\d+) kB`, 'm').exec(await readFile(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;

// A shell that prints n bytes at once.
const prints = n => `head -c ${n} /dev/zero | tr '\\0' x`;

test('X143: replies that a WebSocket does not read stay within the memory budget, and others are served', async () => {
  const n = 10, size = 4 * MB;
  const s = await start({ args: ['--memory-budget', '16M'] });
  try {
    const pid = await serverPid(s), before = await memory(pid, 'VmRSS');
    const m = await connect(s);
    m.ws.pause();
    const replies = Array.from({ length: n }, () => m.post('/api/execute', { command: prints(size), sessionId: OFF }));
    await until(async () => await metric(s, 'conflux_memory_spilled_bytes_total') > 0, 'a reply in a file');
    await until(async () => await metric(s, 'conflux_processes') === 0, 'the commands to end');
    for (let i = 0; i < 3; i++) assert.equal((await exec(s)).body.stdout, 'served\n');
    const large = await exec(s, prints(size));
    assert.deepEqual([large.body.exitCode, large.body.stdout.length], [0, size]); // from a file, over HTTP
    if (!ASAN) assert.ok(await memory(pid, 'VmHWM') - before < 16 * MB + 24 * MB, 'peak of the memory');
    m.ws.resume();
    for (const r of await Promise.all(replies)) assert.deepEqual([r.status, r.body.stdout.length, r.body.stdoutTruncated], [200, size, false]);
    await m.close();
    await until(async () => await held(s, 'results') === 0, 'all to be given back');
  } finally { await s.stop(); }
});

test('X147: a key that stands twice is refused by its name, on every door and at every depth', async () => {
  const s = await start();
  const m = await connect(s);
  const plain = `"sessionId":"${OFF}"`;
  const bodies = [
    ['command', `{"command":"echo FIRST","command":"echo LAST",${plain}}`, '/api/execute'],
    ['A', `{"command":"true","env":{"A":"1","A":"2"},${plain}}`, '/api/execute'],
    ['path', `{"operations":[{"path":"/api/read","body":{"path":"/etc/hosts","path":"/etc/passwd"}}]}`, '/api/files/batch'],
    ['id', `{"id":"a","id":"b"}`, '/api/session/create'],
    ['command', `{"command":"true","pad":"${'x'.repeat(100000)}","command":"true",${plain}}`, '/api/execute/stream'],
  ];
  try {
    for (const [key, body, path] of bodies) {
      const r = await post(s, path, body);
      assert.deepEqual([r.status, r.body.code, r.body.context.validationErrors?.[0].field], [400, 'VALIDATION_FAILED', key]);
      m.send(`{"type":"request","id":"t${key}${body.length}","method":"POST","path":"${path}","body":${body}}`);
      const got = await until(() => m.stray.find(x => x.id === `t${key}${body.length}`), 'an answer');
      assert.deepEqual([got.type, got.status, got.code], ['error', 400, 'VALIDATION_FAILED']);
      assert.match(got.message, new RegExp(`"${key}" stands twice`));
    }
    m.send(`{"type":"request","id":"envelope","method":"POST","path":"/api/execute","path":"/api/ping","body":{"command":"true"}}`);
    const got = await until(() => m.stray.find(x => x.id === 'envelope'), 'an answer');
    assert.deepEqual([got.status, got.code], [400, 'VALIDATION_FAILED']);
    assert.match(got.message, /"path" stands twice/);
    m.send(`{"type":"request","id":"one","id":"two","method":"GET","path":"/api/ping"}`);
    assert.match((await until(() => m.stray.find(x => x.type === 'error' && x.id === undefined), 'an answer')).message, /"id" stands twice/);
    assert.equal((await m.get('/api/ping')).status, 200);
  } finally { await m.close(); await s.stop(); }
});

test('X149: environment names and values: one reader for all routes, which names the field', async () => {
  const s = await start();
  const m = await connect(s);
  const doors = [(p, b) => post(s, p, b), async (p, b) => { const r = await m.post(p, b); return { status: r.status, body: r.body }; }];
  const refused = async (path, body, field, what) => {
    for (const door of doors) {
      const r = await door(path, body);
      assert.deepEqual([r.status, r.body?.code, r.body?.context.validationErrors[0].field], [400, 'VALIDATION_FAILED', field]);
      if (what) assert.match(r.body.message, what);
    }
  };
  const routes = [['/api/execute', { command: 'true' }], ['/api/execute/stream', { command: 'true' }], ['/api/process/start', { command: 'true' }], ['/api/session/create', {}]];
  try {
    for (const [path, body] of routes) {
      await refused(path, { ...body, env: { 'a=b': '1' } }, 'env.a=b');
      await refused(path, { ...body, env: { '': '1' } }, 'env.');
      await refused(path, { ...body, env: { '1A': '1' } }, 'env.1A', /in a session/);
      await refused(path, { ...body, env: { N: 5 } }, 'env.N');
      await refused(path, { ...body, env: { BIG: 'x'.repeat(200000) } }, 'env.BIG', /131071/);
      const many = Object.fromEntries(Array.from({ length: 64 }, (_, i) => ['V' + i, 'x'.repeat(100000)]));
      await refused(path, { ...body, env: many }, 'env', /the system takes \d+/);
    }
    await refused('/api/execute', { args: ['true', 'x'.repeat(200000)] }, 'args[1]', /131071/);
    await refused('/api/execute', { args: ['true', ...Array(64).fill('x'.repeat(100000))] }, 'args', /the system takes/);
    await refused('/api/execute', { args: Array(900000).fill('') }, 'args', /900000 members/);
    const tiny = Object.fromEntries(Array.from({ length: 800000 }, (_, i) => ['V' + i, '']));
    await refused('/api/execute', { command: 'true', env: tiny }, 'env', /800000 members/);
    // X90: what the kernel takes, where no session's shell stands between
    for (const door of doors) {
      for (const how of [{ args: ['env'] }, { command: 'env', sessionId: OFF }, { args: ['env'], sessionId: OFF }]) {
        const r = await door('/api/execute', { ...how, env: { 'my.var': 'dots', '1st': 'digit', 'BIG': 'x'.repeat(131067) } });
        assert.equal(r.status, 200);
        for (const line of ['my.var=dots', '1st=digit', 'BIG=xxx']) assert.ok(r.body.stdout.includes(line), line);
      }
    }
  } finally { await m.close(); await s.stop(); }
});

// A list of commands on one line, or in a subshell, is as deep for bash as it is long: it ended by SIGSEGV.
test('X149: tens of thousands of environment variables are set in a shell that waits, and in a subshell of a session', async () => {
  const s = await start(), n = 40000;
  const env = Object.fromEntries(Array.from({ length: n }, (_, i) => ['V' + i, 'x' + i]));
  const command = `echo "$V0 $V${n - 1}"`, want = `x0 x${n - 1}\n`;
  try {
    const r = await post(s, '/api/execute', { command, env, sessionId: OFF });
    assert.deepEqual([r.status, r.body.stdout, r.body.exitCode], [200, want, 0]);
    assert.equal((await post(s, '/api/execute', { command: 'KEPT=lives', sessionId: 'one' })).status, 200);
    const stream = await fetch(s.base + '/api/execute/stream', { method: 'POST', body: JSON.stringify({ command, env, sessionId: 'one' }) });
    const events = (await stream.text()).split('\n').filter(l => l.startsWith('data: ')).map(l => JSON.parse(l.slice(6)));
    assert.deepEqual([stream.status, events.find(e => e.type === 'stdout')?.data, events.at(-1)?.type], [200, want, 'complete']);
    assert.match((await post(s, '/api/execute', { command: 'echo "$KEPT"', sessionId: 'one' })).body.stdout, /^lives/);
  } finally { await s.stop(); }
});

// Calls that come together under a low limit of open files take turns; nothing that was lent is kept.
const limits = FULL ? Array.from({ length: 961 }, (_, i) => 64 + i) : [64, 100, 256, 511];
for (const n of ASAN ? limits.map(x => x + 64) : limits) test(`X140: with ${n} open files 40 plain executes are answered, and 40 more`, async () => {
  const s = await start({ prefix: ['prlimit', `--nofile=${n}:${n}`] });
  try {
    const together = n < 80 ? 8 : 40; // connections that it can hold beside their commands
    for (let round = 0; round < 2; round++) {
      const answers = [];
      while (answers.length < 40)
        answers.push(...await Promise.all(Array.from({ length: together }, (_, i) => exec(s, 'echo ' + (answers.length + i)))));
      assert.deepEqual(answers.map(r => [r.status, r.body.stdout]), answers.map((_, i) => [200, i + '\n']));
    }
    await until(async () => (await fetch(s.base + '/readyz')).status === 200, 'what was lent to be back');
  } finally { await s.stop(); }
});

test('X140: where processes hold the descriptors, a call is refused, and served when they have given them back', async () => {
  const s = await start({ prefix: ['prlimit', '--nofile=200:200'] });
  const running = async () => (await post(s, '/api/process/start', { command: 'sleep 1000', sessionId: OFF })).status;
  try {
    let started = 0;
    while (await running() === 200) assert.ok(++started < 100);
    const r = await exec(s);
    assert.deepEqual([r.status, r.body.code], [429, 'LIMIT_EXCEEDED']);
    assert.equal((await fetch(s.base + '/readyz')).status, 503);
    assert.equal((await fetch(s.base + '/api/process/kill-all', { method: 'DELETE' })).status, 200);
    await until(async () => (await exec(s)).status === 200, 'a call to be served');
    await until(async () => (await fetch(s.base + '/readyz')).status === 200, 'readiness');
  } finally { await s.stop(); }
});

test('X140: what is to end with its session, while there is no descriptor, ends when there is one', async () => {
  const s = await start();
  try {
    const d = await openDoor('ws', s), server = await serverPid(s);
    const shell = Number((await d.exec('mkfifo nobody-writes; echo $$', { sessionId: 'a' })).body.stdout);
    const blocked = d.exec('echo >begun; read line <nobody-writes', { sessionId: 'a' });
    await until(() => stat(path.join(s.workspace, 'begun')).catch(() => null), 'the command');
    // Of this one the shell has gone, and what it began is found by its mark.
    const left = Number((await d.exec('sleep 1000 & echo $!', { sessionId: 'b' })).body.stdout);
    await d.exec('exit', { sessionId: 'b' });
    const limit = n => execFileSync('prlimit', ['--pid', server, `--nofile=${n}:`]);
    limit(3); // fewer than it has
    const deleted = ['a', 'b'].map(sessionId => d.post('/api/session/delete', { sessionId }));
    assert.equal((await d.get('/api/ping')).status, 200); // it has tried
    for (const pid of [shell, left]) process.kill(pid, 0);
    limit(1024);
    for (const pid of [shell, left]) await gone(pid);
    for (const r of await Promise.all(deleted)) assert.equal(r.status, 200);
    assert.equal((await blocked).body.code, 'SESSION_DESTROYED');
    assert.equal((await d.exec('echo new', { sessionId: 'a' })).body.stdout, 'new');
    await d.close();
  } finally { await s.stop(); }
});

const NOBODY = 65534;
// A server whose commands run as nobody, in a workspace that is nobody's.
const asNobody = async (args = []) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'conflux-e2e-'));
  const workspace = path.join(dir, 'workspace');
  await mkdir(workspace);
  await chmod(dir, 0o755);
  await chown(workspace, NOBODY, NOBODY);
  return start({ workspace, args: ['--child-user', 'nobody', ...args] });
};
// A command that calls the API by itself and prints status and body of each answer.
const calls = (s, requests) => `exec node -e '(async () => { for (const [m, p, b] of ${JSON.stringify(requests)}) {
  const r = await fetch("${s.base}" + p, { method: m, body: b && JSON.stringify(b) }); console.log(r.status, (await r.json()).code ?? ""); } })()'`;

test('X142: with --child-user the API touches files as that user', { skip: process.getuid() !== 0 }, async () => {
  const s = await asNobody();
  const m = await connect(s);
  const secret = path.join(s.dir, 'secret');
  let n = 0;
  try {
    await writeFile(secret, 'secret', { mode: 0o600 });
    for (const door of [(p, b) => post(s, p, b), (p, b) => m.post(p, b)]) {
      for (const [p, b] of [['/api/read', { path: secret }], ['/api/write', { path: secret, content: 'x' }], ['/api/write', { path: s.dir + '/new', content: 'x' }],
        ['/api/files/chmod', { path: secret, mode: '0666' }], ['/api/write', { path: s.dir + '/up', uploadId: 'u', offset: 0, content: 'x' }],
        ['/api/delete', { path: secret }], ['/api/files/copy', { sourcePath: secret, destinationPath: 'copy' }]]) {
        const r = await door(p, b);
        assert.ok(r.status === 403 || r.status === 500 || r.status === 400, `${p} ${r.status}`);
        assert.notEqual(r.body.success, true, p);
      }
      const up = await door('/api/write', { path: 'up', uploadId: 'v' + ++n, offset: 0, content: 'abc', final: true });
      assert.equal(up.status, 200, JSON.stringify(up.body));
      assert.equal((await door('/api/write', { path: 'made.txt', content: 'x' })).status, 200);
      assert.equal((await door('/api/read', { path: 'made.txt' })).body.content, 'x');
      for (const name of ['made.txt', 'up']) assert.equal((await stat(path.join(s.workspace, name))).uid, NOBODY, name);
      for (const name of ['made.txt', 'up']) assert.equal((await door('/api/delete', { path: name })).status, 200);
      const as = await door('/api/execute', { command: 'id -u', user: 'root', sessionId: OFF });
      assert.deepEqual([as.status, as.body.context.validationErrors?.[0].field], [403, 'user']);
      assert.equal((await door('/api/execute', { command: 'id -u', sessionId: OFF })).body.stdout, NOBODY + '\n');
    }
    assert.equal((await fetch(`${s.base}/api/files/raw?path=${secret}`)).status, 403);
    assert.equal((await fetch(`${s.base}/api/files/raw?path=${s.dir}/raw`, { method: 'PUT', body: 'x' })).status, 403);
    assert.equal(await readFile(secret, 'utf8'), 'secret');
    const found = await m.post('/api/files/grep', { path: s.dir, pattern: 'secret' });
    assert.ok(!found.events.some(e => e.type === 'match'), JSON.stringify(found.events));
  } finally { await m.close(); await s.stop(); }
});

test('X142: what is read while the answer is sent is read as that user, too', { skip: process.getuid() !== 0 }, async () => {
  const s = await asNobody();
  try {
    // A list that is longer than what is gathered before the answer begins, and at its end a folder for root alone.
    const top = path.join(path.dirname(s.workspace), 'shared'), shut = path.join(top, 'shut');
    await mkdir(top);
    await chmod(top, 0o755);
    for (let i = 0; i < 2000; i++) await mkdir(path.join(top, 'd'.repeat(200) + i));
    await mkdir(shut, { mode: 0o700 });
    await writeFile(path.join(shut, 'secret'), '');
    const r = await post(s, '/api/list-files', { path: top, options: { recursive: true } });
    assert.equal(r.status, 200);
    const names = r.body.files.map(f => f.name);
    assert.deepEqual([names.length, names.includes('shut'), names.includes('secret'), r.body.skipped], [2001, true, false, 1]);
  } finally { await s.stop(); }
});

test('X142: a command may not call a server without a token', { skip: process.getuid() !== 0 }, async () => {
  const requests = [['GET', '/api/ping'], ['POST', '/api/execute', { command: 'id -u', sessionId: OFF }], ['POST', '/api/write', { path: '/tmp/x142', content: 'x' }], ['GET', '/api/process/list']];
  for (const [args, want] of [[[], '403 CHILD_NOT_ALLOWED\n'.repeat(4)], [['--allow-child-calls'], '200 \n'.repeat(4)]]) {
    const s = await asNobody(args);
    try {
      const r = await exec(s, calls(s, requests));
      assert.deepEqual([r.body.stdout, r.body.exitCode], [want, 0], r.body.stderr);
      if (!args.length) { // closed behind its request: nobody owns the connection any more
        const failures = () => metric(s, 'conflux_auth_failures_total'), before = await failures(), body = JSON.stringify({ command: `touch ${s.workspace}/gone`, sessionId: OFF });
        const request = `POST /api/execute HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: ${body.length}\\r\\n\\r\\n${body}`;
        assert.equal((await exec(s, `exec 3<>/dev/tcp/127.0.0.1/${s.port}; printf '${request}' >&3; exec 3>&-; echo sent`)).body.stdout, 'sent\n');
        await until(async () => await failures() > before, 'a refusal');
        assert.equal((await exec(s, 'ls')).body.stdout, '');
      }
      assert.equal((await exec(s)).body.stdout, 'served\n'); // others may
    } finally { await s.stop(); }
  }
});

test('X163: memory goes back to the system when the server is quiet again', { skip: ASAN }, async () => {
  const s = await start();
  const m = await connect(s);
  try {
    const pid = await serverPid(s);
    await Promise.all(Array.from({ length: 16 }, () => exec(s))); // as many workers as will be needed
    const before = await memory(pid, 'VmRSS');
    await exec(s, `${prints(MB)} > ${s.workspace}/large.txt`);
    for (let round = 0; round < 2; round++)
      for (const r of await Promise.all(Array.from({ length: 16 }, () => post(s, '/api/read', { path: 'large.txt' })))) assert.equal(r.body.size, MB);
    await m.post('/api/execute/stream', { command: prints(30 * MB), sessionId: OFF });
    await until(async () => await memory(pid, 'VmRSS') - before < 2 * MB, 'the memory to go back');
  } finally { await m.close(); await s.stop(); }
});

// A GET whose answer is not read but for what fills the buffers; gone: whether the server has ended it.
const unread = (s, path, headers = '') => new Promise((resolve, reject) => {
  const k = net.connect(Number(s.port), '127.0.0.1', () => k.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n${headers}\r\n`));
  k.once('data', d => { k.pause(); resolve({ k, status: Number(/^HTTP\/1.1 (\d+)/.exec(d.toString('latin1'))?.[1]) }); }).once('error', reject);
});
const threads = async pid => Number(/^Threads:\s+(\d+)/m.exec(await readFile(`/proc/${pid}/status`, 'utf8'))[1]);

test('X143: an archive that nobody takes is in the memory budget, also before it is compressed, and comes back', async () => {
  const s = await start();
  try {
    await mkdir(`${s.workspace}/tree`);
    await exec(s, `head -c ${16 * MB} /dev/urandom > ${s.workspace}/tree/random`);
    assert.equal(await held(s, 'transfers'), 0);
    for (const [least, headers] of [[33 * 1024, ''], [200 * 1024, 'Accept-Encoding: gzip\r\n']]) {
      const { k, status } = await unread(s, `/api/files/archive?path=${s.workspace}/tree`, headers);
      assert.equal(status, 200);
      assert.ok(await held(s, 'transfers') >= least);
      k.destroy();
      await until(async () => await held(s, 'transfers') === 0, 'all to be given back');
    }
  } finally { await s.stop(); }
});

test('X143: who does not read a large answer is sent away when others have no room for theirs', async () => {
  const s = await start({ args: ['--memory-budget', '64M'] });
  const clients = [];
  try {
    await exec(s, `${prints(10 * MB)} > ${s.workspace}/large.txt`);
    const read = async () => (await post(s, '/api/read', { path: `${s.workspace}/large.txt` })).body.size;
    for (let i = 0; i < 3; i++) {
      const body = JSON.stringify({ path: `${s.workspace}/large.txt` });
      const k = net.connect(Number(s.port), '127.0.0.1', () => k.write(`POST /api/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`));
      k.on('error', () => {});
      clients.push(k);
      await new Promise(resolve => k.once('data', () => { k.pause(); resolve(); }));
    }
    assert.ok(await held(s, 'results') > 30 * MB);
    assert.equal(await read(), 10 * MB); // from a file
    await until(async () => await held(s, 'results') < 30 * MB, 'one who does not read to be sent away');
    const filed = await metric(s, 'conflux_memory_spilled_bytes_total');
    assert.ok(filed > 0);
    assert.equal(await read(), 10 * MB);
    assert.equal(await metric(s, 'conflux_memory_spilled_bytes_total'), filed); // there was room
  } finally { clients.forEach(k => k.destroy()); await s.stop(); }
});

test('X04: archives that are compressed for many compute on a few threads, which end then', async () => {
  const n = 24, s = await start();
  try {
    const pid = await serverPid(s);
    await exec(s, `head -c ${MB} /dev/urandom > ${s.workspace}/random`);
    const url = `${s.base}/api/files/archive?path=${s.workspace}/random`;
    await (await fetch(url)).arrayBuffer();
    await metric(s, 'conflux_processes');
    const before = await threads(pid);
    let most = 0, open = n;
    const all = Promise.all(times(n, async () => { const r = await fetch(url); assert.equal((await r.arrayBuffer()).byteLength, MB + 3 * 512); open--; }));
    while (open) most = Math.max(most, await threads(pid));
    await all;
    assert.ok(most <= before + 8, `${most} threads, ${before} before`);
    await until(async () => await threads(pid) <= before + 2, 'the threads to end');
  } finally { await s.stop(); }
});

test('X38: the whole logs of processes, read by many at once, cost what the memory budget allows', async () => {
  const size = 6 * MB, n = 6;
  const s = await start({ args: ['--memory-budget', '16M'] });
  const m = await connect(s);
  try {
    assert.equal((await post(s, '/api/process/start', { command: prints(size), processId: 'p', sessionId: OFF })).status, 200);
    await fetch(s.base + '/api/process/p/wait?for=exit');
    const pid = await serverPid(s), before = await memory(pid, 'VmRSS');
    m.ws.pause();
    const mux = Array.from({ length: n }, () => m.get('/api/process/p/logs'));
    const http = await Promise.all(Array.from({ length: n }, async () => (await fetch(s.base + '/api/process/p/logs')).json()));
    m.ws.resume();
    for (const body of [...http, ...(await Promise.all(mux)).map(r => r.body)]) assert.equal(body.stdout.length, size);
    assert.ok(await metric(s, 'conflux_memory_spilled_bytes_total') > 0);
    if (!ASAN) assert.ok(await memory(pid, 'VmHWM') - before < 16 * MB + 24 * MB, 'peak of the memory');
    await until(async () => await held(s, 'results') === 0, 'all to be given back');
  } finally { await m.close(); await s.stop(); }
});

// A comment of n bytes and more, then the command. The byte at which its head ends is in the middle of a character.
const long = (n, command) => `#${'x'.repeat(4094)}é${'x'.repeat(n - 4097)}\n${command}`;
const bytes = text => Buffer.byteLength(text);
const sha256 = text => createHash('sha256').update(text).digest('hex');
// What an answer tells of a command; the text by its digest, or a failure would print all of it.
const told = ({ command, commandLength, commandSha256, commandTruncated }) => ({ command: [bytes(command), sha256(command)], commandLength, commandSha256, commandTruncated });
const short = text => told({ command: Buffer.from(text).subarray(0, 4095).toString(), commandLength: bytes(text), commandSha256: sha256(text), commandTruncated: true });
const sizes = async (dir, suffix) => {
  const names = (await readdir(dir)).filter(f => f.includes(suffix));
  return Promise.all(names.map(async f => (await stat(path.join(dir, f))).size));
};
const sum = all => all.reduce((a, b) => a + b, 0);
const marked = file => until(() => readFile(file, 'utf8').catch(() => ''), 'the last line of the command to run');
const nothingHeld = s => until(async () => await held(s, 'commands') + await held(s, 'json') + await held(s, 'bodies') === 0, 'nothing of the request to be held');

for (const name of ['http', 'ws']) test(`X145 [${name}]: the text of a command, however long, is run whole and kept by its head`, async () => {
  const n = full(15, 4), size = full(15, 5) * MB;
  const s = await start({ args: ['--keep-alive', '3600000'] });
  let d = await openDoor(name, s);
  const file = i => path.join(s.workspace, 'ran' + i);
  const texts = times(n, i => long(size, `echo ran > ${file(i)}; exec sleep 1000`)), shorts = texts.map(short);
  const state = path.join(s.dir, 'state'), logs = path.join(state, 'logs');
  try {
    const pid = await serverPid(s), before = await memory(pid, 'VmRSS');
    const pids = [];
    for (let i = 0; i < n; i++) {
      const r = await d.startProcess('p' + i, texts[i]);
      assert.deepEqual([r.status, told(r.body)], [200, shorts[i]]);
      pids.push(r.body.pid);
      assert.equal(await marked(file(i)), 'ran\n');
    }
    await nothingHeld(s);
    if (!ASAN) await until(async () => await memory(pid, 'VmRSS') - before < 8 * MB, 'the memory to go back');
    const look = async () => {
      const list = (await d.get('/api/process/list')).body;
      assert.ok(JSON.stringify(list).length < n * 12288, 'a small list');
      assert.deepEqual(list.processes.map(told), shorts);
      assert.deepEqual(told(await d.process('p3')), shorts[3]);
      const again = await d.startProcess('p3', texts[3]); // the same request: the same process
      assert.deepEqual([again.status, again.body.pid, told(again.body)], [200, pids[3], shorts[3]]);
      const other = await d.startProcess('p3', texts[3].slice(0, -1) + '1'); // of that head and length
      assert.deepEqual([other.status, other.body.code], [409, 'RESOURCE_BUSY']);
      assert.ok(sum(await sizes(state, 'registry.db')) < 4 * MB, 'a small registry');
      assert.equal(sum(await sizes(logs, '.cmd')), sum(texts.map(bytes)));
    };
    await look();
    await d.close();
    process.kill(pid, 'SIGKILL');
    await until(async () => { const now = await serverPid(s); return now && now !== pid && fetch(s.base + '/healthz').then(r => r.ok, () => false); }, 'the next server');
    d = await openDoor(name, s);
    await look();
  } finally { await d.close(); await s.stop(); }
});

own('X145', 'every way to run a long command runs all of it, shows its head, and holds nothing of the request', {}, async (d, s) => {
  const size = 3 * MB; // also what a pre-started shell takes
  const gate = path.join(s.workspace, 'gate'), go = async () => assert.equal((await d.exec(`echo go > ${gate}`)).body.exitCode, 0);
  const text = long(size, `read x < ${gate}; echo "$x"`);
  assert.equal((await d.exec(`mkfifo ${gate}`)).body.exitCode, 0);
  for (const how of [{ sessionId: OFF }, { sessionId: OFF, executionId: 'e1' }, { sessionId: 'a' }, { sessionId: 'a', executionId: 'e2' }]) {
    const running = d.exec(text, how);
    await until(async () => await metric(s, 'conflux_processes') === 1, 'the command to run');
    await nothingHeld(s);
    await go();
    const r = await running;
    assert.deepEqual([r.status, r.body.stdout.trim(), told(r.body)], [200, 'go', short(text)]);
    if (!how.executionId) continue;
    assert.deepEqual(told((await d.get('/api/execution/' + how.executionId)).body), short(text));
    const again = await d.exec(text, how);
    assert.deepEqual([again.status, again.body.stdout.trim(), told(again.body)], [200, 'go', short(text)]);
    assert.equal((await d.exec(text + ' ', how)).status, 409);
  }
  for (const sessionId of [OFF, 'a']) {
    const st = d.execStream(text, { sessionId });
    assert.deepEqual(told(await st.until(e => e.type === 'start')), short(text));
    await nothingHeld(s);
    await go();
    assert.equal((await st.done).status, 200);
    assert.equal(st.text(), 'go\n');
    const r = await d.startProcess('p' + sessionId, long(size, 'echo ran'), { sessionId });
    assert.deepEqual(told(r.body), short(long(size, 'echo ran')));
    await d.wait('p' + sessionId, '&for=exit');
    assert.equal((await d.get(`/api/process/p${sessionId}/logs`)).body.stdout, 'ran\n');
  }
  const args = ['sh', '-c', 'echo "$# ${#1}"', 'sh', 'x'.repeat(100000), 'y']; // the text shown is the words joined
  const r = await d.request('POST', '/api/execute', { args });
  assert.deepEqual([r.body.stdout.trim(), r.body.commandLength, r.body.commandSha256], ['2 100000', args.join(' ').length, sha256(args.join(' '))]);
  const refused = await d.request('POST', '/api/execute/stream', { args: ['/nowhere', 'x'.repeat(100000)] });
  assert.equal(refused.status, 404);
  assert.ok(JSON.stringify(refused.body).length < 12288, 'a small error');
  for (const n of [65536 - 2, 65536]) { // the longest that is kept whole, and one that is not
    const at = `#${'x'.repeat(n)}\n`;
    const head = { command: at.slice(0, 4096), commandLength: n + 2, commandSha256: sha256(at), commandTruncated: true };
    assert.deepEqual(told((await d.exec(at)).body), told(n < 65536 ? { command: at } : head));
  }
});

own('X145', 'the texts of commands count with the logs, and go with them', { args: ['--log-total', '8M'] }, async (d, s) => {
  const size = 3 * MB, logs = path.join(s.dir, 'state', 'logs');
  for (let i = 0; i < 4; i++) {
    assert.equal((await d.startProcess('p' + i, long(size, 'echo ran'))).status, 200);
    await d.wait('p' + i, '&for=exit');
  }
  const left = (await d.get('/api/process/list')).body.processes.map(p => p.id);
  assert.deepEqual(left, ['p2', 'p3']); // two of them are 6 MiB and some bytes
  await until(async () => (await sizes(logs, '.cmd')).length === 2, 'the files to go');
});

// A write beyond the limit raises SIGXFSZ, whose default ends the process that made it: keeper and server ignore it, commands do not.
test('a limit on the size of files (ulimit -f) is met like a full disk', async () => {
  const s = await start({ prefix: ['prlimit', '--fsize=300000'] });
  try {
    const pid = await serverPid(s), large = 'x'.repeat(1e6);
    const ignored = async p => (BigInt('0x' + /SigIgn:\t(\w+)/.exec(await readFile(`/proc/${p}/status`, 'utf8'))[1]) >> 24n & 1n) === 1n;
    assert.deepEqual([await ignored(s.child.pid), await ignored(pid)], [true, true]);
    assert.match((await exec(s, 'head -c 1000000 /dev/zero > f; kill -l $?')).body.stdout, /^XFSZ$/m);
    const kept = await post(s, '/api/execute', { command: 'head -c 1000000 /dev/zero | tr "\\0" x', executionId: 'kept', sessionId: OFF });
    assert.deepEqual([kept.status, kept.body.exitCode, kept.body.stdoutTruncated], [200, 0, true]);
    assert.equal((await post(s, '/api/write', { path: 'f', content: large })).status, 500);
    assert.equal((await post(s, '/api/write', { path: 'up', content: large, uploadId: 'u', offset: 0, final: false })).body.code, 'FILE_TOO_LARGE');
    const raw = await fetch(s.base + '/api/files/raw?path=raw', { method: 'PUT', body: large });
    assert.deepEqual([raw.status, (await raw.json()).code], [500, 'NO_SPACE']);
    assert.equal((await exec(s, 'echo on')).body.stdout, 'on\n');
    assert.equal(await serverPid(s), pid);
  } finally { await s.stop(); }
});
