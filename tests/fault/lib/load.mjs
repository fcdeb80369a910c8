// The load: children whose output is known byte by byte, and clients that account for all of it.
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { json } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { connect } from '../../e2e/lib/mux.mjs';
import { sse } from '../../e2e/lib/server.mjs';
import { Client } from './http.mjs';

const CHILD = path.join(path.dirname(fileURLToPath(import.meta.url)), 'child.pl');
const OFF = '__DISABLE_SESSION__';
const names = ['stdout', 'stderr'];

// mulberry32: small, seeded, the same everywhere.
export function random(seed) {
  const next = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const int = (lo, hi) => lo + Math.floor(next() * (hi - lo + 1));
  return { next, int, chance: p => next() < p, pick: a => a[int(0, a.length - 1)] };
}

export const sleep = ms => new Promise(r => setTimeout(r, ms));
// The connection is gone or refused: what it carried may be asked for again. Anything else is an answer.
export class Lost extends Error {}

export class Child {
  constructor(tag, rng, dir) {
    const big = rng.chance(0.08);
    Object.assign(this, {
      tag, dir, seed: rng.int(0, 9999), pad: rng.int(8, 160), batch: rng.int(1, 40), pause: rng.pick([0, 0, 2, 5, 20]),
      lines: [big ? 20000 : rng.int(0, 1500), rng.chance(0.5) ? rng.int(0, 600) : 0], code: rng.pick([0, 0, 1, 3, 42, 255]),
      next: [0, 0], dropped: [0, 0], received: [0, 0], problems: [],
    });
    if (this.pause) this.batch = Math.max(this.batch, Math.ceil(Math.max(...this.lines) * this.pause / 3000)); // 3 s at most
  }
  get argv() {
    return ['perl', CHILD, this.dir, this.tag, this.seed, this.lines[0], this.lines[1], this.pad, this.batch, this.pause, this.code].map(String);
  }
  get command() { return this.argv.join(' '); }
  expected(k) {
    this.text ??= [0, 1].map(s => {
      let t = '';
      for (let i = 0; i < this.lines[s]; i++)
        t += `${this.tag}.${s}:${i}:${String.fromCharCode(97 + i % 26).repeat((i * 7919 + this.seed * 31 + s * 17) % this.pad)}\n`;
      return t;
    });
    return this.text[k];
  }
  begins(kind) { Object.assign(this, { kind, begun: Date.now() }); }
  bad(what) { this.problems.push(`${this.tag} (${this.kind} in ${this.where === OFF ? 'no session' : this.where}): ${what}`); }
  async count() { // what it says itself: [stdout, stderr, whether it came to its end]
    const m = /^(\d+) (\d+) (\d)/.exec(await readFile(`${this.dir}/count.${this.tag}`, 'utf8').catch(() => ''));
    return m ? m.slice(1).map(Number) : [0, 0, 0];
  }

  take(k, offset, data) {
    if (offset !== this.next[k]) this.bad(`${names[k]} goes on at ${offset} instead of ${this.next[k]}`);
    if (data !== this.expected(k).slice(offset, offset + data.length)) this.bad(`${names[k]} has other bytes than were written at ${offset} (${data.length})`);
    this.next[k] = offset + data.length;
    this.received[k] += data.length;
  }
  // An event of a stream with offsets; true: it was the last one.
  event(e) {
    const k = names.indexOf(e.type);
    if (this.over) this.bad(`an event after the last one: ${e.type}`);
    if (k >= 0) this.take(k, e.offset, e.data);
    else if (e.type === 'dropped') { const s = names.indexOf(e.stream); this.next[s] += e.bytes; this.dropped[s] += e.bytes; }
    else if (e.type === 'complete' || e.type === 'exit') { this.over = e; return true; }
    else if (e.type !== 'start' && e.type !== 'process_info') this.bad(`unknown event ${JSON.stringify(e).slice(0, 200)}`);
    return false;
  }
}

// Clients of one round. What they need to know of the faults: `faults.excuses(body, begun)`.
export class Load {
  constructor(s, rng, dir, faults, deadline) {
    Object.assign(this, { s, rng, dir, faults, deadline, sockets: [], children: [], problems: [], all: [], refused: 0, forgotten: 0, requests: 0, lost: 0, http: new Set(), client: new Client(s.base) });
  }
  bad(what) { this.problems.push(what); }
  check(what) { if (Date.now() > this.deadline) throw new Error(`not done in time: ${what}`); }

