// The input of a command that streams over HTTP: each piece is a request of its own, one after the other.
import { ApiError } from '../errors.js';

const FULL_MS = 20; // after the server says that enough waits for the command already; doubling up to …
const FULL_MAX_MS = 1000;
const TIMEOUT_MS = 30000; // it is answered at once

export class HttpInput {
  #post;
  #stream;
  #pieces = [];
  #path = null;
  #busy = false;

  // post(call): {status, body}. The stream hears what has been taken, and what went wrong.
  constructor(post, stream) {
    this.#post = post;
    this.#stream = stream;
  }

  add(piece, eof) {
    this.#pieces.push(eof ? { ...piece, eof } : piece);
    this.#pump();
  }

  // It is known whose input it is.
  started(processId) {
    if (typeof processId !== 'string') return;
    this.#path ??= `/api/process/${encodeURIComponent(processId)}/stdin`;
    this.#pump();
  }

  async #pump() {
    if (this.#busy || !this.#path) return;
    this.#busy = true;
    try {
      for (; this.#pieces.length && !this.#stream.over; this.#pieces.shift())
        if (!(await this.#give(this.#pieces[0]))) return this.#stream.inputTaken(Infinity);
    } catch (e) {
      this.#stream.fail(e);
      this.#stream.stop?.(true); // input that is missing in the middle is worse than a command that is ended
    } finally {
      this.#busy = false;
    }
  }

  // False: nobody reads it any more.
  async #give(piece) {
    const call = { method: 'POST', path: this.#path, body: piece, timeout: TIMEOUT_MS };
    for (let wait = FULL_MS; !this.#stream.over; wait = Math.min(2 * wait, FULL_MAX_MS)) {
      const { status, body } = await this.#post(call);
      if (status === 404 || body?.code === 'RESOURCE_BUSY') return false;
      if (status < 400) break;
      if (body?.code !== 'LIMIT_EXCEEDED') throw new ApiError(status, body, call);
      await new Promise(resolve => setTimeout(resolve, wait));
    }
    this.#stream.inputArrived(piece);
    return true;
  }
}
