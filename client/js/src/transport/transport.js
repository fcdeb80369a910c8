// Calls over one or more multiplexed WebSockets, over HTTP, or ("auto") over WebSockets while they can be had.
import { ApiError, ConnectionError, abortReason, brokenCall, disposed } from '../errors.js';
import { EventStream } from '../stream.js';
import { longer, now } from '../time.js';
import { HttpCarrier } from './http.js';
import { MuxConnection, TOO_LONG, WINDOW } from './mux.js';
import { isWorkers, openWithConstructor, openWithFetch } from './socket.js';

const MODES = ['auto', 'websocket', 'http'];
const RETRY_FIRST_MS = 1000,
  RETRY_MOST_MS = 30000; // between looks for a WebSocket while on HTTP
const RECONNECT_FIRST_MS = 50;
const LASTED_MS = 10000; // a stream that was lost so late is taken up again at once

// A platform's own way to open a WebSocket; src/node/ sets one.
let platformOpen = null;
export const usePlatformSocket = open => {
  platformOpen = open;
};

// opening: a promise, which `stop` ends.
const emptySlots = n => Array.from({ length: n }, () => ({ connection: null, opening: null, stop: null }));
// A connection that is lost tells its calls before us: what they begin anew needs another.
const isUp = ({ connection }) => connection && !connection.lost;
const disconnected = () =>
  new ConnectionError('WebSocket closed: disconnected by the client', { code: 'DISCONNECTED' });

export class Transport {
  #wanted;
  #url;
  #token;
  #headers;
  #timeouts;
  #log;
  #onState;
  #options;
  #http;
  #slots;
  #wasUp = false; // a WebSocket stood before: a failure may be a restart
  #retry = null; // while on HTTP in auto: {at, delay}
  #turn = 0; // calls go round the pool: each place is opened when its turn comes first
  #gone = false;
  #pauses = new Set(); // functions that end one

  constructor({ baseUrl, token, headers = {}, transport = 'auto', timeouts, pool = 1, log, onState, ...options }) {
    if (!MODES.includes(transport)) throw new TypeError(`transport must be one of ${MODES.join(', ')}`);
    if (!Number.isInteger(pool) || pool < 1) throw new TypeError('pool must be a positive integer');
    this.#wanted = transport;
    this.#url = options.wsUrl ?? `${baseUrl.replace(/^http/, 'ws')}/ws`;
    this.#token = token;
    this.#headers = { ...headers, ...(token && { Authorization: `Bearer ${token}` }) };
    this.#timeouts = timeouts;
    this.#log = log;
    this.#onState = onState ?? (() => {});
    this.#options = options;
    const fetch = options.fetch ?? ((...args) => globalThis.fetch(...args));
    this.#http = new HttpCarrier({ baseUrl, headers: this.#headers, fetch, log });
    this.#slots = emptySlots(pool);
  }

  // ---- state ----

