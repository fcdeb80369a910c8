import { byteLength } from './bytes.js';

const WINDOW = 1 << 20; // bytes that the command may still have to take; the server holds 16 MiB, then refuses

const sizeOf = ({ data, encoding }) =>
  encoding ? (data.length / 4) * 3 - (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0) : byteLength(data);

// The input of a running command: what is written waits here until the command takes it, in the order of the writes.
export class Input {
  #send;
  #writes = []; // {pieces, eof, resolve}
  #owed = 0;
  #ending = false; // the end has been sent, and it is not known to have arrived
  #stopped = false;

  // send(piece, eof)
  constructor(send) {
    this.#send = send;
  }

  // pieces: iterator of {data, encoding?}. Resolves when all of it is on its way, or will not be wanted any more.
  write(pieces, eof) {
    return new Promise(resolve => {
      this.#writes.push({ pieces, eof, resolve });
      this.#pump();
    });
  }

  // The command has taken so many bytes; none: it has met the end; infinitely many: it takes no more.
  taken(bytes) {
    this.#owed = Math.max(0, this.#owed - bytes);
    if (bytes === 0 || bytes === Infinity) this.#ending = false;
    this.#pump();
  }

  // One piece has arrived.
  arrived(piece) {
    this.taken(sizeOf(piece));
  }

  // Whether what was sent has all arrived is not known.
  get unsure() {
    return this.#owed > 0 || this.#ending;
  }

  stop() {
    this.#stopped = true;
    for (const { resolve } of this.#writes.splice(0)) resolve();
  }

  #pump() {
    while (this.#writes.length && this.#owed < WINDOW && !this.#stopped) {
      const { pieces, eof, resolve } = this.#writes[0];
      const { value: piece, done } = pieces.next();
      if (!done) {
        this.#owed += sizeOf(piece);
        this.#send(piece, false);
        continue;
      }
      this.#ending = eof;
      if (eof) this.#send({ data: '' }, true);
      this.#writes.shift();
      resolve();
    }
    if (this.#stopped) this.stop();
  }
}
