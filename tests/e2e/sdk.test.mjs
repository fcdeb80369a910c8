// The unmodified SDK package against the real program, over both of its transports.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { start, until } from './lib/server.mjs';
import { client, events, sdk, text } from './lib/sdk.mjs';

const OFF = '__DISABLE_SESSION__';
const code = c => e => { assert.equal(e.code, c, e.message); return true; };

for (const transport of ['http', 'websocket']) describe(`SDK over ${transport}`, () => {
  let s, c, D;
  const X = (cmd, session = 'main', o) => c.commands.execute(cmd, session, o);
  before(async () => { s = await start(); c = client(s, transport); D = s.workspace; });
  after(async () => { c.disconnect?.(); await s.stop(); });

  test('ping, version, commands', async () => {
    await c.utils.ping();
    assert.match(await c.utils.getVersion(), /^\d+\.\d+\.\d+/);
    assert.ok(Array.isArray(await c.utils.getCommands()));
  });

  test('execute: result, exit codes, streams apart, one trailing newline removed', async () => {
    const r = await X('printf "a\\nb\\n"; echo err >&2; (exit 7)');
    assert.deepEqual([r.success, r.exitCode, r.stdout, r.stderr, r.sessionId], [false, 7, 'a\nb', 'err', 'main']);
    assert.equal((await X('printf "x\\n\\n"')).stdout, 'x\n');
    assert.equal((await X('no_such_command_here')).exitCode, 127);
    assert.equal((await X("bash -c 'kill -9 $$'")).exitCode, 137);
  });

  test('a session keeps cwd, variables, functions; per-command env and cwd do not stick', async () => {
    await X('cd /tmp; export E=1; v=2; f() { echo fn:$1; }');
    assert.equal((await X('pwd; echo $E $v; f x')).stdout, '/tmp\n1 2\nfn:x');
    assert.equal((await X('pwd; echo $E', 'main', { cwd: '/usr', env: { E: "q'uo te" } })).stdout, "/usr\nq'uo te");
    assert.equal((await X('pwd; echo $E')).stdout, '/tmp\n1');
    const bad = await X('pwd', 'main', { cwd: '/no/such' });
    assert.deepEqual([bad.exitCode, bad.stdout], [1, '']);
    assert.match(bad.stderr, /Failed to change directory to '\/no\/such'/);
  });

  test('exit ends the shell: 410, and the next call gets a fresh one', async () => {
    await X('export GONE=1', 'ends');
    await assert.rejects(X('exit 5', 'ends'), e => code('SESSION_TERMINATED')(e) && (assert.equal(e.context.exitCode, 5), true));
    assert.equal((await X('echo "[$GONE]"', 'ends')).stdout, '[]');
  });

  test('unbalanced quotes and open heredocs are errors of that command, never a hang', async () => {
    for (const cmd of ['echo "open', 'cat <<X', 'if true; then', '((']) {
      // bash ends an open heredoc at the end of the text, with a warning; the others are syntax errors
      await X(cmd, 'syntax').then(r => assert.ok(r.exitCode !== 0 || /here-document/.test(r.stderr), cmd + JSON.stringify(r)), code('SESSION_TERMINATED'));
      assert.equal((await X('echo ok', 'syntax')).stdout, 'ok');
    }
    assert.equal((await X("cat <<'EOF'\nl1\n  l2\nEOF", 'syntax')).stdout, 'l1\n  l2');
  });

  test('timeouts end the command and leave the session usable', async () => {
    await assert.rejects(X('sleep 60', 'slow', { timeoutMs: 200 }), e => code('COMMAND_EXECUTION_ERROR')(e) && /Command timeout after 200ms$/.test(e.message));
    assert.equal((await X('echo ok', 'slow')).stdout, 'ok');
    const r = await X('sleep 60', OFF, { timeoutMs: 200 });
    assert.equal(r.exitCode, 124);
    assert.match(r.stderr, /Command timed out after 200ms/);
  });

  test('large output is exact', async () => {
    const r = await X('seq 1 200000');
    assert.equal(r.stdout.length, 1288894);
    const o = await X('seq 1 20000; seq 1 20000 >&2', OFF);
    assert.deepEqual([o.stdout.length, o.stderr.length], [108894, 108894]);
  });

  test('executeStream: start, output, complete; nothing lost', async () => {
    const ev = await events(await c.commands.executeStream('echo one; echo two >&2; sh -c "exit 4"', 'st'));
    assert.equal(ev[0].type, 'start');
    assert.deepEqual([text(ev, 'stdout'), text(ev, 'stderr')], ['one\n', 'two\n']);
    assert.deepEqual([ev.at(-1).type, ev.at(-1).exitCode], ['complete', 4]);
    const long = await events(await c.commands.executeStream('seq 1 20000', 'st'));
    const want = Array.from({ length: 20000 }, (_, i) => i + 1 + '\n').join('');
    assert.ok(text(long, 'stdout') === want, 'the stream differs from what was written');
    const ends = await events(await c.commands.executeStream('printf abc; exit 9', 'st'));
    assert.deepEqual([text(ends, 'stdout'), ends.at(-1).exitCode], ['abc', 9]);
  });

  test('processes: start, list, logs, stream, kill', async () => {
    const r = await c.processes.startProcess('echo first; sleep 300', 'pr', { processId: 'p1' });
    assert.equal(r.processId, 'p1');
    await until(async () => (await c.processes.getProcessLogs('p1')).stdout === 'first\n', 'the first line');
    assert.ok((await c.processes.listProcesses()).processes.some(p => p.id === 'p1' && p.status === 'running'));
    const stream = c.processes.streamProcessLogs('p1').then(events);
    await c.processes.killProcess('p1');
    const ev = await stream;
    assert.deepEqual([ev[0].type, text(ev, 'stdout'), ev.at(-1).type, ev.at(-1).exitCode], ['process_info', 'first\n', 'exit', 143]);
    assert.equal((await c.processes.getProcess('p1')).process.status, 'killed');
    await assert.rejects(c.processes.killProcess('p1'), code('COMMAND_NOT_FOUND'));
    await assert.rejects(c.processes.killProcess('nope'), code('PROCESS_NOT_FOUND'));
    await c.processes.startProcess('exit 3', 'pr', { processId: 'p2' });
    await until(async () => (await c.processes.getProcess('p2')).process.status === 'failed', 'exit 3 to be seen');
    assert.equal((await c.processes.getProcess('p2')).process.exitCode, 3);
  });

  test('files: write, read, stream, rename, move, list, delete', async () => {
    const bytes = randomBytes(300000);
    await c.files.writeFile(`${D}/a/b.bin`, bytes.toString('base64'), 'f', { encoding: 'base64' });
    const back = await c.files.readFile(`${D}/a/b.bin`, 'f');
    assert.ok(Buffer.from(back.content, 'base64').equals(bytes));
    const { content, metadata } = await sdk.collectFile(await c.files.readFileStream(`${D}/a/b.bin`, 'f'));
    assert.equal(metadata.size, bytes.length);
    assert.equal(createHash('sha256').update(content).digest('hex'), createHash('sha256').update(bytes).digest('hex'));
    await c.files.writeFile(`${D}/t.txt`, 'héllo 🚀\n', 'f');
    await c.files.renameFile(`${D}/t.txt`, `${D}/u.txt`, 'f');
    await c.files.moveFile(`${D}/u.txt`, `${D}/a`, 'f');
    assert.equal((await c.files.readFile(`${D}/a/u.txt`, 'f')).content, 'héllo 🚀\n');
    const l = await c.files.listFiles(`${D}/a`, 'f');
    assert.deepEqual(l.files.map(f => f.name).sort(), ['b.bin', 'u.txt']);
    await c.files.deleteFile(`${D}/a/u.txt`, 'f');
    assert.equal((await c.files.exists(`${D}/a/u.txt`, 'f')).exists, false);
    await assert.rejects(c.files.readFile(`${D}/a/u.txt`, 'f'), code('FILE_NOT_FOUND'));
    await X(`cd ${D}/a`, 'rel');
    await c.files.writeFile('rel.txt', 'r', 'rel');
    assert.equal((await c.files.readFile(`${D}/a/rel.txt`, 'f')).content, 'r');
  });

  test('sessions: create, duplicate, delete', async () => {
    await c.utils.createSession({ id: 'made', cwd: '/tmp', env: { A: '1' } });
    assert.equal((await X('pwd; echo $A', 'made')).stdout, '/tmp\n1');
    await assert.rejects(c.utils.createSession({ id: 'made' }), code('SESSION_ALREADY_EXISTS'));
    await c.utils.deleteSession('made');
    await c.utils.createSession({ id: 'made' });
  });

  test('30 concurrent streams in 5 cold sessions', async () => {
    const all = await Promise.all(Array.from({ length: 30 }, async (_, i) =>
      text(await events(await c.commands.executeStream(`echo s${i}; sleep 0.1; echo e${i}`, 'cold' + i % 5)), 'stdout')));
    all.forEach((out, i) => assert.equal(out, `s${i}\ne${i}\n`));
  });
});
