// A WebSocket client for Node, which has one of its own only from version 22 on (RFC 6455, client side, text messages).
// Unlike that one it reads the server's refusal, sends the token as a header and lets a program end while it is idle.
import http from 'node:http';
import https from 'node:https';
import { createHash, randomBytes, randomFillSync } from 'node:crypto';
import { ConnectionError, TimeoutError, pathOf } from '../errors.js';
import { refused, whenAborted } from '../transport/socket.js';

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const TEXT = 1,
  CLOSE = 8,
  PING = 9,
  PONG = 10;
const MAX_MESSAGE = 0x1fffffe8; // the longest string of V8
const MAX_REFUSAL = 64 * 1024;
const MAX_FRAGMENTS = 1 << 16; // of one message: each costs memory, also without content
const MAX_WAITING = 2 << 20; // bytes that have not gone out, beyond which only the latest ping is answered
const CLOSE_GRACE_MS = 2000;

export function openNodeSocket({ url, headers, timeout, signal }) {
  const key = randomBytes(16).toString('base64');
  const target = new URL(url.replace(/^ws/, 'http'));
  const request = (target.protocol === 'https:' ? https : http).request(target, {
    agent: false, // an upgraded connection never returns to a pool
    headers: {
      ...headers,
      Connection: 'Upgrade',
      Upgrade: 'websocket',
      'Sec-WebSocket-Key': key,
      'Sec-WebSocket-Version': '13',
    },
  });
  return new Promise((resolve, reject) => {
    const timer =
      timeout &&
      setTimeout(
        () => fail(new TimeoutError(`WebSocket connect timeout after ${timeout} ms`, { retrySafe: true })),
        timeout,
      );
    const settled = () => {
      clearTimeout(timer);
      unlisten();
    };
    const fail = e => {
      settled();
      request.destroy();
      reject(e);
    };
    request.on('error', e =>
      fail(new ConnectionError(`WebSocket connection to ${pathOf(url)} failed: ${e.message || e.code}`, { cause: e })),
    );
    request.on('response', response => refused(response.statusCode, () => readText(response)).then(fail));
    request.on('upgrade', (response, socket, head) => {
      const accept = createHash('sha1')
        .update(key + GUID)
        .digest('base64');
      if (response.headers['sec-websocket-accept'] !== accept) {
        socket.destroy();
        return fail(
          new ConnectionError(`WebSocket connection to ${pathOf(url)} failed: the answer is not a WebSocket server's`),
        );
      }
      settled();
      resolve(new NodeSocket(socket, head));
    });
    let unlisten = () => {};
    unlisten = whenAborted(signal, fail);
    request.end();
  });
}

async function readText(response) {
  const parts = [];
  let size = 0;
  for await (const part of response) {
    parts.push(part);
    if ((size += part.length) > MAX_REFUSAL) break;
  }
  return Buffer.concat(parts).toString();
}

class NodeSocket {
  onmessage = () => {};
  onclose = () => {};
  ondrain = () => {};
  onactivity = () => {};
  tellsDrain = true;
  #socket;
  #input = new Input();
  #fragments = null;
  #size = 0;
  #pong = null; // the answer to the latest ping, where there was no room for it
  #closed = false;
  #corked = false;

