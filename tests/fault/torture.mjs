// Torture: random load on the real program while it is killed, upgraded, starved, locked out of its registry, its disk
// is filled, its memory budget is used up and parts of its state are taken away, beside trees 3,000 deep, heads that come
// slowly by the thousand, programs under a lease and a file system that never answers. At the end of each round every byte of every child is accounted for, every exit code is right, nothing
// ran twice, and nothing is left behind; and no turn of a loop took over 100 ms (lib/turns.mjs).
//
//   node tests/fault/torture.mjs [rounds=50] [--seed N] [--from ROUND] [--seconds N] [--without KIND,...] [--only KIND,...] [--keep]
//
// Kinds: kill hup emfile lock full stop, and those of kinds/ (deep heads lease mount budget torn).
// A seed gives the same load and the same moments; how they meet is up to the machine. --seconds: no round begins later.
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp } from 'node:fs/promises';
import http from 'node:http';
import { json } from 'node:stream/consumers';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { BIN, get, serverPid, start, until } from '../e2e/lib/server.mjs';
import { connect } from '../e2e/lib/mux.mjs';
import { Faults, KINDS } from './lib/faults.mjs';
import { Child, Load, OFF, prepare, random, runs, sleep } from './lib/load.mjs';
import { descriptors, marked, rss, zombiesOf } from './lib/proc.mjs';
import { Pressure, turnsOf } from './lib/turns.mjs';

const ROUND_MS = 4000, DEADLINE_MS = 90000, SESSIONS = ['a', 'b', 'c'];
const MAX_RSS_MB = { server: 96, keeper: 24 }, FD_SLACK = 16;
const sanitized = process.env.CONFLUX_TEST_SLOW === '1';

const argv = process.argv.slice(2);
if (argv.includes('--help') || argv.includes('-h')) {
  console.log(`usage: ./dev torture [rounds=50] [--seed N] [--from ROUND] [--seconds N] [--only KIND,...] [--without KIND,...] [--keep]
  kinds: ${KINDS.join(' ')}
  --from: the rounds of a seed from this one on. --seconds: no round begins later. --keep: the folder stays.`);
  process.exit(0);
}
const option = (name, otherwise) => { const i = argv.indexOf(name); return i < 0 ? otherwise : Number(argv.splice(i, 2)[1]); };
const seed = option('--seed', Date.now() % 1e9), seconds = option('--seconds', Infinity), from = option('--from', 0);
const keep = argv.includes('--keep');
const listed = name => { const i = argv.indexOf(name); return i < 0 ? [] : argv.splice(i, 2)[1].split(','); };
const only = listed('--only'), without = only.length ? KINDS.filter(k => !only.includes(k)) : listed('--without');
for (const k of [...only, ...without]) if (!KINDS.includes(k)) { console.error(`torture: no kind ${k}; there are ${KINDS.join(' ')}`); process.exit(2); }
const rounds = Number(argv.find(a => /^\d+$/.test(a)) ?? 50);

const dir = await mkdtemp(path.join(tmpdir(), 'conflux-torture-'));
const state = path.join(dir, 'state'), mark = `TORTURE=${process.pid}.${seed}`;
await mkdir(state);
await mkdir(path.join(dir, 'workspace'));

function mountSmall() {
  if (process.getuid() !== 0) { console.log('torture: not root, so no full disk (a small tmpfs cannot be mounted)'); return false; }
  try { execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=96m,mode=700', 'torture', state], { stdio: 'pipe' }); return true; } catch (e) {
    console.log(`torture: no full disk, a small tmpfs cannot be mounted: ${String(e.stderr).trim()}`);
    return false;
  }
}

// ---- sessions: their shells outlive the server, and know what they knew ----

// Between rounds nothing is done to the server: each call has an answer. On a connection of its own, since the ones that
// are kept alive may have been cut by the last kill.
const quietly = async (s, url, body) => {
  const r = await new Promise((resolve, reject) => {
    const q = http.request(s.base + url, { method: 'POST', agent: false, headers: { 'Content-Type': 'application/json' } }, m => json(m).then(b => resolve({ status: m.statusCode, body: b }), reject));
    q.on('error', reject);
    q.end(JSON.stringify(body));
  });
  if (r.status !== 200) throw new Error(`${url} ${JSON.stringify(body)}: ${r.status} ${JSON.stringify(r.body)}`);
  return r.body;
};

async function openSessions(s) {
  const shells = new Map();
  for (const id of SESSIONS) {
    await quietly(s, '/api/session/create', { id });
    shells.set(id, Number((await quietly(s, '/api/execute', { command: `KNOWN=${id}; cd /usr; echo $$`, sessionId: id })).stdout));
  }
  return shells;
}

async function checkSessions(load, shells) {
  for (const [id, pid] of shells) {
    const r = await load.ask('POST', '/api/execute', { command: 'echo $$ $KNOWN $PWD', sessionId: id });
    if (r.body?.stdout !== `${pid} ${id} /usr`) load.bad(`session ${id}: ${JSON.stringify(r.body).slice(0, 300)} instead of ${pid} ${id} /usr`);
  }
}

