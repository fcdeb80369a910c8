// Soak: a bounded load of every kind over both doors for an hour, with an upgrade (SIGHUP) every minute. What server and
// keeper hold at rest is looked at once a minute in a quiet moment; in the end it is what it was after the warm-up.
//
//   node tests/fault/soak.mjs [minutes=60] [--seed N] [--keep]
//
// Prints a table of resident memory, descriptors and threads, a line a minute; on a terminal, how far it is.
import { mkdtemp, mkdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { held } from '../e2e/lib/door.mjs';
import { BIN, get, serverPid, start, until } from '../e2e/lib/server.mjs';
import { Client } from './lib/http.mjs';
import { random, sleep } from './lib/load.mjs';
import { descriptors, rss, threads } from './lib/proc.mjs';
import { callers, flood, halfHeads, slowReaders } from './lib/soakers.mjs';

const MINUTE = 60000, QUIET_MS = 12000; // memory is given back to the system within ten seconds of rest
const MORE = { mb: 2, fds: 8, threads: 4 }; // what the end may have over the start
const WHO = ['server', 'keeper'], WHAT = ['mb', 'fds', 'threads'];

const argv = process.argv.slice(2);
const usage = 'usage: ./dev soak [minutes=60] [--seed N] [--keep]\n'
  + '  Load over both doors with slow readers, connect floods and half heads, an upgrade every minute; fails when memory (2 MB),\n'
  + '  descriptors (8) or threads (4) of server or keeper end higher than they began. --keep leaves the folder.';
if (argv.includes('--help') || argv.includes('-h')) { console.log(usage); process.exit(0); }
const option = (name, otherwise) => { const i = argv.indexOf(name); return i < 0 ? otherwise : Number(argv.splice(i, 2)[1]); };
const seed = option('--seed', Date.now() % 1e9), keep = argv.includes('--keep');
const rest = argv.filter(a => a !== '--keep'), minutes = Number(rest[0] ?? 60);
if (rest.length > 1 || !(minutes > 0)) { console.error(usage); process.exit(2); }

const dir = await mkdtemp(path.join(tmpdir(), 'conflux-soak-'));
await mkdir(path.join(dir, 'workspace'));
const rng = random(seed), begin = Date.now();
const tally = { calls: 0, refused: 0, streamed: 0, problems: [] };
const progress = text => { if (process.stdout.isTTY) process.stdout.write(`\r\x1b[K${text}`); };
const say = text => { progress(''); console.log(text); };

async function sample(s) {
  const pids = { server: await serverPid(s), keeper: s.child.pid };
  const out = {};
  for (const who of WHO) out[who] = { mb: await rss(pids[who]), fds: (await descriptors(pids[who])).length, threads: await threads(pids[who]) };
  return out;
}

// Nobody asks for anything, nothing runs, and what was asked for has ended.
async function atRest(s) {
  await until(async () => (await get(s, '/api/pending')).body.connections.every(c => c.pending.length === 0), 'nothing to be pending', 60000);
  await sleep(QUIET_MS);
  return sample(s);
}

async function upgrade(s) {
  const former = await serverPid(s);
  s.child.kill('SIGHUP');
  await until(async () => { const p = await serverPid(s); return p && p !== former; }, 'the next server', 60000);
  const client = new Client(s.base);
  await until(async () => (await client.ask('GET', '/readyz').catch(() => ({}))).status === 200, 'the next server to be ready', 60000);
  client.close();
}

// One stretch of load, which ends by itself; an upgrade in the middle of it.
async function stretch(s, ms, upgrades) {
  const load = { s, rng, dir, tally, end: Date.now() + ms, upgraded: 0, over() { return Date.now() >= this.end; } };
  const all = [callers(load), slowReaders(load), flood(load), halfHeads(load)];
  if (upgrades) { await sleep(ms / 2); await upgrade(s); load.upgraded++; }
  await Promise.all(all);
}

// The server keeps a bounded number of events, which any server holds after a while: so many have to be there at the start.
async function fillEvents(s) {
  const client = new Client(s.base);
  for (let now = await held(s, 'events'), was = -1, n = 0; now > was * 1.01;) {
    for (let i = 0; i < 32; i++) {
      await Promise.all(Array.from({ length: 16 }, () => client.ask('POST', '/api/execute', { args: ['true'], executionId: `warm-${n++}` })));
    }
    was = now;
    now = await held(s, 'events');
  }
  client.close();
}

const row = (name, r) => name.padEnd(8) + WHO.map(w => `${r[w].mb.toFixed(1).padStart(9)} ${String(r[w].fds).padStart(5)} ${String(r[w].threads).padStart(8)}`).join('   ');

function compare(first, last) {
  const over = [];
  for (const who of WHO) for (const what of WHAT) {
    const more = last[who][what] - first[who][what];
    if (more > MORE[what]) over.push(`${who}: ${what} ended ${more.toFixed(what === 'mb' ? 1 : 0)} over the start's ${first[who][what].toFixed(what === 'mb' ? 1 : 0)} (${MORE[what]} are allowed)`);
  }
  return over;
}

let s, failed = [], interrupted = false;
for (const sig of ['SIGINT', 'SIGTERM']) process.on(sig, () => { interrupted = true; });
console.log(`soak: ${minutes} minutes, --seed ${seed}, ${BIN}`);
try {
  s = await start({ dir, args: ['--log-level', 'warn', '--history', '200', '--log-total', '64M', '--header-timeout', '3000'] });
  if (!s.base) throw new Error(`it did not start: ${s.stderr}`);
  progress('warming up');
  await fillEvents(s);
  await stretch(s, MINUTE / 3, true);
  const first = await atRest(s);
  console.log(`${'minute'.padEnd(8)}${WHO.map(w => `${(w + ' MB').padStart(9)} ${'fds'.padStart(5)} ${'threads'.padStart(8)}`).join('   ')}`);
  say(row('start', first));
  let last = first;
  for (let n = 1; n <= minutes && !interrupted && !s.exited; n++) {
    const from = Date.now(), ticker = setInterval(() => progress(`minute ${n} of ${minutes}: ${tally.calls} calls, ${tally.refused} refused`), 1000);
    await stretch(s, MINUTE - QUIET_MS, true);
    last = await atRest(s).finally(() => clearInterval(ticker));
    say(row(String(n), last));
    await sleep(Math.max(0, from + MINUTE - Date.now()));
    if (tally.problems.length) break;
  }
  say(row('end', last));
  failed.push(...compare(first, last));
  if (s.exited) failed.push(`the program ended: ${JSON.stringify(s.exited)}`);
} catch (e) { failed.push(e.stack); } finally {
  const killed = s?.exited;
  await s?.stop();
  if (!keep) await rm(dir, { recursive: true, force: true });
  if (killed) console.log(s.stderr.slice(-3000));
}
failed = [...tally.problems, ...failed];
say(`soak: ${((Date.now() - begin) / MINUTE).toFixed(1)} minutes, ${tally.calls} calls, ${(tally.streamed / 1e6).toFixed(0)} MB streamed, ${tally.refused} refused for an upgrade or a flood: ${failed.length ? 'FAILED' : 'ok'}`);
for (const f of failed.slice(0, 20)) console.log('  ' + f);
process.exit(failed.length ? 1 : 0);