  constructor(socket, head) {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setTimeout(0);
    socket.on('data', chunk => this.#read(chunk));
    socket.on('drain', () => this.#onDrain());
    socket.on('error', e => this.#gone(1006, e.code ?? e.message));
    socket.on('end', () => socket.end());
    socket.on('close', () => this.#gone(1006, ''));
    // Not before its owner has set the handlers.
    if (head.length) queueMicrotask(() => this.#read(head));
  }

  get bufferedAmount() {
    return this.#socket.writableLength;
  }
  ref() {
    this.#socket.ref();
  }
  unref() {
    this.#socket.unref();
  }

  send(text) {
    this.#write(TEXT, Buffer.from(text));
  }

  close(reason = '') {
    if (this.#closed) return;
    this.#end(1000, reason);
  }

  // Now, without a word: all that can be done while a program exits.
  abort() {
    this.#closed = true;
    this.#socket.destroy();
  }

  // The peer has a moment to close; then the connection is cut.
  #end(code, reason) {
    this.#closed = true;
    const body = Buffer.alloc(2 + Math.min(Buffer.byteLength(reason), 123));
    body.writeUInt16BE(code);
    body.write(reason, 2);
    this.#write(CLOSE, body);
    this.#socket.end();
    setTimeout(() => this.#socket.destroy(), CLOSE_GRACE_MS).unref();
    this.#socket.unref();
  }

  #gone(code, reason) {
    if (this.#closed) return;
    this.#closed = true;
    this.#socket.destroy();
    this.onclose(code, reason);
  }

  // What is sent in one turn of the event loop becomes one write.
  #write(opcode, payload) {
    if (!this.#corked) {
      this.#corked = true;
      this.#socket.cork();
      process.nextTick(() => {
        this.#corked = false;
        this.#socket.uncork();
      });
    }
    this.#socket.write(frame(opcode, payload));
  }

  #onDrain() {
    if (this.#pong && !this.#closed) this.#write(PONG, this.#pong);
    this.#pong = null;
    this.ondrain();
  }

  #read(chunk) {
    if (this.#closed) return;
    this.onactivity();
    this.#input.push(chunk);
    try {
      for (let f; !this.#closed && (f = this.#input.frame());) this.#onFrame(f);
    } catch (e) {
      if (this.#closed || !(e instanceof FrameError)) throw e;
      this.#end(e.closeCode, e.message);
      this.onclose(e.closeCode, e.message, true);
    }
  }

  #onFrame({ opcode, fin, payload }) {
    if (opcode >= CLOSE) return this.#onControl(opcode, payload);
    if ((opcode === 0) !== (this.#fragments !== null)) throw new FrameError(1002, 'a fragment out of place');
    this.#fragments ??= [];
    this.#size += payload.length;
    if (this.#size > MAX_MESSAGE) throw new FrameError(1009, 'a message that is too long');
    this.#fragments.push(payload);
    if (this.#fragments.length > MAX_FRAGMENTS) throw new FrameError(1009, 'a message of too many fragments');
    if (!fin) return;
    const whole = this.#fragments.length === 1 ? payload : Buffer.concat(this.#fragments, this.#size);
    this.#fragments = null;
    this.#size = 0;
    this.onmessage(whole.toString());
  }

  // A peer that pings and does not read would fill our memory: of many pings the latest may be answered alone (section
  // 5.5.3).
  #answerPing(payload) {
    if (this.#socket.writableLength > MAX_WAITING) this.#pong = Buffer.from(payload);
    else this.#write(PONG, payload);
  }

  #onControl(opcode, payload) {
    if (opcode === PING) this.#answerPing(payload);
    if (opcode !== CLOSE) return;
    const code = payload.length >= 2 ? payload.readUInt16BE() : 1005;
    this.#write(CLOSE, payload.subarray(0, 2));
    this.#socket.end();
    const socket = this.#socket;
    setTimeout(() => socket.destroy(), CLOSE_GRACE_MS).unref();
    this.#closed = true;
    this.onclose(code, payload.toString('utf8', 2));
  }
}

// The peer's frames are not the protocol.
class FrameError extends Error {
  constructor(closeCode, message) {
    super(message);
    this.closeCode = closeCode;
  }
}

// Bytes that have come, and the frames in them. Chunks are joined once a frame is whole, so a long one is copied once.
class Input {
  #chunks = [];
  #length = 0;
  #need = 2;
  push(chunk) {
    this.#chunks.push(chunk);
    this.#length += chunk.length;
  }

  frame() {
    if (this.#length < this.#need) return null;
    const all = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks, this.#length);
    this.#chunks = [all];
    const head = parseHead(all);
    this.#need = head.headLength + head.length;
    if (all.length < this.#need) return null;
    const payload = all.subarray(head.headLength, this.#need);
    this.#chunks = all.length > this.#need ? [all.subarray(this.#need)] : [];
    this.#length -= this.#need;
    this.#need = 2;
    return { ...head, payload };
  }
}

// length is 0 for as long as the head is not whole: then headLength is what is needed to go on.
function parseHead(b) {
  const opcode = b[0] & 0x0f,
    fin = (b[0] & 0x80) !== 0,
    short = b[1] & 0x7f;
  if (b[0] & 0x70 || b[1] & 0x80 || ![0, TEXT, 2, CLOSE, PING, PONG].includes(opcode))
    throw new FrameError(1002, 'a frame that is malformed');
  if (opcode >= CLOSE && (!fin || short > 125)) throw new FrameError(1002, 'a control frame that is malformed');
  const headLength = short === 127 ? 10 : short === 126 ? 4 : 2;
  if (b.length < headLength) return { opcode, fin, headLength, length: 0 };
  const length = short === 127 ? Number(b.readBigUInt64BE(2)) : short === 126 ? b.readUInt16BE(2) : short;
  if (length > MAX_MESSAGE) throw new FrameError(1009, 'a message that is too long');
  return { opcode, fin, headLength, length };
}

// Masked, as a client's must be (section 5.3), in one buffer.
function frame(opcode, payload) {
  const n = payload.length;
  const head = n < 126 ? 2 : n < 65536 ? 4 : 10;
  const out = Buffer.allocUnsafe(head + 4 + n);
  out[0] = 0x80 | opcode;
  out[1] = 0x80 | (head === 2 ? n : head === 4 ? 126 : 127);
  if (head === 4) out.writeUInt16BE(n, 2);
  else if (head === 10) out.writeBigUInt64BE(BigInt(n), 2);
  randomFillSync(out, head, 4);
  const body = head + 4;
  for (let i = 0; i < n; i++) out[body + i] = payload[i] ^ out[head + (i & 3)];
  return out;
}