async function closeSessions(s) { for (const id of SESSIONS) await quietly(s, '/api/session/delete', { sessionId: id }); }

// ---- one round ----

function children(load, rng, round) {
  const work = [], kinds = [['stream', 9], ['process', 9], ['durable', 8], ['plain', 6]];
  for (const [k, [kind, n]] of kinds.entries())
    for (let i = 0; i < n; i++) {
      const c = new Child(`t${round}-${'spdc'[k]}${i}`, rng, dir), session = rng.chance(0.5) ? OFF : rng.pick(SESSIONS), wait = rng.int(0, ROUND_MS);
      c.where = session;
      load.children.push(c);
      work.push(sleep(wait).then(() => load[kind](c, session)).catch(e => c.bad(e.message)));
    }
  for (let i = 0; i < 3; i++) work.push(sleep(rng.int(0, ROUND_MS / 2)).then(() => load.file(i)).catch(e => load.bad(`file ${i}: ${e.message}`)));
  return work;
}

async function settle(what, fn, problems) { // [] when it is so in the end
  let left;
  await until(async () => (left = await fn()).length === 0, what, sanitized ? 20000 : 10000).catch(() => problems.push(`${what}: ${left.slice(0, 5).join(' | ')} (${left.length})`));
}

const summary = all => {
  const n = new Map();
  for (const f of all.map(x => x.replace(/\d+/g, 'N').replace(/.*\/sessions\/[^/]*/, 'session'))) n.set(f, (n.get(f) ?? 0) + 1);
  return [...n].map(([f, k]) => `${k} ${f}`).join(', ');
};

// What runs when nothing is asked for: keeper, server and the shells that wait for work.
async function idle(s) {
  const keeper = s.child.pid, server = await serverPid(s);
  return { keeper: (await descriptors(keeper)).length, server: (await descriptors(server)).length };
}

async function pending(s) {
  const r = await get(s, '/api/pending');
  return r.body.connections.flatMap(c => c.pending.map(q => JSON.stringify(q)));
}

// What the server holds for clients: at rest, nothing.
async function held(s) {
  const text = await (await fetch(s.base + '/metrics')).text();
  return text.split('\n').filter(l => /^conflux_memory_held_bytes\S* [^0]/.test(l) && !l.includes("events"));
}
const temporary = () => execFileSync('find', [dir, '-ignore_readdir_race', '-name', '.conflux-*'], { encoding: 'utf8' }).split('\n').filter(Boolean);

async function nothingLeft(s, load, base) {
  const p = load.problems;
  load.client.close();
  for (const m of load.all) {
    for (const x of m.stray) p.push(`a message for a request that had ended: ${JSON.stringify(x).slice(0, 200)}`);
    m.ws.terminate();
  }
  await settle('requests still pending', () => pending(s), p);
  await settle('memory that is still held', () => held(s), p);
  await settle('temporary files of ours', async () => temporary(), p);
  await settle('children that never came to their program', async () => (await marked(mark)).filter(x => x.ppid === s.child.pid && x.name === 'conflux').map(x => `${x.pid} ${x.state}`), p);
  await settle('zombies of the keeper', () => zombiesOf(s.child.pid), p);
  await settle('children that should have ended', async () => (await marked(mark)).filter(x => /child\.pl/.test(x.args)).map(x => `${x.pid} ${x.args}`), p);
  await settle('shells that nobody needs', async () => {
    const mine = (await marked(mark)).filter(x => x.pid !== s.child.pid && !x.name.startsWith('conflux'));
    return mine.length > base.shells ? mine.map(x => `${x.pid} ${x.ppid} ${x.args}`) : [];
  }, p);
  for (const who of ['keeper', 'server'])
    await settle(`descriptors of the ${who}`, async () => {
      // An HTTP worker keeps the eventfd that it has once waited on: at most one each.
      const all = (await descriptors(who === 'keeper' ? s.child.pid : await serverPid(s))).filter(f => f !== 'anon_inode:[eventfd]');
      return all.length > base[who] + FD_SLACK ? [`${all.length}, were ${base[who]}: ${summary(all)}`] : [];
    }, p);
  const mb = { keeper: await rss(s.child.pid), server: await rss(await serverPid(s)) };
  for (const who of ['keeper', 'server']) if (!sanitized && mb[who] > MAX_RSS_MB[who]) p.push(`${who}: ${mb[who].toFixed(1)} MB resident`);
  return mb;
}

// What the program has said since `from`, without the lines that each request has.
const logOf = (s, from = 0) => s.stderr.slice(from).split('\n').filter(l => !/event=(http|ws|mux|request)/.test(l)).slice(-200).join('\n');

