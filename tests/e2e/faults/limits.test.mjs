// Bounds: what clients can make the server hold, and what a shortage does.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { post, serverPid, start, until } from '../lib/server.mjs';
import { connect } from '../lib/mux.mjs';
import { ASAN, OFF } from '../lib/door.mjs';

const MB = 1 << 20;
const exec = (s, command = 'echo served', more = {}) => post(s, '/api/execute', { command, sessionId: OFF, ...more });
const metric = async (s, name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(await (await fetch(s.base + '/metrics')).text())?.[1]);
const held = (s, kind) => metric(s, `conflux_memory_held_bytes\\{kind="${kind}"\\}`);
const memory = async (pid, what) => Number(new RegExp(`^${what}:\\s+(\\d+) kB`, 'm').exec(await readFile(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;

// A shell that prints n bytes at once.
const prints = n => `head -c ${n} /dev/zero | tr '\\0' x`;

test('X143: replies that a WebSocket does not read stay within the memory budget, and others are served', async () => {
  const n = 12, size = 8 * MB;
  const s = await start({ args: ['--memory-budget', '32M'] });
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
    if (!ASAN) assert.ok(await memory(pid, 'VmHWM') - before < 32 * MB + 24 * MB, 'peak of the memory');
    m.ws.resume();
    for (const r of await Promise.all(replies)) assert.deepEqual([r.status, r.body.stdout.length, r.body.stdoutTruncated], [200, size, false]);
    await m.close();
    await until(async () => await held(s, 'results') === 0, 'all to be given back');
  } finally { await s.stop(); }
});
