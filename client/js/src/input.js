import { byteLength } from './bytes.js';

// What the command may still have to take. The server holds 16 MiB and 16,384 pieces, then refuses.
const WINDOW = 1 << 20;
const PIECES = 4096;

const sizeOf = ({ data, encoding }) =>
  encoding ? (data.length / 4) * 3 - (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0) : byteLength(data);

// The input of a running command: what is written waits here until the command takes it, in the order of the writes.
export class Input {
  #send;
  #writes = []; // {pieces, eof, resolve}
  #owed = 0; // bytes
  #pieces = 0; // pieces that are not known to have arrived, an end without bytes included
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

  // The command has taken a piece of so many bytes; infinitely many: it takes no more.
  taken(bytes) {
    this.#owed = Math.max(0, this.#owed - bytes);
    this.#pieces = bytes === Infinity ? 0 : Math.max(0, this.#pieces - 1);
    this.#pump();
  }

  // One piece has arrived.
  arrived(piece) {
    this.taken(sizeOf(piece));
  }

  // Whether what was sent has all arrived is not known.
  get unsure() {
    return this.#pieces > 0;
  }

  stop() {
    this.#stopped = true;
    for (const { resolve } of this.#writes.splice(0)) resolve();
  }

  #give(piece, eof) {
    this.#owed += sizeOf(piece);
    this.#pieces++;
    this.#send(piece, eof);
  }

  #pump() {
    while (this.#writes.length && this.#owed < WINDOW && this.#pieces < PIECES && !this.#stopped) {
      const { pieces, eof, resolve } = this.#writes[0];
      const { value: piece, done } = pieces.next();
      if (!done) {
        this.#give(piece, false);
        continue;
      }
      if (eof) this.#give({ data: '' }, true);
      this.#writes.shift();
      resolve();
    }
    if (this.#stopped) this.stop();
  }
}