async function play(s, round, base, totals) {
  const rng = random(seed + round * 7919), began = s.stderr.length;
  await prepare(dir);
  const shells = await openSessions(s);
  const faults = new Faults(s, rng, state, { without: totals.tmpfs ? without : [...without, 'full'], always: only, dir, round });
  const load = faults.load = new Load(s, rng, dir, faults, Date.now() + DEADLINE_MS);
  const work = children(load, rng, round);
  const all = Promise.all([...work, faults.play(ROUND_MS, [...shells.values()]).catch(e => load.bad(e.message))]);
  const stuck = await Promise.race([all.then(() => null), sleep(DEADLINE_MS + 30000).then(() => pending(s).catch(e => [e.message]))]);
  if (stuck) { // who waits here waits for ever: nothing of this round can be verified
    console.log(`round ${round}: FAILED\n  requests that never end, as the server sees it: ${stuck.join(' | ') || 'none'}; as the client does: ${load.waiting().join(' | ') || 'none'}\n  ${load.children.flatMap(c => c.problems).join('\n  ')}`);
    return null;
  }
  const ran = await runs(dir);
  for (const c of load.children) await load.verify(c, ran).catch(e => c.bad(e.message));
  await checkSessions(load, shells).catch(e => load.bad(e.message));
  await closeSessions(s);
  const mb = await nothingLeft(s, load, base).catch(e => { load.bad(e.message); return {}; });
  const slow = turnsOf(s.stderr.slice(began), totals.machine);
  for (const t of slow) if (!sanitized && t.ms > t.limit) load.bad(`a turn over ${t.limit} ms (a processor was waited for in ${(t.pressure * 100).toFixed(0)} % of the time): ${t.line}`); // a sanitizer makes them long
  totals.slow.push(...slow);
  const problems = [...load.problems, ...load.children.flatMap(c => c.problems)];
  count(totals, load, faults);
  const bytes = load.children.reduce((n, c) => n + c.received[0] + c.received[1], 0);
  console.log(`round ${round}: ${load.children.length} children, ${(bytes / 1e6).toFixed(1)} MB, ${load.requests} requests (${load.lost} lost, ${load.refused} refused ${JSON.stringify(faults.codes)}${load.forgotten ? `, ${load.forgotten} forgotten` : ''}), `
    + `${faults.kills} kills, ${JSON.stringify(faults.done)}, server ${mb.server?.toFixed(0)} MB: ${problems.length ? 'FAILED' : 'ok'}`);
  for (const p of problems) console.log('  ' + p);
  if (problems.length) console.log(logOf(s, began));
  return problems.length === 0;
}

function count(t, load, faults) {
  t.kills += faults.kills;
  t.restarts.push(...faults.restarts);
  for (const c of load.children) {
    t.children++;
    t.received += c.received[0] + c.received[1];
    t.dropped += c.dropped[0] + c.dropped[1];
  }
}

const median = a => a.length ? [...a].sort((x, y) => x - y)[a.length >> 1] : NaN;

console.log(`torture: ${rounds} rounds, --seed ${seed}, ${BIN}`);
let interrupted = false; // after this round: the mount has to go
for (const sig of ['SIGINT', 'SIGTERM']) process.on(sig, () => { interrupted = true; });
const totals = { tmpfs: mountSmall(), machine: new Pressure(), slow: [], kills: 0, restarts: [], children: 0, received: 0, dropped: 0 };
const failed = [];
let s;
try {
  s = await start({ dir, args: ['--memory-budget', '32M', '--log-budget', '512k', '--log-total', '8M', '--history', '200', '--log-level', 'info'], env: { [mark.split('=')[0]]: mark.split('=')[1] } });
  if (!s.base) throw new Error(`it did not start: ${s.stderr}`);
  await openSessions(s); // once, so that what is made when first needed is there
  await closeSessions(s);
  const begin = Date.now();
  const base = { ...await idle(s), shells: 8 };
  for (let round = from; round < from + rounds && Date.now() - begin < seconds * 1000; round++) {
    const ok = await play(s, round, base, totals);
    if (!ok) failed.push(round);
    totals.rounds = round + 1 - from;
    if (s.exited || ok === null || interrupted) break;
  }
  console.log(`torture: ${totals.rounds} rounds, ${totals.kills} kills, ${totals.children} children, ${(totals.received / 1e6).toFixed(1)} MB received, ${totals.dropped} bytes declared dropped; `
    + `kill -9 to the next answer: median ${median(totals.restarts).toFixed(1)} ms, max ${Math.max(...totals.restarts).toFixed(1)} ms (${totals.restarts.length}); `
    + `${totals.slow.length} turns over 5 ms${totals.slow.sort((a, b) => b.ms - a.ms).slice(0, 3).map(t => `, ${t.ms} ms (${t.cpu} of them computing, processors short for ${(t.pressure * 100).toFixed(0)} %) in ${t.what}`).join('')}`);
  if (failed.length) console.log(`torture: FAILED rounds ${failed.join(', ')} of --seed ${seed}`);
} catch (e) {
  failed.push(e);
  console.log(`torture: ${e.stack}`);
} finally {
  if (s) await s.stop();
  const left = await marked(mark);
  if (left.length) { failed.push(left); console.log(`torture: left behind: ${left.map(x => `${x.pid} ${x.args}`).join(' | ')}`); }
  if (s && failed.some(f => typeof f !== 'number')) console.log(logOf(s));
  if (totals.tmpfs) execFileSync('umount', [state]);
  if (!keep) execFileSync('rm', ['-rf', dir]); // which goes into trees whose paths are too long for Node
}
process.exitCode = failed.length ? 1 : 0;
process.exit();
