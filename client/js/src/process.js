// A background process, by its id.
import { ApiError, ConnectionLostError } from './errors.js';
import { decodeOutput, inputOf, query, segment, split } from './calls.js';
import { Rounds } from './time.js';

export const INFO = { id: 'text' }; // what the server says of a process, or of a session, has at least

export class Process {
  #calls;
  // info: what the server said of it (start, list or get).
  constructor(calls, info) {
    this.#calls = calls;
    this.#take(info);
  }
  #take({ success, timestamp, processId, ...info }) {
    // No field takes the place of a method.
    for (const [name, value] of Object.entries(info)) if (!(name in Process.prototype)) this[name] = value;
    this.id = info.id ?? processId;
    return this;
  }
  get #path() {
    return `/api/process/${segment(this.id)}`;
  }

  // Asks the server anew; status, exitCode, outcome and the rest are up to date then.
  async refresh(options) {
    return this.#take((await this.#calls.get(this.#path, split(options)[0], { fields: { process: INFO } })).process);
  }

  // Everything printed since `from` (default: the start), live until it ends: {type: stdout | stderr, data, output,
  // offset}, or {type: dropped, stream, bytes} for what the log no longer has. A lost connection is taken up at the
  // same byte.
  logs({ from = 0, ...options } = {}) {
    const at = f => ({ path: query(`${this.#path}/stream`, { from: f }) });
    return this.#calls.stream('GET', at(from).path, undefined, split(options)[0], {
      idle: 0,
      resume: last => at(last ?? from),
      decode: decodeOutput,
      skip: event => event.type === 'process_info' || event.type === 'exit',
    });
  }

  // {stdout, stderr} so far. For a piece by offset: {stream, from, limit, encoding} → {data, next, total, dropped,
  // ended}.
  output(options) {
    const [control, rest] = split(options);
    return this.#calls.get(query(`${this.#path}/logs`, rest), control);
  }

  // Until it has ended; then exitCode and outcome say how. With timeout (ms): PROCESS_READY_TIMEOUT when it has not.
  async wait({ timeout, ...options } = {}) {
    await this.#await({ for: 'exit' }, timeout, options);
    return this;
  }
  // Until its output has this text (or, with regex: true, matches): {stream, offset, line, match}.
  waitForLog(pattern, { regex, stream, from, timeout, ...options } = {}) {
    return this.#await({ for: 'log', pattern, stream, from, regex: regex && 1 }, timeout, options);
  }
  // Until the port accepts connections.
  async waitForPort(port, { timeout, ...options } = {}) {
    await this.#await({ for: 'port', port }, timeout, options);
    return this;
  }

  async #await(params, timeout, options) {
    const [control] = split(options);
    const rounds = new Rounds(timeout, ms => this.#calls.pause(ms, control.signal));
    for (let lost = 0; ; await rounds.rest()) {
      const timeoutMs = rounds.begin();
      try {
        const answer = await this.#calls.get(query(`${this.#path}/wait`, { ...params, timeoutMs }), control, {
          atLeast: timeoutMs,
          fields: { 'process?': INFO },
        });
        if (answer.process) this.#take(answer.process);
        return answer;
      } catch (e) {
        const over = e instanceof ApiError && e.code === 'PROCESS_READY_TIMEOUT';
        if (over && !rounds.over) lost = 0;
        else if (!(e instanceof ConnectionLostError) || lost++) throw e;
      }
    }
  }

  // Ends it with all its descendants: {killed, survivors}. Options: signal (TERM first by default), graceMs.
  kill(options) {
    return killProcess(this.#calls, this.id, options);
  }

  // A signal by name or number; tree: to its descendants too.
  sendSignal(signal, { tree, ...options } = {}) {
    return this.#calls.post(`${this.#path}/signal`, { signal, ...(tree !== undefined && { tree }) }, split(options)[0]);
  }

  // To its standard input, when it was started with stdin: 'open'.
  write(data, { eof, ...options } = {}) {
    return this.#calls.post(`${this.#path}/stdin`, { ...inputOf(data), ...(eof && { eof }) }, split(options)[0]);
  }
  closeStdin(options) {
    return this.write('', { ...options, eof: true });
  }
}

export function killProcess(calls, id, options) {
  const [control, { signal, graceMs }] = splitKill(options);
  return calls.send('DELETE', query(`/api/process/${segment(id)}`, { signal, graceMs }), undefined, control, {
    atLeast: graceMs,
  });
}
// Here `signal` is the process's when it is a name or a number, else the caller's AbortSignal.
function splitKill(options = {}) {
  const { signal, ...rest } = options;
  const [control, own] = split(rest);
  if (typeof signal === 'string' || typeof signal === 'number') return [control, { signal, ...own }];
  return [{ ...control, signal }, own];
}
