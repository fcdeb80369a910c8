// Commands and files, in a session's shell (Session) or each on its own (the client itself).
import { ConfluxError } from './errors.js';
import { commandBody, decodeOutput, inputPieces, query, split } from './calls.js';
import { resultFields } from './execution.js';
import { Files } from './files.js';
import { Process } from './process.js';

export class Operations extends Files {
  // Runs a command to its end. A string is for bash, an array a program with arguments. An exit code is a result, no
  // error.
  exec(command, options) {
    const [control, rest] = split(options);
    const body = this.scoped(commandBody(command, rest));
    return this.calls.post('/api/execute', body, control, {
      atLeast: rest.timeout,
      cancelEnds: rest.onCancel !== 'detach',
      fields: resultFields,
    });
  }

  // The same, live: an async iterator of events with write(), end() and cancel(). It begins at once.
  execStream(command, options) {
    const [control, { idleTimeout, ...rest }] = split(options);
    if (rest.onCancel === 'kill') control.onDisconnect ??= 'kill';
    const body = this.scoped(commandBody(command, rest));
    // With an id it starts at most once: the same request again finds it, wherever the first one got to.
    const at = from => ({ path: query('/api/execute/stream', { from }) });
    const resume = rest.executionId && (last => at(last ?? '0'));
    return commandStream(
      this.calls.stream('POST', at(resume && '0').path, body, control, {
        decode: decodeOutput,
        skip: repeatedStart(),
        resume,
        ...(idleTimeout !== undefined && { idle: idleTimeout }),
      }),
    );
  }

  // Starts a background process. Also as startProcess({command, …}).
  async startProcess(command, options) {
    if (command && typeof command === 'object' && !Array.isArray(command)) ({ command, ...options } = command);
    const [control, rest] = split(options);
    const body = this.scoped(commandBody(command, rest));
    const fields = { processId: 'text' };
    return new Process(this.calls, await this.calls.post('/api/process/start', body, control, { fields }));
  }
}

// A resumed stream begins with `start` again: the reader has seen it.
function repeatedStart() {
  let started = false;
  return ({ type }) => {
    if (type !== 'start') return false;
    const again = started;
    started = true;
    return again;
  };
}

function commandStream(stream) {
  const input = (data, eof) => {
    if (stream.over) throw new ConfluxError('The command has ended', { code: 'NOT_SUPPORTED' });
    return stream.feed(inputPieces(data), eof);
  };
  return Object.assign(stream, { write: data => input(data, false), close: data => input(data, true) });
}

// A shell that keeps folder, variables and functions from one command to the next.
export class Session extends Operations {
  #id;
  constructor(calls, id) {
    super(calls);
    this.#id = id;
  }
  get id() {
    return this.#id;
  }
  get sessionId() {
    return this.#id;
  }
  scoped(body) {
    return { sessionId: this.#id, ...body };
  }

  // Ends it and what runs in it; keep: background processes stay.
  delete({ keep, ...options } = {}) {
    return this.calls.post('/api/session/delete', { sessionId: this.#id, ...(keep && { keep }) }, split(options)[0]);
  }
}
