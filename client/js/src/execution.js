// A command by the id that its caller chose: there for whoever asks, running or ended, also over another connection.
import { decodeOutput, query, segment, split } from './calls.js';
import { Rounds } from './time.js';

const RESULT = { stdout: 'text', stderr: 'text', exitCode: 'number' };

// What the answer to a command has: its result, or that it goes on.
export const resultFields = body => (body.detached ? { executionId: 'text' } : RESULT);

export class Execution {
  #calls;
  constructor(calls, id) {
    this.#calls = calls;
    this.id = id;
  }
  get #path() {
    return `/api/execution/${segment(this.id)}`;
  }

  // Its result when it has ended; null when `timeout` ms have passed before.
  async result({ timeout, ...options } = {}) {
    const [control] = split(options);
    const rounds = new Rounds(timeout, ms => this.#calls.pause(ms, control.signal));
    for (;;) {
      const waitMs = rounds.begin();
      const { status, body } = await this.#calls.ask('GET', query(this.#path, { waitMs }), undefined, control, {
        atLeast: waitMs,
        fields: (_, status) => (status === 202 ? {} : RESULT),
      });
      if (status !== 202) return body;
      if (rounds.over) return null;
      await rounds.rest();
    }
  }

  // Its output from an offset on ("stdout-stderr", or one number for both), live, then `complete`.
  stream({ from = 0, ...options } = {}) {
    const at = f => ({ path: query(`${this.#path}/stream`, { from: f }) });
    return this.#calls.stream('GET', at(from).path, undefined, split(options)[0], {
      decode: decodeOutput,
      resume: last => at(last ?? from),
    });
  }

  // A piece by offset: {stream, from, limit, encoding} → {data, next, total, dropped, ended}.
  logs(options) {
    const [control, rest] = split(options);
    return this.#calls.get(query(`${this.#path}/logs`, rest), control);
  }

  cancel(options) {
    return this.#calls.send('DELETE', this.#path, undefined, split(options)[0]);
  }
}
