// The command line: processes, sessions, and what the server knows of itself.
import { describe, test } from 'node:test';
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ALL_BYTES, conflux, exec, json, lines, ok, sha, shared } from './lib/cli.mjs';
import { BIN, gone, until } from './lib/server.mjs';

const t = shared(), { c } = t;

describe('processes', () => {
  test('run, ps, logs, wait', async () => {
    const go = path.join(t.dir, 'go');
    const id = ok(await c(['run', '-c', `echo one; while [ ! -e ${go} ]; do sleep 0.02; done; echo two; echo err >&2; exit 3`])).trim();
    assert.match(id, /^\S+$/);
    assert.equal(ok(await c(['wait', id, '--pattern', 'one'])), 'one\n');
    assert.match(ok(await c(['ps', '--status', 'running'])), new RegExp(`${id}.*running.*echo one`));
    const follow = conflux(t.s, ['logs', '-f', id]);
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
    const data = await readFile(path.join(t.s.workspace, 'urandom'));
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
    const go = path.join(t.dir, 'read-now'), data = randomBytes(20 << 20);
    const id = ok(await c(['run', '--stdin', '-c', `while [ ! -e ${go} ]; do sleep 0.02; done; sha256sum`])).trim();
    const feed = conflux(t.s, ['stdin', id], { input: data });
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
    assert.match(ok(await c(['ports'])), new RegExp(`^${t.s.port} `, 'm'));
    assert.ok(json(await c(['ports', '--json']))[0].ports.some(p => p.port === Number(t.s.port)));
    const held = conflux(t.s, ['exec', '--', 'cat'], { input: 'open' });
    await until(async () => /execute\/stream/.test((await c(['pending'])).stdout), 'the request');
    assert.ok(Array.isArray(json(await c(['pending', '--json']))[0].connections));
    held.stdin.end();
    await held.done;
    assert.match(ok(await c(['usage'])), /^cpu [\d.]+ s on \d+ cores +memory .* of .* +disk .* of .*\n$/);
    assert.ok(json(await c(['usage', '--json']))[0].memory.usedBytes > 0);
    const usage = conflux(t.s, ['usage', '-f', '--interval', '100ms', '--json']);
    await until(() => lines(usage.seen).length > 2, 'three samples');
    usage.kill();
    for (const line of lines(usage.seen)) assert.equal(JSON.parse(line).type, 'usage');
  });

  test('events, from the first that is kept and as they come', async () => {
    const child = conflux(t.s, ['events', '--from', '0', '--json']);
    ok(await c(['exec', '--id', 'eventful', '--', 'true']));
    await until(() => /process\.exited.*"eventful"/.test(child.seen), 'the event');
    child.kill();
    await child.done;
    const ids = lines(child.seen).slice(0, -1).map(line => JSON.parse(line).id);
    assert.deepEqual(ids, [...new Set(ids)].sort((a, b) => a - b));
    const text = conflux(t.s, ['events', '--from', String(ids[0])]);
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
