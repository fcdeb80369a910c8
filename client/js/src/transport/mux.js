// One multiplexed WebSocket: requests by id, their answers and streams (cloudflare-sandbox protocol, and our
// additions). Calls wait in a queue by priority while the socket has more than HIGH bytes to send or the server's
// limit of requests in flight is reached; each ends exactly once: answer, error, cancel, timeout or loss.
import { ApiError, ConfluxError, abortReason, brokenCall, lostCall, outlives, timedOut } from '../errors.js';
import { byteLength } from '../bytes.js';
import { callFields } from '../log.js';
import { readMessage } from './message.js';

const PRIORITIES = 8;
const DEFAULT_PRIORITY = 3;
const HIGH = 1 << 20; // bytes given to the socket beyond which calls wait
const DRAIN_POLL_MS = 5; // where a socket cannot tell that it has drained, as in browsers
export const WINDOW = 1 << 20; // credit of a stream: what may lie here unread
// What every server takes: a longer message waits until it has told its limit, as one too long costs the connection.
const SURE = 64 * 1024;
const MAX_MESSAGE = 16 << 20; // the limit of one that does not tell
const PULSE_MS = 20000; // silence after which the server is asked for a sign of life
const PULSES = 3; // so many unanswered: the connection is dead

export const TOO_LONG = 'MESSAGE_TOO_LONG';

export class MuxConnection {
  lost = null; // why, once it is
  #socket;
  #log;
  #onClose;
  #maxPending;
  #idle;
  #idleTimer;
  #calls = new Map(); // those on the wire, by id
  #queues = Array.from({ length: PRIORITIES }, () => []);
  #queued = 0;
  #count = 0;
  #flushing = false;
  #maxMessage = 0; // 0: not yet known
  #pulse;
  #unheard = 0;

  constructor(socket, { log, onClose, maxPending = 10000, idle = 0 }) {
    this.#socket = socket;
    this.#log = log;
    this.#onClose = onClose;
    this.#maxPending = maxPending;
    this.#idle = idle;
    socket.onmessage = text => this.#receive(text);
    // broken: by us, since the server's frames were not the protocol.
    socket.onclose = (code, reason, broken) =>
      this.#lose(`WebSocket closed (${code}${reason ? `: ${reason}` : ''})`, broken ? brokenCall : lostCall);
    socket.onactivity = () => {
      this.#unheard = 0;
    };
    socket.ondrain = () => this.#flush();
    this.#rest();
    this.#send({ type: 'hello' }); // it answers with its limits
  }

  get load() {
    return this.#calls.size + this.#queued;
  }

