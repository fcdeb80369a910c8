import { ConnectionLostError, TimeoutError, abortReason } from './errors.js';
import { Input } from './input.js';

const FRUITLESS = 5; // times that a stream is taken up again without anything new

// A stream of events with one reader: an async iterator. It begins at once, holds what has not been taken (the
// transport bounds that by credit), and leaving a `for await` cancels it on the server. A carrier (mux or HTTP) feeds
// it by push, end and fail, and sets `taken`, `stop` and `input`.
export class EventStream {
  taken = null; // (bytes): the reader has taken so much
  stop = null; // (kill): ends it on the server
  input = null; // (piece, eof): its standard input
  lastId = undefined;
  #items = [];
  #readers = [];
  #over = false;
  #error = null;
  #fruitless = 0;
  #concluded = false;
  #idle;
  #timer;
  #decode;
  #skip;
  #last;
  #resume;
  #unlisten;
  #fed = new Input((piece, eof) => this.input?.(piece, eof));

  // idle: ms that a waiting reader allows without an event, 0 for ever. decode(item): the event. skip(event): the
  // reader does not get it. last(event): nothing follows it; an end without it is a loss (over HTTP the two look
  // alike). resume(lastId, error): begins it anew there after a lost connection; false when it cannot.
  constructor({ idle = 0, decode = item => item, skip = () => false, last = null, resume = null, signal } = {}) {
    this.#idle = idle;
    this.#decode = decode;
    this.#skip = skip;
    this.#last = last;
    this.#resume = resume;
    if (signal) this.#listen(signal);
  }

  #listen(signal) {
    const abort = () => {
      this.#finish(abortReason(signal), true);
    };
    if (signal.aborted) return abort();
    signal.addEventListener('abort', abort, { once: true });
    this.#unlisten = () => signal.removeEventListener('abort', abort);
  }

  get over() {
    return this.#over;
  }

  // ---- the carrier's end ----

  push(item, bytes = 0) {
    if (this.#over) return;
    this.#fruitless = 0;
    if (item.id !== undefined) this.lastId = item.id;
    let event;
    try {
      event = this.#decode(item);
      this.#concluded ||= !!this.#last?.(event);
    } catch (e) {
      return this.#finish(e, true);
    }
    if (this.#skip(event)) return void this.taken?.(bytes);
    if (this.#readers.length) {
      clearTimeout(this.#timer);
      this.#readers.shift().resolve({ value: event, done: false });
      this.taken?.(bytes);
      if (this.#readers.length) this.#watch();
    } else {
      this.#items.push({ event, bytes });
    }
  }

  // The command has taken so many bytes of its input, or this piece.
  inputTaken(bytes) {
    this.#fed.taken(bytes);
  }

  inputArrived(piece) {
    this.#fed.arrived(piece);
  }

  end() {
    if (!this.#last || this.#concluded) this.#finish(null, false);
    else this.fail(new ConnectionLostError('The stream was closed before its end'));
  }

  fail(error) {
    if (this.#over) return;
    const lost = error instanceof ConnectionLostError;
    if (lost && this.#fed.unsure) error.message += '; how much of the input has arrived is not known';
    else if (lost && this.#resume && this.#fruitless++ < FRUITLESS && this.#resume(this.lastId, error)) return;
    this.#finish(error, false);
  }

  #finish(error, cancel) {
    if (this.#over) return;
    this.#over = true;
    this.#error = error;
    clearTimeout(this.#timer);
    this.#unlisten?.();
    this.#fed.stop();
    if (cancel) this.stop?.(false);
    for (const reader of this.#readers.splice(0)) this.#conclude(reader);
  }

  #conclude({ resolve, reject }) {
    if (!this.#error) return resolve({ value: undefined, done: true });
    reject(this.#error);
    this.#error = null; // told once
  }

  // ---- the reader's end ----

  next() {
    return new Promise((resolve, reject) => {
      const item = this.#items.shift();
      if (item) {
        resolve({ value: item.event, done: false });
        if (!this.#over) this.taken?.(item.bytes);
      } else if (this.#over) {
        this.#conclude({ resolve, reject });
      } else {
        this.#readers.push({ resolve, reject });
        if (this.#readers.length === 1) this.#watch();
      }
    });
  }

  // Only a reader that waits can find a stream idle: one that is slow has stopped it himself.
  #watch() {
    if (!this.#idle) return;
    this.#timer = setTimeout(() => {
      this.#finish(new TimeoutError(`Stream timeout: no event for ${this.#idle} ms`, { retrySafe: false }), true);
    }, this.#idle);
  }

  // Input for what feeds it; see Input.
  feed(pieces, eof) {
    return this.#fed.write(pieces, eof);
  }

  async return(value) {
    this.cancel();
    return { value, done: true };
  }

  // Ends the stream on the server; with kill, what feeds it too. What was not read is dropped.
  cancel({ kill = false } = {}) {
    if (this.#over) return;
    this.#items.length = 0;
    const stop = this.stop;
    this.#finish(null, false);
    stop?.(kill);
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}