  // ---- doors ----

  async socket() {
    const i = this.rng.int(0, 2);
    const m = this.sockets[i];
    if (m && !m.closed) return m;
    const fresh = await connect(this.s).catch(() => { throw new Lost(); });
    fresh.ws.on('error', () => {});
    this.all.push(fresh);
    if (this.sockets[i] && !this.sockets[i].closed) { fresh.ws.terminate(); return this.sockets[i]; }
    return (this.sockets[i] = fresh);
  }
  // Of all connections. What was asked for on them is lost, as when the other side cuts them.
  giveUp() {
    this.client.close();
    this.client = new Client(this.s.base);
    for (const m of this.all) m.ws.terminate();
  }
  waiting() {
    return [...this.all.flatMap((m, i) => [...m.pending].map(([id, p]) => `socket ${i} (state ${m.ws.readyState}, paused ${m.ws.isPaused}) ${id}: ${p.events.length} events`)),
      ...this.http];
  }
  async overHttp(method, url, body, ms) {
    const signal = AbortSignal.timeout(ms);
    try {
      return await this.client.ask(method, url, body, signal);
    } catch (e) {
      if (signal.aborted) this.bad(`${method} ${url}: no answer within ${ms} ms`);
      throw new Lost();
    }
  }
  async overSocket(method, url, body, onEvent) {
    const m = await this.socket();
    try {
      const r = await m.request(method, url, body, {}, onEvent);
      return r.type === 'error' ? { ...r, body: r } : r;
    } catch { throw new Lost(); }
  }
  // One answer over a door chosen at random. Lost: the connection went away.
  async once(method, url, body, ms = 60000) {
    this.requests++;
    try {
      return this.rng.chance(0.5) ? await this.overHttp(method, url, body, ms) : await this.overSocket(method, url, body);
    } catch (e) { if (e instanceof Lost) this.lost++; throw e; }
  }
  ask(method, url, body) { return this.again(`${method} ${url}`, () => this.once(method, url, body)); }
  // The first answer that neither was lost nor is a refusal that a fault excuses; attempt(n) for the nth time.
  async again(what, attempt) {
    for (let n = 0; ; n++) {
      try {
        const begun = Date.now(), r = await attempt(n);
        if (r.status < 400 || !this.faults.excuses(r.body, begun)) return r;
        this.refused++;
      } catch (e) { if (!(e instanceof Lost)) throw e; }
      this.check(what);
      await sleep(this.rng.int(5, 50));
    }
  }
  // A stream that is had whole or not at all: {status, events}, or {status, body} where it is refused or fails.
  async events(method, url, body) {
    this.requests++;
    const events = [], whole = status => (events.at(-1)?.type === 'error' ? { status: 500, body: events.at(-1) } : { status, events });
    if (this.rng.chance(0.5)) {
      const r = await this.overSocket(method, url, body, e => events.push(e));
      return events.length ? whole(r.status) : r;
    }
    try {
      const r = await this.client.open(method, url, body);
      if (!/event-stream/.test(r.headers['content-type'])) return { status: r.statusCode, body: await json(r) };
      for await (const e of sse({ body: r })) events.push(e.data);
      return whole(r.statusCode);
    } catch { throw new Lost(); }
  }

  // ---- streams ----

