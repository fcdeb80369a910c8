// What is done to the program while the load runs. Each fault ends by itself. It excuses a refusal of its kinds of an
// operation that was under way at some moment of the fault; a refusal that no fault explains is a failure.
import { execFile, spawn } from 'node:child_process';
import { open, rm } from 'node:fs/promises';
import http from 'node:http';
import { promisify } from 'node:util';
import { serverPid } from '../../e2e/lib/server.mjs';
import { budget } from '../kinds/budget.mjs';
import { deep } from '../kinds/deep.mjs';
import { heads } from '../kinds/heads.mjs';
import { leased } from '../kinds/lease.mjs';
import { mounted } from '../kinds/mount.mjs';
import { torn } from '../kinds/torn.mjs';
import { descriptors, hardLimit } from './proc.mjs';
import { random, sleep } from './load.mjs';

const run = promisify(execFile);

// Two of them in each round in turn, and others by chance: fn(faults, dir, rng, tag). What a kind asks for itself it
// judges itself; the load goes on beside it, and is judged as ever.
export const kinds = { deep, heads, lease: leased, mount: mounted, budget, torn };
export const KINDS = ['kill', 'hup', 'emfile', 'lock', 'full', 'stop', ...Object.keys(kinds)];
const unavailable = new Set();

const refusals = {
  full: ['NO_SPACE', 'FILESYSTEM_ERROR', 'COMMAND_EXECUTION_ERROR', 'STREAM_START_ERROR', 'PROCESS_ERROR', 'INTERNAL_ERROR', 'REGISTRY_ERROR'],
  emfile: ['TOO_MANY_FILES', 'LIMIT_EXCEEDED', 'FILESYSTEM_ERROR', 'COMMAND_EXECUTION_ERROR', 'STREAM_START_ERROR', 'PROCESS_ERROR', 'INTERNAL_ERROR'],
  locked: ['REGISTRY_ERROR', 'COMMAND_EXECUTION_ERROR', 'STREAM_START_ERROR', 'INTERNAL_ERROR'],
  budget: ['LIMIT_EXCEEDED', 'PAYLOAD_TOO_LARGE', 'NO_SPACE'],
};

export class Faults {
  constructor(s, rng, state, { without = [], always = [], dir, round }) {
    Object.assign(this, { s, rng, state, without, always, dir, round, last: {}, on: {}, kills: 0, restarts: [], done: { emfile: 0, full: 0 }, codes: {} });
  }
  begin(what) {
    this.on[what] = (this.on[what] ?? 0) + 1;
    this.last[what] = Infinity;
    this.done[what] = (this.done[what] ?? 0) + 1;
  }
  // The server, at this moment or soon: an upgrade takes its time.
  ending() { return this.on.kill || this.on.emfile || this.done.hup; }
  over(what) { if (--this.on[what] === 0) this.last[what] = Date.now(); }
  // Was one of them there at some moment since then?
  since(then, ...whats) { return whats.some(w => (this.last[w] ?? 0) >= then); }
  active(...whats) { return this.since(Infinity, ...whats); }
  // `begun`: when the operation was first asked for (Date.now()).
  excuses(body, begun) {
    const code = body?.code;
    const ok = code === 'OPERATION_INTERRUPTED' || Object.entries(refusals).some(([f, codes]) => this.since(begun, f) && codes.includes(code));
    if (ok) this.codes[code] = (this.codes[code] ?? 0) + 1;
    return ok;
  }

  // The registry was taken away: what had ended before is not known any more, nor by which request what runs was
  // started, and the answer says so. That may also be lost of what began right afterwards, before the server had noticed.
  forgot(body, begun) {
    return (this.since(begun, 'registry') && /^(EXECUTION|PROCESS|COMMAND)_NOT_FOUND$/.test(body?.code)) || (this.done.registry && /lost with the registry/.test(body?.message));
  }

  // From SIGKILL to the next answer. Only undisturbed ones count as a measure.
  async kill() {
    this.begin('kill');
    const pid = this.lasting ? null : await serverPid(this.s);
    if (!pid || this.lasting) { this.over('kill'); this.done.kill--; return; }
    const at = Date.now(), begin = process.hrtime.bigint();
    try { process.kill(pid, 'SIGKILL'); } catch { this.over('kill'); return; }
    this.kills++;
    const ms = await this.answer(begin).finally(() => this.over('kill'));
    this.leaveHung(at);
    if (!this.since(at, 'full', 'locked', 'hup', ...Object.keys(kinds))) this.restarts.push(ms);
  }
  // A server whose thread hangs when it is killed keeps its connections until that one goes: its clients hear nothing,
  // and give up by themselves.
  leaveHung(killed) { if (this.since(killed, 'mount')) this.load.giveUp(); }
  // This machine has no such thing: said once.
  cannot(what, why) {
    if (!unavailable.has(what)) console.log(`torture: no ${what}: ${why}`);
    unavailable.add(what);
  }
  async answer(begin = process.hrtime.bigint(), limit = 30000) {
    const end = Date.now() + limit;
    for (;;) {
      const ok = await new Promise(r => http.get(this.s.base + '/api/ping', { agent: false, timeout: 5000 }, m => { m.resume(); m.on('end', () => r(m.statusCode === 200)); m.on('error', () => r(false)); })
        .on('error', () => r(false)).on('timeout', function () { this.destroy(); }));
      if (ok) return Number(process.hrtime.bigint() - begin) / 1e6;
      if (this.s.exited) throw new Error(`the program ended: ${JSON.stringify(this.s.exited)}\n${this.s.stderr.slice(-3000)}`);
      if (Date.now() > end) throw new Error(`no answer within ${limit} ms after a kill`);
      await sleep(1);
    }
  }

