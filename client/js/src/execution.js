// A command by the id that its caller chose: there for whoever asks, running or ended, also over another connection.
import { ApiError } from './errors.js';
import { decodeOutput, query, segment, split } from './calls.js';

const ROUND_MS = 60000;

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
    const end = timeout === undefined ? Infinity : Date.now() + timeout;
    for (;;) {
      const round = Math.max(0, Math.min(ROUND_MS, end - Date.now()));
      const { status, body } = await this.#ask(round, split(options)[0]);
      if (status !== 202) return body;
      if (Date.now() >= end) return null;
    }
  }
  async #ask(waitMs, { requestTimeout = this.#calls.timeouts.request, ...control }) {
    const call = {
      method: 'GET',
      path: query(this.#path, { waitMs }),
      timeout: requestTimeout && Math.max(requestTimeout, waitMs + 10000),
      ...control,
    };
    const answer = await this.#calls.transport.request(call);
    if (answer.status >= 400) throw new ApiError(answer.status, answer.body, call);
    return answer;
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
