// The JavaScript client's methods on the real program: over one WebSocket, and the same over HTTP.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { connect, ApiError } from '../../../client/js/src/node/index.js';
import { start, until, gone } from '../lib/server.mjs';

const collect = async stream => { const all = []; for await (const e of stream) all.push(e); return all; };
const text = (events, type = 'stdout') => events.filter(e => e.type === type).map(e => e.data).join('');

for (const transport of ['websocket', 'http']) describe(`client over ${transport}`, () => {
  let s, c, D;
  before(async () => { s = await start(); c = await connect({ baseUrl: s.base, transport }); D = s.workspace; });
  after(async () => { await c.dispose(); await s.stop(); });

  test('it is connected, by the way that was asked for', async () => {
    assert.deepEqual([c.transport.getMode(), c.transport.isConnected()], [transport, true]);
    assert.equal(await c.ping(), 'healthy');
    assert.equal(await c.version(), (await (await fetch(`${s.base}/api/version`)).json()).version);
  });

  test('exec: shell and argv, input as text and as bytes, exit codes, environment, folder, base64', async () => {
    const r = await c.exec('echo out; echo err >&2; exit 3');
    assert.deepEqual([r.success, r.exitCode, r.stdout, r.stderr, r.outcome], [false, 3, 'out\n', 'err\n', 'exited']);
    assert.equal((await c.exec(['printf', '%s|', 'a b', '$HOME'])).stdout, 'a b|$HOME|');
    assert.equal((await c.exec('tr a-z A-Z', { stdin: 'été' })).stdout, 'éTé');
    const bytes = randomBytes(5000);
    assert.deepEqual(Buffer.from((await c.exec('cat', { stdin: bytes, encoding: 'base64' })).stdout, 'base64'), bytes);
    assert.equal((await c.exec('echo "$A $PWD"', { env: { A: '1' }, cwd: '/' })).stdout, '1 /\n');
  });

  test('a timeout of the command is a result, an error of the server is typed', async () => {
    assert.deepEqual((({ exitCode, timedOut }) => [exitCode, timedOut])(await c.exec('sleep 60', { timeout: 50 })), [124, true]);
    await assert.rejects(c.exec('true', { cwd: 5 }), e => e instanceof ApiError && e.code === 'VALIDATION_FAILED' && e.status === 400 && !e.retrySafe);
    await assert.rejects(c.readFile('/no/such'), e => e.code === 'FILE_NOT_FOUND' && e.status === 404 && e.context.path === '/no/such');
  });

  test('commands without a session run at the same time', async () => {
    const first = c.exec(`while ! test -e ${D}/go-${transport}; do sleep 0.01; done; echo first`);
    assert.equal((await c.exec(`echo second >${D}/go-${transport}; echo second`)).stdout, 'second\n');
    assert.equal((await first).stdout, 'first\n');
  });

  test('execStream: live events, and the end', async () => {
    const events = await collect(c.execStream('echo a; echo b >&2; exit 4'));
    assert.deepEqual([events[0].type, text(events), text(events, 'stderr'), events.at(-1).type, events.at(-1).exitCode], ['start', 'a\n', 'b\n', 'complete', 4]);
  });

  test('a stream of 32 MB to a slow reader arrives whole', async () => {
    const hash = createHash('sha256'), want = createHash('sha256').update('0123456789abcdef'.repeat(1 << 21)).digest('hex');
    let n = 0;
    for await (const e of c.execStream("yes 0123456789abcdef | tr -d '\\n' | head -c 33554432")) {
      if (e.type === 'stdout') hash.update(e.data);
      if (n++ % 50 === 0) await new Promise(setImmediate);
    }
    assert.equal(hash.digest('hex'), want);
  });

  test('processes: start, logs, wait, input, signal, kill, list', async () => {
    const p = await c.startProcess({ command: 'for i in 1 2 3; do echo line $i; done; echo e >&2; exit 7' });
    let out = '';
    for await (const log of p.logs()) if (log.type === 'stdout') out += log.output;
    assert.equal(out, 'line 1\nline 2\nline 3\n');
    assert.deepEqual((({ exitCode, status, outcome }) => [exitCode, status, outcome])(await p.wait()), [7, 'failed', 'exited']);
    assert.equal((await p.output()).stderr, 'e\n');
    const piece = await p.output({ stream: 'stdout', from: 5, limit: 2 });
    assert.deepEqual([piece.data, piece.next, piece.total], ['1\n', 7, 21]);

    const q = await c.startProcess('cat; sleep 1000', { stdin: 'open', processId: `q-${transport}` });
    await q.write('hello\n');
    assert.match((await q.waitForLog('hel+o', { regex: true })).line, /hello/);
    await assert.rejects(q.wait({ timeout: 50 }), e => e.code === 'PROCESS_READY_TIMEOUT');
    assert.ok((await c.listProcesses({ status: 'running' })).some(x => x.id === q.id));
    assert.equal((await c.getProcess(q.id)).pid, q.pid);
    assert.ok((await q.kill({ signal: 'SIGKILL' })).killed.includes(q.pid));
    assert.equal((await q.refresh()).signal, 'SIGKILL');
    await gone(q.pid);

    const r = await c.startProcess(['sleep', '1000']);
    await r.sendSignal('SIGINT');
    assert.equal((await r.wait()).signal, 'SIGINT');
    await assert.rejects(c.killProcess('none'), e => e.code === 'PROCESS_NOT_FOUND');
    await c.startProcess('sleep 1000');
    assert.equal(await c.killAllProcesses(), 1);
  });

  test('sessions keep their state', async () => {
    const one = await c.createSession({ id: `one-${transport}`, cwd: '/' });
    await one.exec('cd /usr; X=5; f() { echo "f$X"; }');
    assert.equal((await one.exec('pwd; f')).stdout, '/usr\nf5');
    assert.equal((await one.readFile('../etc/hostname')).content, await readFile('/etc/hostname', 'utf8'));
    assert.ok((await c.listSessions()).includes(one.id));
    assert.equal(text(await collect(c.session(one.id).execStream('f'))), 'f5\n');
    await one.delete();
    assert.ok(!(await c.listSessions()).includes(one.id));
  });

  test('files: text and bytes, and all that is done to them', async () => {
    const F = `${D}/${transport}`;
    await c.mkdir(`${F}/d`, { recursive: true });
    await c.writeFile(`${F}/a.txt`, 'héllo\n');
    assert.equal(await readFile(`${F}/a.txt`, 'utf8'), 'héllo\n');
    await c.writeFile(`${F}/a.txt`, 'more', { append: true });
    assert.equal((await c.readFile(`${F}/a.txt`)).content, 'héllo\nmore');
    const bytes = randomBytes(300);
    await c.writeFile(`${F}/b.bin`, bytes, { mode: '0600' });
    assert.deepEqual(await readFile(`${F}/b.bin`), bytes);
    assert.deepEqual(Buffer.from(await c.readBytes(`${F}/b.bin`, { pieceBytes: 100 })), bytes);
    assert.equal((await c.stat(`${F}/b.bin`)).mode, '0600');
    await c.copyFile(`${F}/b.bin`, `${F}/d/c.bin`);
    await c.chmod(`${F}/d/c.bin`, '0640');
    await c.renameFile(`${F}/d/c.bin`, `${F}/d/e.bin`);
    await c.moveFile(`${F}/a.txt`, `${F}/d/a.txt`);
    assert.deepEqual((await c.listFiles(F, { recursive: true })).map(f => f.relativePath).sort(), ['b.bin', 'd', 'd/a.txt', 'd/e.bin']);
    assert.deepEqual([await c.exists(`${F}/d/a.txt`), await c.exists(`${F}/a.txt`)], [true, false]);
    await c.deleteFile(`${F}/d/a.txt`);
    assert.deepEqual((await collect(c.readFileStream(`${F}/b.bin`))).map(e => e.type), ['metadata', 'chunk', 'complete']);
    assert.deepEqual(Buffer.from(await (await c.getRaw(`${F}/b.bin`, { headers: { Range: 'bytes=10-19' } })).arrayBuffer()), bytes.subarray(10, 20));
    await c.putRaw(`${F}/new/raw`, bytes, { parents: true });
    assert.deepEqual(await readFile(`${F}/new/raw`), bytes);
  });

  test('a file of 20 MB goes up and down in pieces', async () => {
    const bytes = randomBytes(20 << 20);
    await c.writeFile(`${D}/big-${transport}`, bytes);
    assert.ok(bytes.equals(await readFile(`${D}/big-${transport}`)));
    assert.ok(bytes.equals(await c.readBytes(`${D}/big-${transport}`)));
  });

  test('search, grep, replace and a batch', async () => {
    const F = `${D}/find-${transport}`;
    await c.batch([['a.c', 'int one;\n'], ['b.c', 'int two;\n'], ['c.h', 'one\n']].map(([name, body]) => () => c.writeFile(`${F}/${name}`, body)));
    const found = (await collect(c.search(F, { glob: '*.c' }))).filter(e => e.type === 'match');
    assert.deepEqual(found.map(e => e.name).sort(), ['a.c', 'b.c']);
    const lines = (await collect(c.grep(F, 'one'))).filter(e => e.type === 'match');
    assert.deepEqual(lines.map(e => e.text.trim()).sort(), ['int one;', 'one']);
    assert.equal((await c.replace(`${F}/a.c`, [{ old: 'one', new: 'three' }])).replacements, 1);
    assert.equal(await readFile(`${F}/a.c`, 'utf8'), 'int three;\n');
    const { results, failed } = await c.batchFiles([{ path: '/api/read', body: { path: `${F}/b.c` } }, { path: '/api/delete', body: { path: `${F}/none` } }]);
    assert.deepEqual([results.map(r => r.status), results[0].body.content, failed], [[200, 404], 'int two;\n', 1]);
  });

  test('a folder goes as an archive, and comes back', async () => {
    const F = `${D}/tree-${transport}`;
    await c.writeFile(`${F}/d/a`, 'A');
    await c.writeFile(`${F}/b`, 'B');
    const tar = Buffer.from(await (await c.getArchive(F)).arrayBuffer());
    assert.equal(tar.toString('latin1', 257, 262), 'ustar');
    await c.mkdir(`${F}-2`);
    await c.putArchive(`${F}-2`, tar);
    assert.deepEqual([await readFile(`${F}-2/d/a`, 'utf8'), await readFile(`${F}-2/b`, 'utf8')], ['A', 'B']);
    await assert.rejects(c.getArchive(`${F}-none`), e => e instanceof ApiError && e.status === 404);
  });

  test('who listens, and what is used', async () => {
    assert.ok((await c.ports()).some(p => p.port === Number(s.port) && p.address === '127.0.0.1'));
    assert.ok((await c.usage()).memory.usedBytes > 0);
    let n = 0;
    for await (const e of c.watchUsage({ intervalMs: 100 })) { assert.ok(e.disk.totalBytes > 0); if (++n === 2) break; }
  });

  test('watch tells of changes, and ends on the server when it is left', async () => {
    const F = `${D}/watch-${transport}`;
    await c.mkdir(F);
    for await (const e of c.watch(F)) {
      if (e.type === 'watching') await writeFile(`${F}/x`, '1');
      if (e.type === 'event') { assert.equal(e.path, `${F}/x`); break; }
    }
    await until(async () => !JSON.stringify(await c.pending()).includes('/api/watch"'), 'the watch to end');
    assert.equal((await c.checkChanges(F)).status, 'unchanged');
  });

  test('events, from the last one seen', async () => {
    const first = [];
    const events = c.events({ from: 0 });
    const r = await c.exec('true', { executionId: `ev-${transport}` });
    for await (const e of events) { first.push(e); if (e.type === 'execution.ended' && e.executionId === r.executionId) break; }
    const later = c.events({ from: first.at(-1).id });
    await c.createSession({ id: `ev-${transport}` });
    for await (const e of later) { assert.deepEqual([e.type, e.sessionId], ['session.created', `ev-${transport}`]); break; }
  });

  test('an execution by its id', async () => {
    const id = `ex-${transport}`;
    const running = c.exec('echo one; sleep 0.2; echo two', { executionId: id });
    await until(() => c.execution(id).result({ timeout: 0 }).then(r => r === null, e => { if (e.status === 404) return false; throw e; }), 'it to run');
    assert.equal((await c.execution(id).result()).stdout, 'one\ntwo\n');
    assert.equal((await running).stdout, 'one\ntwo\n');
    assert.equal((await c.exec('echo one; sleep 0.2; echo two', { executionId: id })).stdout, 'one\ntwo\n');
    assert.equal(text(await collect(c.execution(id).stream({ from: 4 }))), 'two\n');
    assert.equal((await c.execution(id).logs({ stream: 'stdout', from: 4 })).data, 'two\n');
    const endless = c.exec('sleep 1000', { executionId: `${id}-2` }).then(r => r.outcome, e => e.code);
    await until(() => c.execution(`${id}-2`).result({ timeout: 0 }).then(r => r === null, () => false), 'it to run');
    await c.execution(`${id}-2`).cancel();
    assert.equal(await endless, 'CANCELLED');
  });

  test('an AbortSignal ends the command', async () => {
    const stop = new AbortController();
    const mark = `99${process.pid % 1000}.${transport === 'http' ? 1 : 2}`;
    const run = c.exec(`echo $$ >${D}/pid-${transport}; exec sleep ${mark}`, { signal: stop.signal });
    const pid = await until(() => readFile(`${D}/pid-${transport}`, 'utf8').then(Number, () => 0), 'the command');
    stop.abort(new Error('enough'));
    await assert.rejects(run, /enough/);
    await gone(pid);
    await assert.rejects(c.exec('true', { signal: stop.signal }), /enough/);
  });

  test('a batch keeps order and bounds what is in flight; one failure ends it, or is told', async () => {
    let now = 0, most = 0;
    const task = i => async () => { most = Math.max(most, ++now); const r = await c.exec(`echo ${i}`); now--; return r.stdout; };
    assert.deepEqual(await c.batch(Array.from({ length: 20 }, (_, i) => task(i)), { concurrency: 4 }), Array.from({ length: 20 }, (_, i) => `${i}\n`));
    assert.equal(most, 4);
    await assert.rejects(c.batch([() => c.readFile('/none')]), e => e.code === 'FILE_NOT_FOUND');
    assert.deepEqual((await c.batch([() => c.readFile('/none'), () => 5], { settle: true })).map(r => r.status), ['rejected', 'fulfilled']);
  });

  test('fetch and fetchStream, as the transport of the SDK has them', async () => {
    const r = await c.transport.fetch('/api/execute', { method: 'POST', body: JSON.stringify({ command: 'echo hi' }) });
    assert.deepEqual([r.status, (await r.json()).stdout], [200, 'hi']);
    assert.equal((await c.transport.fetch('/nope')).status, 404);
    assert.match(await (await c.transport.fetch('/metrics')).text(), /^# HELP/);
    const sse = await new Response(await c.transport.fetchStream('/api/execute/stream', { command: 'echo hi' })).text();
    assert.match(sse, /^data: \{"type":"start".*\n\ndata: \{"type":"stdout","data":"hi\\n".*\n\ndata: \{"type":"complete","exitCode":0/);
    const streamed = await c.transport.fetch('/api/execute/stream', { method: 'POST', body: '{"command":"echo hi"}' });
    assert.match(await streamed.text(), /"complete","exitCode":0/);
  });
});

test('input in many small pieces waits for a command that reads late', async () => {
  const s = await start();
  const c = await connect({ baseUrl: s.base, transport: 'websocket' });
  const wc = c.execStream('sleep 1; wc -c', { stdin: 'open' });
  wc.write(new Uint8Array(100000)); // more than a pipe holds
  for (let i = 0; i < 20000; i++) wc.write('x'); // the server holds 16,384 receipts
  await wc.close();
  assert.equal(text(await collect(wc)), '120000\n');
  await c.dispose();
  await s.stop();
});

for (const transport of ['websocket', 'http']) {
  test(`a command takes input while it runs, over ${transport}`, async () => {
    const s = await start();
    const c = await connect({ baseUrl: s.base, transport });
    const cat = c.execStream('cat', { stdin: 'open' });
    cat.write('one ');
    cat.write(new Uint8Array([0xc3, 0xa9]));
    cat.close('\n');
    assert.equal(text(await collect(cat)), 'one é\n');
    assert.throws(() => cat.write('late'), e => e.code === 'NOT_SUPPORTED');
    await c.dispose();
    await s.stop();
  });

  test(`a command that reads late gets all of a long input, over ${transport}`, async () => {
    const s = await start();
    const c = await connect({ baseUrl: s.base, transport });
    const size = 24 << 20; // the server holds 16 MiB for it
    const wc = c.execStream('sleep 1; wc -c', { stdin: 'open' });
    wc.write('é'.repeat(size / 4));
    await wc.close(new Uint8Array(size / 2));
    assert.equal(text(await collect(wc)), `${size}\n`);
    const deaf = c.execStream('exec <&-; sleep 1', { stdin: 'open' });
    await deaf.close(new Uint8Array(size)); // nobody takes it: no reason to wait for ever
    assert.equal((await collect(deaf)).at(-1).exitCode, 0);
    await c.dispose();
    await s.stop();
  });
}

test('an error whose body has no words says the status', () => {
  for (const body of ['', null, [], {}, { message: '' }, { message: 5 }, { message: {}, error: '' }]) {
    assert.equal(new ApiError(502, body).message, 'HTTP status 502');
  }
  assert.equal(new ApiError(502, { message: '', error: 'why' }).message, 'why');
});
