// From methods to calls: what every operation accepts, and how answers become results or errors.
import { ApiError, ProtocolError, brokenCall, pathOf } from './errors.js';
import { isBytes, asBytes, toBase64 } from './bytes.js';
import { misfit } from './shape.js';

export const NO_SESSION = '__DISABLE_SESSION__';
const GRACE_MS = 10000; // that the server gets to tell of a timeout of its own

export const segment = id => encodeURIComponent(id);

export function query(path, params) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    if (value !== undefined && value !== null) all.set(name, String(value));
  const text = all.toString();
  return text ? `${path}${path.includes('?') ? '&' : '?'}${text}` : path;
}

// The options of the call itself: {signal, priority, deadlineMs, onDisconnect, requestTimeout}; the rest is the
// operation's.
export function split(options = {}) {
  const { signal, priority, deadlineMs, onDisconnect, requestTimeout, ...rest } = options;
  return [{ signal, priority, deadlineMs, onDisconnect, requestTimeout }, rest];
}

// The body's fields for a command: a string is for a shell, an array is a program with its arguments.
export function commandBody(command, { timeout, stdin, ...rest } = {}) {
  const body = { ...(Array.isArray(command) ? { args: command } : { command }), ...rest };
  if (timeout !== undefined) body.timeoutMs = timeout;
  if (isBytes(stdin)) Object.assign(body, { stdin: toBase64(asBytes(stdin)), stdinEncoding: 'base64' });
  else if (stdin !== undefined) body.stdin = stdin;
  return body;
}

// What is written to a standard input, in pieces that fit a message of any server, escapes included.
const TEXT_PIECE = 10000,
  BYTES_PIECE = 32768;
export function* inputPieces(data = '') {
  const piece = isBytes(data) ? BYTES_PIECE : TEXT_PIECE;
  const all = isBytes(data) ? asBytes(data) : data;
  for (let at = 0, end; at < all.length; at = end) {
    end = at + piece;
    // Not between the halves of a character.
    if (typeof all === 'string' && (all.charCodeAt(end - 1) & 0xfc00) === 0xd800) end++;
    yield inputOf(all.slice(at, end));
  }
}

// {data, encoding?}
export const inputOf = data =>
  isBytes(data) ? { data: toBase64(asBytes(data)), encoding: 'base64' } : { data: data ?? '' };

const LAST = ['complete', 'exit', 'error', 'stopped'];
export const isLast = event => LAST.includes(event.type);

const QUOTED = 80; // characters of what came in place of an answer
const quote = text => `the text ${JSON.stringify(text.slice(0, QUOTED))}`;

// The event in an item of a stream. fields: what it must have; see shape.js.
export function decodeJson({ data }, fields = { type: 'text' }) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new ProtocolError(`The server sent an event that is not JSON: ${quote(data)}`);
  }
  const wrong = misfit(event, fields);
  if (wrong) throw new ProtocolError(`The server sent an event that is malformed: ${wrong}`);
  return event;
}

// The body of an answer, when it is an object that has these fields.
export function checked(body, fields, call) {
  const wrong = typeof body === 'string' ? `it is ${quote(body)}` : misfit(body, fields);
  if (wrong) throw brokenCall(`The server's answer to ${call.method} ${pathOf(call.path)} is malformed: ${wrong}`, call);
  return body;
}

// What an event stream says of output: `output` is what handlers of the Cloudflare SDK's older documents read.
export function decodeOutput(item) {
  const event = decodeJson(item);
  if (event.type !== 'stdout' && event.type !== 'stderr') return event;
  const wrong = misfit(event, { data: 'text' });
  if (wrong) throw new ProtocolError(`The server sent output that is malformed: ${wrong}`);
  event.output = event.data;
  return event;
}

export class Calls {
  #transport;
  #timeouts;
  constructor(transport, timeouts) {
    this.#transport = transport;
    this.#timeouts = timeouts;
  }

  get transport() {
    return this.#transport;
  }
  get timeouts() {
    return this.#timeouts;
  }

  // {status, body}; an error status is thrown. atLeast: how long the server itself may take. fields: what the body must
  // have, or a function of the body and the status that says it; see shape.js.
  async ask(method, path, body, control = {}, { atLeast = 0, cancelEnds, fields = {} } = {}) {
    const { requestTimeout = this.#timeouts.request, ...rest } = control;
    const timeout = requestTimeout && atLeast ? Math.max(requestTimeout, atLeast + GRACE_MS) : requestTimeout;
    const call = { method, path, body, timeout, cancelEnds, ...rest };
    const answer = await this.#transport.request(call);
    if (answer.status >= 400) throw new ApiError(answer.status, answer.body, call);
    checked(answer.body, {}, call);
    checked(answer.body, typeof fields === 'function' ? fields(answer.body, answer.status) : fields, call);
    return answer;
  }

  // The body alone.
  async send(...asked) {
    return (await this.ask(...asked)).body;
  }

  get(path, control, more) {
    return this.send('GET', path, undefined, control, more);
  }
  post(path, body, control, more) {
    return this.send('POST', path, body, control, more);
  }

  // Ends early, with an error, when the signal or the end of the client says so.
  pause(ms, signal) {
    return this.#transport.pause(ms, signal);
  }

  stream(method, path, body, control = {}, more = {}) {
    const { requestTimeout, ...rest } = control;
    return this.#transport.open({ method, path, body, ...rest }, { decode: decodeJson, last: isLast, ...more });
  }
}