  // Begins a call. on: {stream(item), done(status, body), error(error), taken?(bytes of input)}.
  // Returns {cancel(kill), input(data, eof), credit(bytes)}.
  start(call, on) {
    const entry = { id: `r${++this.#count}`, call, on, sent: false, over: false };
    if (this.lost) {
      queueMicrotask(() => on.error(lostCall(this.lost, call, false)));
      return { cancel() {}, input() {}, credit() {} };
    }
    if (call.timeout) entry.timer = setTimeout(() => this.#giveUp(entry, timedOut(call, call.timeout)), call.timeout);
    if (call.signal) this.#listen(entry, call.signal);
    (this.#queues[call.priority] ?? this.#queues[DEFAULT_PRIORITY]).push(entry); // one out of range the server refuses
    if (this.#queued++ === 0 && this.#calls.size === 0) this.#wake();
    this.#flushSoon();
    return this.#control(entry);
  }

  request(call) {
    return new Promise((resolve, reject) => {
      this.start(call, { stream() {}, done: (status, body) => resolve({ status, body }), error: reject });
    });
  }

  // tooLong(): it does not fit a message of this server, and has not been sent.
  open(call, stream, tooLong) {
    const control = this.start(
      { ...call, timeout: 0, signal: undefined, window: WINDOW },
      {
        stream: item => stream.push(item, item.bytes),
        taken: bytes => stream.inputTaken(bytes),
        done: (status, body) => {
          if (status >= 400) stream.fail(new ApiError(status, body, call));
          else stream.end();
        },
        error: e => {
          if (e.code === TOO_LONG) tooLong();
          else stream.fail(e);
        },
      },
    );
    stream.taken = control.credit;
    stream.stop = control.cancel;
    stream.input = control.input;
  }

  close(reason, errorOf = lostCall) {
    this.#lose(`WebSocket closed: ${reason}`, errorOf);
    this.#socket.close(reason);
  }

  abort() {
    this.#socket.abort?.();
  }

  // ---- calls ----

  #listen(entry, signal) {
    const abort = () => this.#giveUp(entry, abortReason(signal));
    if (signal.aborted) return queueMicrotask(abort);
    signal.addEventListener('abort', abort, { once: true });
    entry.unlisten = () => signal.removeEventListener('abort', abort);
  }

  #control(entry) {
    let owed = 0;
    return {
      cancel: kill => {
        if (this.#finish(entry)) this.#tell(entry, { type: 'cancel', id: entry.id, ...(kill && { kill: true }) });
      },
      input: (data, eof) => {
        if (entry.over) return;
        const message = { type: 'stdin', id: entry.id, ...data, ack: true, ...(eof && { eof: true }) };
        if (entry.sent) this.#send(message, entry);
        else (entry.inputs ??= []).push(message); // it must follow its request
      },
      credit: bytes => {
        owed += bytes;
        if (owed < WINDOW / 4 || entry.over) return;
        this.#tell(entry, { type: 'window', id: entry.id, bytes: owed });
        owed = 0;
      },
    };
  }

  #tell(entry, message) {
    if (entry.sent && !this.lost) this.#send(message, entry);
  }

  #giveUp(entry, error) {
    if (!this.#finish(entry)) return;
    if (!outlives(entry.call, error)) this.#tell(entry, { type: 'cancel', id: entry.id });
    entry.on.error(error);
  }

  // Takes it off the books; false when it was. What is still queued stays there as a stone that #flush steps over.
  #finish(entry) {
    if (entry.over) return false;
    entry.over = true;
    clearTimeout(entry.timer);
    entry.unlisten?.();
    if (entry.sent) this.#calls.delete(entry.id);
    else this.#queued--;
    if (this.load === 0) this.#rest();
    else if (this.#queued) this.#flushSoon();
    return true;
  }

  // ---- out ----

  // What is called in one turn goes out together, highest priority first.
  #flushSoon() {
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(() => {
      this.#flushing = false;
      this.#flush();
    });
  }