  // Reads a stream with offsets until its last event, the loss of the connection, or our own going away. An answer that
  // is no stream is returned.
  async read(c, method, url, body) {
    this.requests++;
    return this.rng.chance(0.5) ? this.readHttp(c, method, url, body) : this.readSocket(c, method, url, body);
  }
  async readHttp(c, method, url, body) {
    const name = `${method} ${url} of ${c.tag}`;
    this.http.add(name);
    try { return await this.readHttpOf(c, method, url, body); } finally { this.http.delete(name); }
  }
  async readHttpOf(c, method, url, body) {
    const gone = new AbortController(), slow = this.rng.chance(0.2), vanish = this.rng.chance(0.3) ? this.rng.int(1, 20) : 0;
    let n = 0;
    try {
      const r = await this.client.open(method, url, body, gone.signal);
      if (!/event-stream/.test(r.headers['content-type'])) return { status: r.statusCode, body: await json(r) };
      for await (const e of sse({ body: r })) {
        if (c.event(e.data)) return null;
        if (slow) await sleep(this.rng.int(0, 100));
        if (++n === vanish) { gone.abort(); break; }
      }
    } catch (e) { if (e instanceof SyntaxError) c.bad(`an event that is no JSON: ${e.message}`); } // a cut is no news
    throw new Lost();
  }
  async readSocket(c, method, url, body) {
    const m = await this.socket(), vanish = this.rng.chance(0.1) ? this.rng.int(1, 20) : 0;
    let n = 0, gone = false;
    if (this.rng.chance(0.2)) { m.ws.pause(); setTimeout(() => m.ws.resume(), this.rng.int(100, 1500)); }
    let r;
    try {
      r = await m.request(method, url, body, {}, e => { if (!gone) c.event(e); if (++n === vanish) { gone = true; m.ws.terminate(); } });
    } catch { throw new Lost(); }
    if (gone) throw new Lost();
    if (r.type === 'response' && r.status === 200 && n) {
      if (!c.over) throw new Error(`the stream was ended without a last event: ${JSON.stringify(r).slice(0, 300)}`);
      return null;
    }
    return { status: r.status, body: r.body ?? r };
  }

  // ---- one child of each kind ----