  async connect() {
    const carrier = await this.#carrier();
    if (carrier !== this.#http) return;
    const { status, body } = await this.#http.request({
      method: 'GET',
      path: '/api/ping',
      timeout: this.#timeouts.connect,
    });
    if (status >= 400) throw new ApiError(status, body);
  }

  disconnect() {
    const slots = this.#slots;
    this.#slots = emptySlots(slots.length); // what is being opened for the old ones finds itself unwanted
    for (const slot of slots) {
      slot.stop?.abort(disconnected());
      slot.connection?.close('disconnected by the client');
    }
    this.#http.disconnect();
  }

  dispose() {
    this.#gone = true;
    this.disconnect();
    this.#http.dispose();
    for (const end of [...this.#pauses]) end(disposed());
  }

  // For a program that exits: nothing more can be awaited.
  abort() {
    for (const slot of this.#slots) slot.connection?.abort();
    this.#http.disconnect();
  }

  // Ends early, with an error, when the signal or dispose() says so.
  pause(ms, signal) {
    return new Promise((resolve, reject) => {
      const end = error => {
        clearTimeout(timer);
        this.#pauses.delete(end);
        signal?.removeEventListener('abort', abort);
        if (error) reject(error);
        else resolve();
      };
      const abort = () => end(abortReason(signal));
      const timer = setTimeout(() => end(), ms);
      this.#pauses.add(end);
      if (this.#gone) end(disposed());
      else if (signal?.aborted) abort();
      else signal?.addEventListener('abort', abort, { once: true });
    });
  }

  isConnected() {
    return this.#slots.some(slot => slot.connection) || this.getMode() === 'http';
  }

  // What the next call goes over, as far as is known.
  getMode() {
    return this.#wanted === 'http' || this.#retry ? 'http' : 'websocket';
  }

  // ---- calls ----

  // {status, body} of one request.
  async request(call) {
    const carrier = await this.#carrierFor(call);
    if (carrier === this.#http) return carrier.request(call);
    const answer = await carrier.request(call).catch(e => {
      if (e.code !== TOO_LONG) throw e;
      this.#log.info('a request that is too long for a message goes over HTTP');
      return null;
    });
    if (!answer) return this.#http.request(call);
    return needsHttp(call, answer.status, answer.body) ? this.#http.request(call) : answer;
  }

  // The events of one, undecoded: {data, event?, id?}, or what `decode` makes of them.
  open(call, { decode, skip, last, resume, idle = this.#timeouts.stream } = {}) {
    let began = now(),
      pause = 0;
    const stream = new EventStream({
      idle,
      decode,
      skip,
      last,
      signal: call.signal,
      resume:
        resume &&
        ((lastId, error) => {
          const next = resume(lastId);
          if (!next) return false;
          this.#log.info(`a stream is taken up again: ${error.message}`);
          // At once, but not again and again.
          const wait = now() - began < LASTED_MS ? pause : 0;
          pause = longer(wait);
          began = now() + wait;
          this.#begin({ ...call, ...next }, stream, wait);
          return true;
        }),
    });
    this.#begin(call, stream);
    return stream;
  }

  #begin(call, stream, wait = 0) {
    const early = [],
      left = new AbortController();
    stream.input = (...args) => early.push(args);
    stream.stop = () => left.abort(); // a pause does not hold up a program's end
    const carrier = () => this.#carrierFor({ ...call, signal: undefined });
    (wait ? this.pause(wait, left.signal).then(carrier) : carrier())
      .then(carrier => {
        if (stream.over) return;
        stream.input = stream.stop = null;
        carrier.open(call, stream, () => this.#http.open(call, stream));
        for (const args of early) stream.input?.(...args);
      })
      .catch(e => stream.fail(e));
  }

  // As the global one, for paths of the server. A body that is not JSON, and what is served over HTTP only, goes by
  // HTTP.
  async fetch(path, init = {}) {
    const method = (init.method ?? 'GET').toUpperCase();
    const json = jsonOf(init.body);
    const call = {
      method,
      path,
      body: json.value,
      headers: plain(init.headers),
      signal: init.signal,
      timeout: this.#timeouts.request,
    };
    const carrier = json.ok && method !== 'HEAD' ? await this.#carrierFor(call) : this.#http;
    if (carrier === this.#http) return this.#http.raw(path, init, this.#timeouts.request);
    return (await exchange(carrier, call)) ?? this.#http.raw(path, init, this.#timeouts.request);
  }

  // HTTP whatever the mode: for bodies of any size.
  fetchRaw(path, init, timeout = this.#timeouts.request) {
    return this.#http.raw(path, init, timeout);
  }

  // A stream's events as the bytes that HTTP would bring. A failure shows when it is read.
  async fetchStream(path, body, method = body === undefined ? 'GET' : 'POST') {
    return sseBody(this.open({ method, path, body }));
  }

  // ---- which way ----

  async #carrierFor(call) {
    const { signal } = call;
    if (!signal) return this.#carrier();
    if (signal.aborted) throw abortReason(signal);
    let abort;
    const aborted = new Promise((_, reject) => {
      abort = () => reject(abortReason(signal));
    });
    signal.addEventListener('abort', abort, { once: true });
    try {
      return await Promise.race([this.#carrier(), aborted]);
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  async #carrier() {
    if (this.#gone) throw disposed();
    if (this.#wanted === 'http') return this.#http;
    if (this.#retry) return this.#onHttp();
    const slot = this.#slots[this.#turn++ % this.#slots.length];
    if (isUp(slot)) return slot.connection;
    try {
      return await this.#open(slot);
    } catch (e) {
      if (this.#gone) throw e;
      const other = this.#slots.find(isUp);
      if (other) return other.connection;
      if (this.#wanted === 'websocket' || e instanceof ApiError || e.code === 'DISCONNECTED') throw e;
      this.#fallBack(e);
      return this.#http;
    }
  }

  #fallBack(e) {
    const delay = this.#retry
      ? Math.min(this.#retry.delay * 2, RETRY_MOST_MS)
      : (this.#options.retryAfter ?? RETRY_FIRST_MS);
    if (!this.#retry) {
      this.#log.warn(`no WebSocket, using HTTP: ${e.message}`);
      this.#onState({ mode: 'http', connected: true, reason: e.message });
    }
    this.#retry = { at: now() + delay, delay };
  }

  // Nobody waits for the look whether WebSockets work again.
  #onHttp() {
    if (now() >= this.#retry.at) {
      this.#retry.at = Infinity;
      this.#open(this.#slots[0]).catch(e => this.#fallBack(e));
    }
    return this.#http;
  }

  #open(slot) {
    slot.opening ??= this.#openSlot(slot);
    return slot.opening;
  }

  async #openSlot(slot) {
    slot.stop = new AbortController();
    try {
      const socket = await this.#openPatiently(slot.stop.signal);
      if (!this.#slots.includes(slot)) {
        socket.close('disconnected by the client');
        throw disconnected();
      }
      return this.#adopt(slot, socket);
    } finally {
      slot.opening = slot.stop = null;
    }
  }

  #adopt(slot, socket) {
    const { maxPending, idleTimeout } = this.#options;
    slot.connection = new MuxConnection(socket, {
      log: this.#log,
      maxPending,
      idle: idleTimeout,
      onClose: closed => {
        if (slot.connection === closed) slot.connection = null;
        this.#onState({ mode: this.getMode(), connected: this.isConnected(), reason: closed.lost });
      },
    });
    this.#wasUp = true;
    this.#retry = null;
    this.#log.info('WebSocket connected');
    this.#onState({ mode: 'websocket', connected: true });
    return slot.connection;
  }

  // After a loss the server may be on its way up again: at once, then with growing pauses, within the time for it.
  async #openPatiently(signal) {
    const end = now() + (this.#wasUp ? this.#timeouts.reconnect : 0);
    for (let pause = RECONNECT_FIRST_MS; ; pause *= 2) {
      try {
        return await this.#openOnce(signal);
      } catch (e) {
        if (e instanceof ApiError || signal.aborted || now() + pause > end) {
          this.#wasUp = false;
          throw e;
        }
        await this.pause(pause, signal);
      }
    }
  }

  #openOnce(signal) {
    const { connect: timeout } = this.#timeouts;
    const request = { url: this.#url, token: this.#token, headers: this.#headers, timeout, signal };
    const { WebSocket, fetch, upgrade } = this.#options;
    if (WebSocket) return openWithConstructor(WebSocket, request);
    if (upgrade === 'fetch' || isWorkers()) return openWithFetch(fetch ?? globalThis.fetch, request);
    if (platformOpen) return platformOpen(request);
    if (globalThis.WebSocket) return openWithConstructor(globalThis.WebSocket, request);
    return Promise.reject(
      new ConnectionError('There is no WebSocket on this platform: pass one as the option WebSocket'),
    );
  }
}

// What is served over HTTP only, and what is not JSON: a WebSocket brings its status alone.
const needsHttp = (call, status, body) =>
  (status === 501 && body?.code === 'NOT_SUPPORTED') || (status === 200 && body === undefined && call.method === 'GET');

// ---- fetch and fetchStream over a mux ----

function jsonOf(body) {
  if (body === undefined || body === null) return { ok: true };
  if (typeof body !== 'string') return { ok: false };
  try {
    return { ok: true, value: JSON.parse(body) };
  } catch {
    return { ok: false };
  }
}
const plain = headers => headers && Object.fromEntries(new Headers(headers));

// The Response, with a streaming body when events come before the end; null when only HTTP serves it.
function exchange(connection, call) {
  return new Promise((resolve, reject) => {
    let stream = null,
      control = null;
    const begin = () => {
      stream = new EventStream();
      stream.stop = control.cancel;
      stream.taken = control.credit;
      resolve(new Response(sseBody(stream), { status: 200, headers: { 'Content-Type': 'text/event-stream' } }));
    };
    const answer = (status, body) => {
      try {
        resolve(jsonResponse(status, body));
      } catch (e) {
        // nested too deeply to be written
        reject(brokenCall(`The server sent what is no JSON of use: ${e.message}`, call));
      }
    };
    control = connection.start(
      { ...call, window: WINDOW },
      {
        stream: item => {
          if (!stream) begin();
          stream.push(item, item.bytes);
        },
        done: (status, body) => {
          if (stream) stream.end();
          else if (needsHttp(call, status, body)) resolve(null);
          else answer(status, body);
        },
        error: e => {
          if (stream) stream.fail(e);
          else if (e.code === TOO_LONG) resolve(null);
          else if (e instanceof ApiError) answer(e.status, errorBody(e));
          else reject(e);
        },
      },
    );
  });
}
const errorBody = e => ({ code: e.code, message: e.message, context: e.context, httpStatus: e.status });
const jsonResponse = (status, body) =>
  new Response(body === undefined || status === 204 || status === 304 ? null : JSON.stringify(body), {
    status,
    headers: { 'Content-Type': 'application/json' },
  });

function sseBody(stream) {
  const encoder = new TextEncoder();
  return new ReadableStream(
    {
      async pull(controller) {
        const { value, done } = await stream.next();
        if (done) return controller.close();
        const id = value.id === undefined ? '' : `id: ${value.id}\n`;
        const event = value.event === undefined ? '' : `event: ${value.event}\n`;
        controller.enqueue(encoder.encode(`${id}${event}data: ${value.data}\n\n`));
      },
      cancel() {
        stream.cancel();
      },
    },
    { highWaterMark: 0 },
  );
}
