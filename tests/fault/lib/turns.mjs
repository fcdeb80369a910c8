// Which turns of a loop were too long. The program measures them without the time in which the thread was ready and
// waited for a processor (base/turn.h). What it cannot see is a wait for somebody else who has none: the holder of a lock
// of the kernel's, the other end of a pipe. On a machine with more to do than processors (/proc/pressure/cpu) such a wait is
// as long as that one's turn comes late; so there a turn that hardly computed is too long only at MAX_BLOCKED_MS, which
// no such wait comes to and any real one does: a lease, a lock that a client holds, a disk that has gone.
import { readFileSync } from 'node:fs';

export const MAX_TURN_MS = 100; // that one turn of the loop, or of the keeper, keeps everybody else waiting
const MAX_BLOCKED_MS = 1000;
const EVERY_MS = 100; // the kernel's sum is of the moment at which it is read
const BUSY = 0.25;    // of the time of the turn, and EVERY_MS before and after, somebody waited for a processor

// How long so far somebody has waited for a processor, in µs; null where the kernel does not tell.
function pressure() {
  try { return Number(/^some .*total=(\d+)/m.exec(readFileSync('/proc/pressure/cpu', 'utf8'))[1]); } catch { return null; }
}

export class Pressure {
  samples = [];
  constructor() {
    this.take();
    this.timer = setInterval(() => this.take(), EVERY_MS);
    this.timer.unref();
  }
  take() { const total = pressure(); if (total !== null) this.samples.push({ at: Date.now(), total }); }
  stop() { clearInterval(this.timer); }
  // The share of the time from `from` to `to` in which somebody waited for a processor.
  during(from, to) {
    const before = this.samples.findLast(x => x.at <= from - EVERY_MS) ?? this.samples[0];
    const after = this.samples.find(x => x.at >= to + EVERY_MS) ?? this.samples.at(-1);
    return before && after.at > before.at ? (after.total - before.total) / 1000 / (after.at - before.at) : 0;
  }
}

// The turns that a log tells of: {ms, cpu, at, what, line, pressure, limit}.
export function turnsOf(log, machine) {
  return log.split('\n').filter(l => l.includes('event=loop.turn')).map(line => {
    const n = name => Number(new RegExp(` ${name}=(\\d+)`).exec(line)?.[1]);
    const t = { ms: n('busy_ms'), cpu: n('cpu_ms'), at: Date.parse(/ts=(\S+)/.exec(line)?.[1]), what: /longest=(\S+)/.exec(line)?.[1], line };
    t.pressure = machine.during(t.at - t.ms, t.at);
    t.limit = t.cpu <= MAX_TURN_MS && t.pressure > BUSY ? MAX_BLOCKED_MS : MAX_TURN_MS;
    return t;
  });
}