  async hup() {
    if (this.lasting) return;
    this.begin('hup');
    this.s.child.kill('SIGHUP');
    await sleep(this.rng.int(50, 400));
    await this.answer();
    this.over('hup');
  }

  async fill() {
    this.begin('full');
    const f = await open(this.state + '/ballast', 'w');
    try {
      const page = Buffer.alloc(1 << 16);
      for (let size = page.length; size >= 1;) await f.write(page, 0, size).then(r => { if (r.bytesWritten < size) size = 1; }, () => { size = size > 1 ? size >> 4 : 0; });
      await sleep(this.rng.int(200, 2000));
    } finally {
      await f.close();
      await rm(this.state + '/ballast');
    }
    this.over('full');
  }

  // Half of the time a server that has only just been started.
  async starve() {
    this.begin('emfile');
    await this.starving().finally(() => this.over('emfile'));
  }
  async starving() {
    let pid = await serverPid(this.s);
    if (this.rng.chance(0.5) && pid && !this.lasting) {
      const former = pid, killed = Date.now();
      try { process.kill(former, 'SIGKILL'); this.kills++; } catch { /* it has just been killed */ }
      while (!this.s.exited && (!(pid = await serverPid(this.s)) || pid === former)) await sleep(1);
      this.leaveHung(killed);
    }
    if (!pid) return;
    const have = (await descriptors(pid)).length, had = await hardLimit(pid);
    await run('prlimit', ['--pid', pid, `--nofile=${have + this.rng.int(0, 6)}:`]).catch(() => {});
    await sleep(this.rng.int(200, 1500));
    await run('prlimit', ['--pid', pid, `--nofile=${had}:`]).catch(() => {}); // a killed one has taken its limit along
  }

  async lock() {
    this.begin('locked');
    const begun = Date.now();
    const holder = spawn('python3', ['-c', `import sqlite3, sys, time
c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
c.execute("BEGIN IMMEDIATE")
time.sleep(3)
c.execute("ROLLBACK")`, this.state + '/registry.db'], { stdio: ['ignore', 'ignore', 'pipe'] });
    let said = '';
    holder.stderr.on('data', d => { said += d; });
    const code = await new Promise(r => holder.on('exit', r));
    this.over('locked');
    // A running server lets nobody in; one that starts meanwhile waits. There may be none to lock where it was taken away.
    if (code && !/database is locked/.test(said) && !this.active('full') && !this.since(begun, 'registry')) throw new Error('the lock could not be taken: ' + said);
  }

  async stop(pids) {
    this.done.stop = (this.done.stop ?? 0) + 1;
    const pid = this.rng.pick(pids);
    try { process.kill(pid, 'SIGSTOP'); } catch { return; }
    await sleep(this.rng.int(50, 1500));
    try { process.kill(pid, 'SIGCONT'); } catch { /* it has gone */ }
  }

  // The faults of one round, at random moments of `ms`.
  async play(ms, shells) {
    const at = [], add = (what, n, fn) => { // all are drawn, so that leaving one out moves no other
      for (let i = 0; i < n; i++) {
        const t = this.rng.int(0, ms);
        if (!this.without.includes(what)) at.push([t, fn]);
      }
    };
    add('kill', this.rng.int(2, 5), () => this.kill());
    add('hup', this.rng.int(0, 1), () => this.hup());
    add('emfile', this.rng.int(0, 2), () => this.starve());
    add('lock', this.rng.chance(0.3) ? 1 : 0, () => this.lock());
    add('full', this.rng.chance(0.4) ? 1 : 0, () => this.fill());
    add('stop', shells.length ? this.rng.int(0, 2) : 0, () => this.stop(shells));
    const all = Object.entries(kinds);
    for (const [i, [what, fn]] of all.entries()) {
      const own = random(this.rng.int(0, 1e9)), due = [0, 1].some(k => (this.round * 2 + k) % all.length === i);
      add(what, this.rng.chance(0.15) || due || this.always.includes(what) ? 1 : 0, async () => {
        this.begin(what);
        await fn(this, this.dir, own, `t${this.round}`).catch(e => this.load.bad(`${what}: ${e.stack}`)).finally(() => this.over(what));
      });
    }
    const begin = Date.now();
    await Promise.all(at.map(async ([t, fn]) => { await sleep(Math.max(0, begin + t - Date.now())); await fn(); }));
  }
}
