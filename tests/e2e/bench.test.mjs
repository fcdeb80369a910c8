// The benchmark must not rot, and must not hide a stall: the load program against fakes, and a short run of the whole.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { BIN, until } from './lib/server.mjs';

const LOAD = path.join(path.dirname(BIN), 'bench/load');
const RUN = new URL('../../bench/run', import.meta.url).pathname;
const CALL = 64; // bytes of a message of the door "echo"
const run = promisify(execFile);
const load = async (...args) => JSON.parse((await run(LOAD, args)).stdout);

// An echo server that answers so many messages, and the others when stall(answer) says so, or never.
const fake = (count, stall) => new Promise(resolve => {
  const server = net.createServer(k => {
    let left = count * CALL, held = null;
    k.on('error', () => {});
    k.on('data', d => {
      if (held) { held.push(d); return; }
      k.write(d.subarray(0, left));
      if (d.length < left) { left -= d.length; return; }
      held = [d.subarray(left)];
      left = Infinity;
      stall(() => { k.write(Buffer.concat(held)); held = null; });
    });
  });
  server.listen(0, '127.0.0.1', () => resolve(server));
});
const open = server => load('calls', '--door', 'echo', '--port', String(server.address().port), '--rate', '1000', '--inflight', '2000', '--seconds', '1',
  '--warmup', '0', '--timeout', '0.5');

test('open loop: a stall of 100 ms shows in all calls that were due meanwhile', async () => {
  const server = await fake(300, answer => setTimeout(answer, 100));
  try {
    const r = await open(server);
    // 1,000 calls, of which 100 waited for 0 to 100 ms: the slowest hundredth for 90 ms, the slowest tenth for nearly 0.
    assert.equal(r.ops, 1000);
    assert.equal(r.missed, 0);
    assert.ok(r.p99us >= 89_000, `p99 ${r.p99us}`);
    assert.ok(r.maxus >= 99_000, `max ${r.maxus}`);
  } finally { server.close(); }
});

test('open loop: what is never answered is counted, at the age that it had', async () => {
  const server = await fake(250, () => {});
  try {
    const r = await open(server);
    assert.equal(r.ops, 1000);
    assert.equal(r.missed, 750);
    assert.ok(r.p50us >= 500_000, `p50 ${r.p50us}`); // the window's end and half a second of patience
  } finally { server.close(); }
});

test('open loop: slots that are all taken hold nothing back from the count', async () => {
  const server = await fake(300, answer => setTimeout(answer, 100));
  try {
    const r = await load('calls', '--door', 'echo', '--port', String(server.address().port), '--rate', '1000', '--inflight', '4', '--seconds', '1', '--warmup', '0');
    assert.equal(r.ops, 1000);
    assert.ok(r.p99us >= 89_000, `p99 ${r.p99us}`);
  } finally { server.close(); }
});

test('the load program refuses what it does not know, and explains itself', async () => {
  await assert.rejects(run(LOAD, ['calls', '--prot', '1']), e => e.code === 2 && /no such option/.test(e.stderr));
  await assert.rejects(run(LOAD, ['calls', '--port', '65536']), e => e.code === 2);
  const { stdout } = await run(LOAD, ['--help']);
  for (const word of ['calls', 'hold', '--rate', '--door', '127.0.0.1']) assert.ok(stdout.includes(word), word);
});

const marked = async mark => {
  const found = [];
  for (const pid of (await readdir('/proc')).filter(p => /^\d+$/.test(p))) {
    const env = await readFile(`/proc/${pid}/environ`, 'latin1').catch(() => '');
    if (env.includes(mark)) found.push(pid);
  }
  return found;
};
const bench = (mark, ...args) => spawn('python3', [RUN, ...args], { env: { ...process.env, CONFLUX_BIN: BIN, CONFLUX_BENCH_MARK: mark }, stdio: ['ignore', 'pipe', 'pipe'] });

test('a short run writes CSV, JSON and results.md, and leaves no process', async () => {
  const out = await mkdtemp(path.join(tmpdir(), 'conflux-bench-')), mark = `bench-mark-${process.pid}-a`;
  try {
    const child = bench(mark, '--quick', '--only', '^(first|cost|start|batch)$', '--out', out);
    let said = '';
    child.stderr.on('data', d => { said += d; });
    const code = await new Promise(r => child.on('exit', r));
    assert.equal(code, 0, said);
    const [head, ...rows] = (await readFile(path.join(out, 'results/figures.csv'), 'utf8')).trim().split('\n');
    assert.equal(head, 'id,title,unit,rounds,min,median,max,method,target,met');
    const json = JSON.parse(await readFile(path.join(out, 'results/figures.json'), 'utf8'));
    assert.equal(json.figures.length, rows.length);
    assert.deepEqual(json.failed, {});
    for (const key of ['commit', 'cpu', 'kernel', 'memoryGB', 'loadAtStart']) assert.ok(key in json.machine, key);
    for (const f of json.figures) {
      assert.deepEqual(Object.keys(f).join(), head);
      assert.ok(f.min <= f.median && f.median <= f.max && f.rounds >= 1, f.id);
      assert.ok(json.methods[f.method], f.method);
    }
    const figure = Object.fromEntries(json.figures.map(f => [f.id, f]));
    // A Worker that makes 1,000 calls pays for one WebSocket, or for 1,000 requests.
    assert.equal(figure['cost.ws.requests'].median, 1);
    assert.equal(figure['cost.http.requests'].median, 1000);
    assert.equal(figure['cost.http-close.connections'].median, 1000);
    const text = await readFile(path.join(out, 'results.md'), 'utf8');
    for (const word of ['no result', json.machine.commit, 'load average at the start', '## Methods', 'start.first']) assert.ok(text.includes(word), word);
    assert.deepEqual(await marked(mark), []);
  } finally { await rm(out, { recursive: true, force: true }); }
});

for (const signal of ['SIGINT', 'SIGTERM']) test(`${signal} ends a run and all that it has started`, async () => {
  const mark = `bench-mark-${process.pid}-${signal}`, child = bench(mark, '--only', '^spine$', '--seconds', '30');
  let said = '';
  child.stderr.on('data', d => { said += d; });
  await until(async () => said.includes('spine') && (await marked(mark)).length >= 4, 'servers and the load program');
  child.kill(signal);
  const code = await new Promise(r => child.on('exit', r));
  assert.equal(code, signal === 'SIGINT' ? 130 : 143, said);
  await until(async () => (await marked(mark)).length === 0, 'all processes to be gone');
});
