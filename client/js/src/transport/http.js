// The same calls, each an HTTP request of its own; streams are server-sent events.
import {
  ApiError,
  ConfluxError,
  ConnectionError,
  ConnectionLostError,
  abortReason,
  brokenCall,
  disposed,
  lostCall,
  outlives,
  timedOut,
} from '../errors.js';
import { byteLength } from '../bytes.js';
import { callFields } from '../log.js';
import { parse } from '../shape.js';
import { readSse } from '../sse.js';
import { HttpInput } from './http_input.js';

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
  #live = new Set(); // guards of what is under way
  #gone = false;
  constructor({ baseUrl, headers, fetch, log }) {
    this.#baseUrl = baseUrl;
    this.#headers = headers;
    this.#fetch = fetch;
    this.#log = log;
  }

  // Ends all that is under way, bodies that are being read included.
  disconnect() {
    for (const guard of [...this.#live]) guard.lose('HTTP connection closed: disconnected by the client');
  }

  // And nothing more is begun.
  dispose() {
    this.#gone = true;
    this.disconnect();
  }

  async request(call) {
    const guard = new Guard(call, call.timeout, this.#live);
    try {
      const response = await this.#send(call, guard);
      return { status: response.status, body: await bodyOf(response, call, guard) };
    } catch (e) {
      const left = guard.told && !(e instanceof ConnectionLostError);
      if (left && call.body?.executionId && call.cancelEnds && !outlives(call, e)) this.#end(call.body.executionId);
      throw e;
    } finally {
      guard.release();
    }
  }

  open(asked, stream) {
    const call = named(asked);
    const id = call.body?.executionId;
    const guard = new Guard({ ...call, signal: undefined }, 0, this.#live);
    const flow = { unread: 0, room() {}, begun: false, mustEnd: false };
    const input = new HttpInput(post => this.request(post), stream);
    stream.input = (piece, eof) => input.add(piece, eof);
    stream.stop = kill => {
      flow.mustEnd = kill && id && !flow.begun; // its end must not overtake its start
      if (!flow.mustEnd) guard.abort();
      if (kill && id && flow.begun) this.#end(id);
      flow.room();
    };
    guard.onlost = () => {
      flow.room();
      if (flow.mustEnd) this.#end(id);
    };
    this.#pump(call, stream, guard, flow, input)
      .finally(() => {
        guard.abort(); // what is left of the body is not wanted
        guard.release();
      })
      .then(
        () => stream.end(),
        e => stream.fail(e),
      );
  }

  async #pump(call, stream, guard, flow, input) {
    const response = await this.#send(call, guard);
    if (response.status >= 400) throw new ApiError(response.status, await bodyOf(response, call, guard), call);
    const type = response.headers.get('Content-Type');
    if (response.status !== 200 || !response.body || !/^text\/event-stream\b/.test(type ?? ''))
      throw brokenCall(`The server sent no stream of events: status ${response.status}, content type ${type}`, call);
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
        if (item.data.startsWith('{"type":"start"')) input.started(parse(item.data).processId);
        if (flow.mustEnd) stream.stop(true);
        stream.push(item, bytes);
        while (flow.unread > UNREAD && !stream.over && !guard.told)
          await new Promise(resolve => {
            flow.room = resolve;
          });
        if (stream.over) return guard.abort();
      }
    } catch (e) {
      throw guard.told ?? lostBody(e, call);
    }
  }

  // A fetch of the caller's own making, with our address, headers and deadline (until the head has come). `live` null:
  // disconnect() does not end it.
  async raw(path, init = {}, timeout = 0, live = this.#live) {
    const call = { method: init.method ?? 'GET', path, headers: init.headers, signal: init.signal };
    const guard = new Guard(call, timeout, live);
    try {
      const response = await this.#fetchIt(call, init, guard);
      clearTimeout(guard.timer);
      return guarded(response, call, guard);
    } catch (e) {
      guard.release();
      throw e;
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
    if (this.#gone && guard.bound) throw disposed();
    const id = `h${++this.#count}`;
    if (this.#log.enabled) this.#log.debug('→ HTTP', callFields(id, call));
    const headers = new Headers(init.headers);
    for (const [name, value] of Object.entries(this.#headers)) if (!headers.has(name)) headers.set(name, value);
    try {
      const response = await this.#fetch(this.#baseUrl + call.path, { ...init, headers, signal: guard.signal });
      if (this.#log.enabled) this.#log.debug('← HTTP', { ...callFields(id, call), status: response.status });
      return response;
    } catch (e) {
      if (guard.told) throw guard.told;
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
        const response = await this.raw(`/api/execution/${encodeURIComponent(id)}`, { method: 'DELETE' }, 10000, null);
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
  told = null; // why it has ended the request, once it has
  onlost = () => {};
  #controller = new AbortController();
  #call;
  #live;
  #signal;
  #abort;
  // live: a set that it is in for as long as the request is under way
  constructor(call, timeout, live) {
    this.#call = call;
    this.#live = live;
    live?.add(this);
    if (timeout) this.timer = setTimeout(() => this.#fire(timedOut(call, timeout)), timeout);
    this.#signal = call.signal;
    this.#abort = () => this.#fire(abortReason(call.signal));
    if (call.signal?.aborted) this.#abort();
    else call.signal?.addEventListener('abort', this.#abort, { once: true });
  }
  // It ends with its carrier.
  get bound() {
    return !!this.#live;
  }
  get signal() {
    return this.#controller.signal;
  }
  abort() {
    this.#controller.abort();
  }
  lose(why) {
    this.#fire(lostCall(why, this.#call, true));
    this.onlost();
  }
  release() {
    this.#live?.delete(this);
    clearTimeout(this.timer);
    this.#signal?.removeEventListener('abort', this.#abort);
  }
  #fire(why) {
    this.told ??= why;
    this.#controller.abort(why);
  }
}

const lostBody = (e, call) =>
  e instanceof ConfluxError ? e : lostCall(`HTTP connection closed: ${reasonOf(e)}`, call, true);

const bodyOf = async (response, call, guard) =>
  parse(
    await response.text().catch(e => {
      throw guard.told ?? lostBody(e, call);
    }),
  );

// The same answer, whose body ends with our error where it is lost, and is under guard until it has ended.
function guarded(response, call, guard) {
  if (!response.body) {
    guard.release();
    return response;
  }
  const reader = response.body.getReader();
  const body = new ReadableStream(
    {
      async pull(controller) {
        try {
          const { value, done } = await reader.read();
          if (!done) return controller.enqueue(value);
        } catch (e) {
          guard.release();
          throw guard.told ?? lostBody(e, call);
        }
        guard.release();
        controller.close();
      },
      cancel(reason) {
        guard.release();
        return reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
  const { status, statusText, headers, url } = response;
  return Object.defineProperty(new Response(body, { status, statusText, headers }), 'url', { value: url });
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