  // Refused at the door for a moment, as 429 says: no word on the id, which may have been asked for before by a request
  // whose connection was lost, and that is still on its way.
  busy(c, r) { return r.body?.code === 'LIMIT_EXCEEDED' && this.faults.excuses(r.body, c.begun) && ++this.refused; }
  forgets(c, r) {
    if (this.faults.forgot(r.body, c.begun)) { c.forgotten = r.body.code; this.forgotten++; }
    return !!c.forgotten;
  }
  // A refusal that a fault excuses: the child must never have run (verified at the end of the round).
  refusal(c, r) {
    const code = r.body?.code;
    if (code === 'EXECUTION_LOST' || this.faults.excuses(r.body, c.begun)) { c.never = code; this.refused++; }
    else c.bad(`${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
  }

  async follow(c, first, again) {
    let request = first;
    while (!c.over) {
      this.check(`the stream of ${c.tag} at ${c.next} of ${[0, 1].map(k => c.expected(k).length)}`);
      const begun = Date.now();
      try {
        const r = await this.read(c, ...request(c));
        if (!r) break;
        if (r.body?.code === 'OPERATION_INTERRUPTED' || this.busy(c, r)) { await sleep(10); continue; }
        if (this.forgets(c, r)) return;
        if (request === first && c.next[0] + c.next[1] === 0) return this.refusal(c, r);
        if (!this.faults.excuses(r.body, begun)) return c.bad(`while following: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
        await sleep(50);
      } catch (e) {
        if (!(e instanceof Lost)) throw e;
        await sleep(this.rng.int(1, 20));
      }
      if (c.next[0] + c.next[1] > 0) request = again;
    }
    const e = c.over;
    c.exitCode = e.exitCode;
    c.outcome = e.outcome;
    c.total = e.offsets && names.map(n => e.offsets[n]);
  }

  async stream(c, sessionId) {
    c.begins('stream');
    c.executionId = c.tag;
    const from = () => c.next.join('-');
    const start = () => ['POST', '/api/execute/stream', { command: c.command, sessionId, executionId: c.tag, from: from() }];
    await this.follow(c, start, this.rng.chance(0.5) ? start : () => ['GET', `/api/execution/${c.tag}/stream?from=${from()}`]);
  }

  async process(c, sessionId) {
    c.begins('process');
    c.processId = c.tag;
    const how = sessionId === OFF && this.rng.chance(0.3) ? { args: c.argv } : { command: c.command };
    const body = { ...how, sessionId, processId: c.tag, executionId: c.tag };
    let r;
    for (;;) { // again with the same id: at most one start
      try {
        r = await this.once('POST', '/api/process/start', body);
        if (r.body?.code !== 'OPERATION_INTERRUPTED' && !this.busy(c, r)) break;
      } catch (e) { if (!(e instanceof Lost)) throw e; }
      this.check(`the start of ${c.tag}`);
      await sleep(this.rng.int(1, 20));
    }
    if (r.status !== 200) return this.refusal(c, r);
    if (this.rng.chance(0.15)) c.doomed = this.end(c);
    const again = () => ['GET', `/api/process/${c.tag}/stream?from=${c.next.join('-')}`];
    if (this.rng.chance(0.7)) await this.follow(c, again, again);
    else await this.wait(c);
    await c.doomed;
  }
  async wait(c) { // nobody watches; it is asked for when it has ended
    for (;;) {
      const r = await this.ask('GET', `/api/process/${c.tag}/wait?timeoutMs=2000`);
      const p = r.body?.process;
      if (r.status === 200) { c.exitCode = p.exitCode; c.outcome = p.outcome; return; }
      if (this.forgets(c, r)) return;
      if (r.status !== 408) return c.bad(`wait: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
      this.check(`the end of ${c.tag}`);
    }
  }
  async end(c) {
    await sleep(this.rng.int(0, 1500));
    const r = await this.ask('DELETE', `/api/process/${c.tag}?graceMs=500`);
    if (this.forgets(c, r)) return;
    if (r.status === 200 && r.body.survivors.length) c.bad(`survivors: ${r.body.survivors}`);
    if (r.status !== 200 && r.body?.code !== 'COMMAND_NOT_FOUND') c.bad(`DELETE: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
  }

  // A buffered call with an id: whoever asks again has the result.
  async durable(c, sessionId) {
    c.begins('durable call');
    c.executionId = c.tag;
    const body = { command: c.command, sessionId, executionId: c.tag };
    for (;;) {
      let r;
      try {
        r = await this.once('POST', '/api/execute', body);
      } catch (e) {
        if (!(e instanceof Lost)) throw e;
        this.check(`the result of ${c.tag}`);
        await sleep(this.rng.int(1, 20));
        continue;
      }
      if (r.body?.code === 'OPERATION_INTERRUPTED' || this.busy(c, r)) {
        this.check(`the result of ${c.tag}`);
        await sleep(this.rng.int(1, 20));
        continue;
      }
      if (this.forgets(c, r)) return;
      if (r.status !== 200) return this.refusal(c, r);
      return this.result(c, r.body, sessionId);
    }
  }
  result(c, b, sessionId) {
    c.exitCode = b.exitCode;
    c.outcome = b.outcome;
    c.total = [b.stdoutBytes, b.stderrBytes];
    for (const k of [0, 1]) {
      let want = c.expected(k);
      if (sessionId !== OFF) want = want.replace(/\n$/, ''); // the page: exactly one trailing newline is removed
      const got = k ? b.stderr : b.stdout, cut = k ? b.stderrTruncated : b.stdoutTruncated;
      if (cut ? !want.startsWith(got) : got !== want) c.bad(`${names[k]} of the result has ${got.length} bytes, ${want.length} were written`);
      c.next[k] = c.expected(k).length;
      c.received[k] = cut ? got.length : c.next[k];
      c.dropped[k] = c.next[k] - c.received[k];
    }
  }

  // Without an id its result may be lost with its server; if there is one, it is right.
  async plain(c, sessionId) {
    c.begins('call');
    c.mayVanish = true;
    try {
      const r = await this.once('POST', '/api/execute', { command: c.command, sessionId });
      if (r.status === 200) this.result(c, r.body, sessionId);
      else if (!this.faults.excuses(r.body, c.begun)) c.bad(`${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
      else this.refused++;
    } catch (e) { if (!(e instanceof Lost)) throw e; }
  }

  // Write and read back. Whatever happens between, the file is the old one or the new one, whole.
  async file(n) {
    const file = `${this.dir}/file.${n}`;
    let old = null;
    for (let version = 0; version < 4; version++) {
      const content = `${n}.${version}:` + 'abcdefgh'.repeat(this.rng.int(1, 9000));
      const w = await this.ask('POST', '/api/write', { path: file, content, sessionId: OFF });
      if (w.status !== 200) return this.bad(`write: ${w.status} ${JSON.stringify(w.body).slice(0, 300)}`);
      const r = await this.ask('POST', '/api/read', { path: file, sessionId: OFF });
      if (r.body.content !== content) this.bad(`${file}: what was written is not what is read${r.body.content === old ? ' (the old content)' : ''}`);
      if (await readFile(file, 'utf8') !== content) this.bad(`${file}: the disk has something else`);
      old = content;
      await sleep(this.rng.int(0, 300));
    }
  }

  // ---- after the end ----

  // All of it again, by offset from the log.
  async log(c) {
    const base = c.processId ? `/api/process/${c.processId}/logs` : `/api/execution/${c.executionId}/logs`;
    const total = [0, 0];
    for (const k of [0, 1]) {
      let at = 0, got = 0, dropped = 0, r;
      do {
        r = (await this.ask('GET', `${base}?stream=${names[k]}&from=${at}&limit=${this.rng.int(1000, 300000)}`)).body;
        if (this.forgets(c, { body: r })) return null;
        if (!r.success) return c.bad(`log: ${JSON.stringify(r).slice(0, 300)}`);
        const start = at + r.dropped;
        if (r.data !== c.expected(k).slice(start, start + r.data.length)) c.bad(`the log of ${names[k]} has other bytes at ${start} (${r.data.length}): ${JSON.stringify(r.data.slice(0, 60))}`);
        if (r.next === at && r.next < r.total && r.dropped === 0) return c.bad(`the log of ${names[k]} stops at ${at} of ${r.total}`);
        at = r.next;
        got += r.data.length;
        dropped += r.dropped;
        this.check(`the log of ${c.tag}`);
      } while (at < r.total);
      if (got + dropped !== r.total) c.bad(`log of ${names[k]}: ${got} + ${dropped} dropped of ${r.total}`);
      total[k] = r.total;
    }
    return total;
  }

  async verify(c, runs) {
    const [out, err, ended] = await c.count(), ran = runs.get(c.tag) ?? 0, wrote = [out, err];
    // At most once is what the registry remembers: without it a later server knows of no start whose child has ended.
    if (ran > 1 && !(this.faults.since(c.begun, 'registry') && this.faults.since(c.begun, 'kill', 'hup', 'emfile'))) c.bad(`ran ${ran} times`);
    if (c.forgotten) return;
    if (c.outcome === 'lost' && ended && this.faults.since(c.begun, 'registry')) { this.forgotten++; return; } // its end was in there
    if (c.never && ran) c.bad(`was refused (${c.never}) but ran`);
    if (c.never || (c.mayVanish && c.exitCode === undefined)) return;
    if (c.outcome === 'lost' && !ran) return; // the intent was recorded, the server died before it came to a start
    if (!ran && c.exitCode === undefined && this.faults.done.emfile + this.faults.done.full) { this.refused++; return; } // it could not be started, and says so
    if (!ran && !c.doomed) return c.bad(`never ran, but ended: ${c.outcome} ${c.exitCode}`);
    if (ended ? c.exitCode !== c.code : !(c.doomed && [137, 143].includes(c.exitCode))) c.bad(`exit code ${c.exitCode} (${c.outcome}) instead of ${c.code}${ended ? '' : '; did not come to its end'}`);
    const log = c.mayVanish ? c.total : await this.log(c);
    if (!log) return;
    // How much the full disk did not take is in its row, and in the file from the next block on.
    if (this.faults.since(c.begun, 'registry') && this.faults.since(c.begun, 'full') && [0, 1].every(k => log[k] <= wrote[k])) { this.forgotten += Number(log[0] < wrote[0] || log[1] < wrote[1]); return; }
    for (const k of [0, 1]) {
      // One that was killed may have written a batch that it had not counted yet.
      const most = ended ? wrote[k] : wrote[k] + c.batch * (c.pad + 40);
      if (log[k] < wrote[k] || log[k] > most) c.bad(`${names[k]}: it wrote ${wrote[k]}, the log says ${log[k]}`);
      if (c.total && c.total[k] !== log[k]) c.bad(`${names[k]}: ${c.total[k]} at the end, ${log[k]} in the log`);
      if (c.over && c.received[k] + c.dropped[k] !== log[k]) c.bad(`${names[k]}: received ${c.received[k]} + dropped ${c.dropped[k]}, written ${log[k]}`);
    }
  }
}

export async function prepare(dir) { await writeFile(`${dir}/runs`, ''); }
export async function runs(dir) {
  const n = new Map();
  for (const tag of (await readFile(`${dir}/runs`, 'utf8').catch(() => '')).split('\n').filter(Boolean)) n.set(tag, (n.get(tag) ?? 0) + 1);
  return n;
}
export { OFF };
