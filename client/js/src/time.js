// A clock that no step of the system's time stretches or cuts, and pauses that grow.
export const now = () => performance.now();

const FIRST_MS = 50,
  MOST_MS = 5000;

// The pause after one of `ms`, which has not helped.
export const longer = ms => (ms ? Math.min(2 * ms, MOST_MS) : FIRST_MS);

const ROUND_MS = 60000;

// A wait, without end when `timeout` (ms) is undefined, as a row of waits of the server: each can be lost and asked
// again. One that was over sooner than asked is followed by a pause.
export class Rounds {
  #end;
  #rest;
  #began = 0;
  #asked = 0;
  #pause = 0;
  // rest(ms): a promise; see Transport.pause.
  constructor(timeout, rest) {
    this.#end = timeout === undefined ? Infinity : now() + timeout;
    this.#rest = rest;
  }
  get #left() {
    return Math.max(0, this.#end - now());
  }
  get over() {
    return this.#left === 0;
  }

  // How long the server is to wait, whole ms.
  begin() {
    this.#began = now();
    this.#asked = Math.min(ROUND_MS, Math.ceil(this.#left));
    return this.#asked;
  }

  async rest() {
    this.#pause = now() - this.#began < this.#asked / 2 ? longer(this.#pause) : 0;
    if (this.#pause) await this.#rest(Math.min(this.#pause, this.#left));
  }
}
