// The same calls, each an HTTP request of its own; streams are server-sent events.
import { ApiError, ConnectionError, abortReason, lostCall, outlives, timedOut } from '../errors.js';
import { byteLength } from '../bytes.js';
import { callFields } from '../log.js';
import { HttpInput } from './http_input.js';
import { readSse } from '../sse.js';

const UNREAD = 1 << 20; // bytes of a stream that wait for its reader

const reasonOf = e => e?.cause?.message || e?.cause?.code || e?.message || String(e);
// Whatever these mean, nothing has been sent.
const NEVER_SENT = /ECONNREFUSED|ENOTFOUND|EAI_AGAIN|ConnectionRefused|certificate|CERT_|ERR_TLS|ERR_SSL/i;

export class HttpCarrier {
  #baseUrl;
  #headers;
  #fetch;
  #log;
  #count = 0;
  constructor({ baseUrl, headers, fetch, log }) {
    this.#baseUrl = baseUrl;
    this.#headers = headers;
    this.#fetch = fetch;
    this.#log = log;
  }

  async request(call) {
    const guard = new Guard(call, call.timeout);
    try {
      const response = await this.#send(call, guard);
      const text = await response.text().catch(e => {
        throw guard.told(e) ?? lostCall(`HTTP connection closed: ${reasonOf(e)}`, call, true);
      });
      return { status: response.status, body: parse(text) };
    } catch (e) {
      if (guard.fired && call.body?.executionId && call.cancelEnds && !outlives(call, e)) this.#end(call.body.executionId);
      throw e;
    } finally {
      guard.release();
    }
  }

  open(asked, stream) {
    const call = named(asked);
    const id = call.body?.executionId;
    const guard = new Guard({ ...call, signal: undefined }, 0);
    const flow = { unread: 0, room() {}, begun: false, mustEnd: false };
    const input = new HttpInput(post => this.request(post), stream);
    stream.input = (piece, eof) => input.add(piece, eof);
    stream.stop = kill => {
      flow.mustEnd = kill && id && !flow.begun; // its end must not overtake its start
      if (!flow.mustEnd) guard.abort();
      if (kill && id && flow.begun) this.#end(id);
      flow.room();
    };
    this.#pump(call, stream, guard, flow, input).then(
      () => stream.end(),
      e => stream.fail(e),
    );
  }

  async #pump(call, stream, guard, flow, input) {
    const response = await this.#send(call, guard);
    if (response.status !== 200) throw new ApiError(response.status, parse(await response.text()), call);
    // The body is not read while the reader has not taken enough: TCP passes it on.
    stream.taken = bytes => {
      flow.unread -= bytes;
      flow.room();
    };
    try {
      for await (const item of readSse(response.body)) {
        const bytes = byteLength(item.data);
        flow.unread += bytes;
        flow.begun = true;
        if (item.data.startsWith('{"type":"start"')) input.started(JSON.parse(item.data).processId);
        if (flow.mustEnd) stream.stop(true);
        stream.push(item, bytes);
        while (flow.unread > UNREAD && !stream.over)
          await new Promise(resolve => {
            flow.room = resolve;
          });
        if (stream.over) return guard.abort();
      }
    } catch (e) {
      throw guard.told(e) ?? lostCall(`HTTP connection closed: ${reasonOf(e)}`, call, true);
    }
  }

  // A fetch of the caller's own making, with our address, headers and deadline (until the head has come).
  async raw(path, init = {}, timeout = 0) {
    const call = { method: init.method ?? 'GET', path, body: init.body, headers: init.headers, signal: init.signal };
    const guard = new Guard(call, timeout);
    try {
      return await this.#fetchIt(call, init, guard);
    } finally {
      clearTimeout(guard.timer);
    }
  }

  #send(call, guard) {
    const body = call.method === 'GET' || call.method === 'DELETE' ? undefined : JSON.stringify(withOptions(call));
    return this.#fetchIt(
      call,
      { method: call.method, body, headers: { ...call.headers, ...(body && { 'Content-Type': 'application/json' }) } },
      guard,
    );
  }

  async #fetchIt(call, init, guard) {
    const id = `h${++this.#count}`;
    if (this.#log.enabled) this.#log.debug('→ HTTP', callFields(id, call));
    const headers = new Headers(init.headers);
    for (const [name, value] of Object.entries(this.#headers)) if (!headers.has(name)) headers.set(name, value);
    try {
      const response = await this.#fetch(this.#baseUrl + call.path, { ...init, headers, signal: guard.signal });
      if (this.#log.enabled) this.#log.debug('← HTTP', { ...callFields(id, call), status: response.status });
      return response;
    } catch (e) {
      if (guard.told(e)) throw guard.told(e);
      const why = reasonOf(e);
      if (NEVER_SENT.test(`${why} ${e?.cause?.code} ${e?.code}`))
        throw new ConnectionError(`HTTP connection to ${this.#baseUrl} failed: ${why}`, { cause: e });
      throw lostCall(`HTTP connection to ${this.#baseUrl} failed: ${why}`, call, true);
    }
  }

  // An abandoned request ends its command by its id: the connection's end does not, as others may ask for the result.
  // It may come before the command that it ends, which goes over another connection: then it is sent again.
  async #end(id) {
    try {
      for (let pause = 10; pause < 1000; pause *= 2) {
        const response = await this.raw(`/api/execution/${encodeURIComponent(id)}`, { method: 'DELETE' }, 10000);
        if (response.status !== 404 || parse(await response.text())?.code !== 'EXECUTION_NOT_FOUND') return;
        await new Promise(resolve => setTimeout(resolve, pause));
      }
    } catch (e) {
      this.#log.warn(`could not end an execution: ${e.message}`);
    }
  }
}

// The caller's signal and a deadline, as the one signal that fetch takes (AbortSignal.any is too new).
class Guard {
  #controller = new AbortController();
  #why = null;
  #signal;
  #abort;
  constructor(call, timeout) {
    if (timeout) this.timer = setTimeout(() => this.#fire(timedOut(call, timeout)), timeout);
    this.#signal = call.signal;
    this.#abort = () => this.#fire(abortReason(call.signal));
    if (call.signal?.aborted) this.#abort();
    else call.signal?.addEventListener('abort', this.#abort, { once: true });
  }
  get signal() {
    return this.#controller.signal;
  }
  get fired() {
    return this.#why !== null;
  }
  told() {
    return this.#why;
  }
  abort() {
    this.#controller.abort();
  }
  release() {
    clearTimeout(this.timer);
    this.#signal?.removeEventListener('abort', this.#abort);
  }
  #fire(why) {
    this.#why = why;
    this.#controller.abort();
  }
}

// A command that streams has an id in any case: without one nobody could end it, as cutting the connection does not.
function named(call) {
  if (call.method !== 'POST' || !call.path.startsWith('/api/execute/stream') || call.body?.executionId) return call;
  const random = () => Math.random().toString(36).slice(2); // it need not be secret
  return { ...call, body: { ...call.body, executionId: `http-${random()}${random()}` } };
}

// What stands beside the path on the WebSocket stands in the body here.
function withOptions({ body = {}, priority, deadlineMs, onDisconnect, cancelEnds }) {
  const extra = { priority, deadlineMs, onDisconnect };
  // Without an id nobody could ask for the result again: a command whose caller has left would run for nobody.
  if (cancelEnds && !body.executionId) extra.onDisconnect ??= 'kill';
  for (const name in extra) if (extra[name] === undefined) delete extra[name];
  return { ...body, ...extra };
}

export function parse(text) {
  if (text === '') return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