  #top() {
    for (let p = PRIORITIES - 1; p >= 0; p--) {
      const queue = this.#queues[p];
      while (queue.length && queue[0].over) queue.shift();
      if (queue.length) return queue;
    }
    return null;
  }

  #flush() {
    for (let queue; !this.lost && this.#calls.size < this.#maxPending && (queue = this.#top());) {
      if (this.#socket.bufferedAmount > HIGH) return this.#await();
      const entry = queue[0];
      if (!this.#prepare(entry)) continue;
      if (!this.#maxMessage && entry.text.length > SURE / 3) return;
      queue.shift();
      this.#queued--;
      this.#calls.set(entry.id, entry);
      entry.sent = true;
      this.#sendRequest(entry);
    }
  }

  #await() {
    if (this.#socket.tellsDrain || this.#flushing) return;
    this.#flushing = true;
    setTimeout(() => {
      this.#flushing = false;
      this.#flush();
    }, DRAIN_POLL_MS);
  }

  // The text of a request; false when it has none, or one that the server would not take: then it fails alone.
  #prepare(entry) {
    const { method, path, body, headers, priority, deadlineMs, onDisconnect, window } = entry.call;
    try {
      entry.text ??= JSON.stringify({
        type: 'request',
        id: entry.id,
        method,
        path,
        body,
        headers,
        priority,
        deadlineMs,
        onDisconnect,
        window,
      });
    } catch (e) {
      // a body with a cycle or a BigInt
      return this.#fail(entry, e);
    }
    const limit = this.#maxMessage;
    if (!limit || entry.text.length <= limit / 3 || byteLength(entry.text) <= limit) return true;
    return this.#fail(
      entry,
      new ConfluxError(`A message of more than ${limit} bytes, which the server would not take`, {
        code: TOO_LONG,
        retrySafe: true,
      }),
    );
  }

  #fail(entry, error) {
    if (this.#finish(entry)) entry.on.error(error);
    return false;
  }

  #sendRequest(entry) {
    this.#sendText('request', entry.text, entry);
    entry.text = null;
    for (const message of entry.inputs ?? []) this.#send(message, entry);
    entry.inputs = null;
  }

  #send(message, entry) {
    this.#sendText(message.type, JSON.stringify(message), entry);
  }

  #sendText(type, text, entry) {
    if (this.#log.enabled)
      this.#log.debug(`→ ${type}`, { ...(entry ? callFields(entry.id, entry.call) : {}), chars: text.length });
    this.#socket.send(text);
  }

  // ---- in ----

  #receive(text) {
    this.#unheard = 0;
    const { message, fault, whole } = readMessage(text);
    const entry = this.#calls.get(message?.id);
    if (fault) return this.#onFault(entry, fault, whole);
    if (this.#log.enabled) this.#logReceived(message, entry, text.length);
    // Whatever comes first: a server that knows no hello answers it by an error.
    if (!this.#maxMessage) this.#onHello(message);
    if (!entry) return;
    if (message.type === 'stream') this.#onStream(entry, message);
    else if (message.type === 'response') this.#onResponse(entry, message);
    else if (message.type === 'stdin') entry.on.taken?.(message.bytes);
    else if (message.type === 'error') this.#onError(entry, message);
  }

  // What is not the protocol fails the call that it is for; where it is for none, the connection is of no use.
  #onFault(entry, fault, whole) {
    this.#log.warn(`the server sent ${fault}`, entry ? callFields(entry.id, entry.call) : {});
    if (entry) this.#giveUp(entry, brokenCall(`The server sent ${fault}`, entry.call));
    else if (whole) this.close(`the server sent ${fault}`, brokenCall);
  }

  #logReceived(message, entry, chars) {
    const fields = {
      ...(entry ? callFields(message.id, entry.call) : { id: message.id }),
      status: message.status,
      code: message.code,
      chars,
    };
    for (const name in fields) if (fields[name] === undefined) delete fields[name];
    this.#log[message.type === 'error' ? 'warn' : 'debug'](`← ${message.type}`, fields);
  }

  #onHello({ limits }) {
    this.#maxMessage = limits?.maxMessageBytes ?? MAX_MESSAGE;
    this.#maxPending = Math.min(this.#maxPending, limits?.maxPending ?? Infinity);
    this.#flushSoon();
  }

  #onStream(entry, { data, event, eventId }) {
    if (!entry.call.window) return; // it did not ask for a stream: its answer is still to come, and its time runs
    clearTimeout(entry.timer); // it is answered; what comes is bounded by its reader
    const item = { data, bytes: byteLength(data) };
    if (event != null) item.event = event;
    if (eventId != null) item.id = String(eventId);
    entry.on.stream(item);
  }

  #onResponse(entry, { status, body }) {
    if (this.#finish(entry)) entry.on.done(status, body);
  }

  // of: our own message was refused. That the command reads no more is no error; input that is missing in the middle
  // is worse than a command that is ended.
  #onError(entry, { status, code, message, of }) {
    if (of && (of !== 'stdin' || code === 'NOT_FOUND')) return;
    if (of && code === 'RESOURCE_BUSY') return entry.on.taken?.(Infinity);
    if (of) this.#tell(entry, { type: 'cancel', id: entry.id, kill: true });
    if (this.#finish(entry)) entry.on.error(new ApiError(status, { code, message, httpStatus: status }, entry.call));
  }

  // ---- the connection itself ----

  // Busy: a lost peer must be noticed, and the program must not end. At rest: neither.
  #wake() {
    clearTimeout(this.#idleTimer);
    this.#socket.ref?.();
    this.#unheard = 0;
    this.#pulse ??= setInterval(() => this.#beat(), PULSE_MS);
  }

  #rest() {
    this.#socket.unref?.();
    clearInterval(this.#pulse);
    this.#pulse = undefined;
    if (!this.#idle || this.lost) return;
    this.#idleTimer = setTimeout(() => this.close('idle'), this.#idle);
    this.#idleTimer.unref?.();
  }

  #beat() {
    if (this.#unheard++ === 0) return;
    if (this.#unheard > PULSES + 1) return this.close('the server gives no sign of life');
    this.#send({ type: 'hello' });
  }

  #lose(why, errorOf) {
    if (this.lost) return;
    this.lost = why;
    this.#log.info(why, { pending: this.load });
    clearTimeout(this.#idleTimer);
    const entries = [...this.#calls.values(), ...this.#queues.flat()];
    for (const entry of entries) if (this.#finish(entry)) entry.on.error(errorOf(why, entry.call, entry.sent));
    this.#rest();
    this.#onClose(this);
  }
}
