// From methods to calls: what every operation accepts, and how answers become results or errors.
import { ApiError } from './errors.js';
import { isBytes, asBytes, toBase64 } from './bytes.js';

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
export const decodeJson = item => JSON.parse(item.data);

// What an event stream says of output: `output` is what handlers of the Cloudflare SDK's older documents read.
export function decodeOutput(item) {
  const event = JSON.parse(item.data);
  if (event.type === 'stdout' || event.type === 'stderr') event.output = event.data;
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

  // The body of the answer; an error status is thrown. atLeast: how long the server itself may take.
  async send(method, path, body, control = {}, { atLeast = 0, cancelEnds } = {}) {
    const { requestTimeout = this.#timeouts.request, ...rest } = control;
    const timeout = requestTimeout && atLeast ? Math.max(requestTimeout, atLeast + GRACE_MS) : requestTimeout;
    const call = { method, path, body, timeout, cancelEnds, ...rest };
    const answer = await this.#transport.request(call);
    if (answer.status >= 400) throw new ApiError(answer.status, answer.body, call);
    return answer.body;
  }

  get(path, control, more) {
    return this.send('GET', path, undefined, control, more);
  }
  post(path, body, control, more) {
    return this.send('POST', path, body, control, more);
  }

  stream(method, path, body, control = {}, more = {}) {
    const { requestTimeout, ...rest } = control;
    return this.#transport.open({ method, path, body, ...rest }, { decode: decodeJson, last: isLast, ...more });
  }
}
