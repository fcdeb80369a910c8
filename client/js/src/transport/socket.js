// Opening a WebSocket with what a platform offers. Each opener yields {send, close, bufferedAmount, onmessage,
// onclose} and, where the platform can, ondrain, onactivity, ref and unref; it throws ApiError when the server's
// refusal can be read, else ConnectionError. The request has not begun by then, so all of them may be tried again.
import { isBytes } from '../bytes.js';
import { ApiError, ConnectionError, TimeoutError, abortReason, pathOf } from '../errors.js';

export const SUBPROTOCOL = 'conflux';
const NORMAL = 1000;

// In Workers `new WebSocket` cannot set headers, nor reach a Durable Object or a container: there the upgrade is a
// fetch.
export const isWorkers = () => globalThis.navigator?.userAgent === 'Cloudflare-Workers';

// Does it when the signal says so, until the function that it returns is called.
export function whenAborted(signal, act) {
  const abort = () => act(abortReason(signal));
  if (signal?.aborted) abort();
  else signal?.addEventListener('abort', abort, { once: true });
  return () => signal?.removeEventListener('abort', abort);
}

const connectTimeout = ms => new TimeoutError(`WebSocket connect timeout after ${ms} ms`, { retrySafe: true });

// Settles as `promise`, or rejects at the time; then `late` gets what comes after all.
export function withTimeout(promise, ms, late) {
  if (!ms) return promise;
  return new Promise((resolve, reject) => {
    let expired = false;
    const timer = setTimeout(() => {
      expired = true;
      reject(connectTimeout(ms));
    }, ms);
    promise.then(
      v => {
        clearTimeout(timer);
        if (expired) late?.(v);
        else resolve(v);
      },
      e => {
        clearTimeout(timer);
        reject(e);
      },
    );
  });
}

function wrap(ws) {
  const socket = {
    onmessage() {},
    onclose() {},
    get bufferedAmount() {
      return ws.bufferedAmount ?? 0;
    },
    send(text) {
      try {
        ws.send(text);
      } catch (e) {
        // In Workers, when it has closed.
        socket.onclose(1006, e.message);
      }
    },
    close(reason) {
      ws.close(NORMAL, reason);
    },
  };
  const decoder = new TextDecoder();
  const textOf = data => (typeof data === 'string' ? data : isBytes(data) ? decoder.decode(data) : '');
  ws.binaryType = 'arraybuffer';
  ws.addEventListener('message', e => socket.onmessage(textOf(e.data)));
  ws.addEventListener('close', e => socket.onclose(e.code, e.reason));
  ws.addEventListener('error', () => socket.onclose(1006, 'connection error'));
  return socket;
}

// A WebSocket as in browsers. The token goes as a subprotocol, because a browser can set no header.
export function openWithConstructor(WebSocket, { url, token, timeout, signal }) {
  const protocols = token ? [SUBPROTOCOL, `bearer.${token}`] : [SUBPROTOCOL];
  return new Promise((resolve, reject) => {
    let ws, timer, unlisten;
    const settled = () => {
      clearTimeout(timer);
      unlisten?.();
    };
    const failed = why => {
      settled();
      reject(new ConnectionError(`WebSocket connection to ${pathOf(url)} failed${why}`));
    };
    try {
      ws = new WebSocket(url, protocols);
    } catch (e) {
      // Its message may quote the token.
      return failed(`: ${e.name}`);
    }
    const giveUp = e => {
      settled();
      ws.close();
      reject(e);
    };
    if (timeout) timer = setTimeout(() => giveUp(connectTimeout(timeout)), timeout);
    unlisten = whenAborted(signal, giveUp);
    ws.addEventListener('open', () => {
      settled();
      resolve(wrap(ws));
    });
    ws.addEventListener('error', e => failed(e.message ? `: ${e.message}` : ''));
    ws.addEventListener('close', e => failed(` (${e.code})`));
  });
}

// A fetch that upgrades, as in Workers; `fetch` may be a Durable Object's or a service binding's.
export async function openWithFetch(fetch, { url, headers, timeout, signal }) {
  const init = { headers: { ...headers, Upgrade: 'websocket' }, signal };
  const upgrade = fetch(url.replace(/^ws/, 'http'), init).catch(e => {
    if (signal?.aborted) throw abortReason(signal);
    throw new ConnectionError(`WebSocket connection to ${pathOf(url)} failed: ${e.message}`, { cause: e });
  });
  const drop = response => response.webSocket?.accept?.();
  const response = await withTimeout(upgrade, timeout, drop);
  if (!response.webSocket) throw await refused(response.status, () => response.text());
  response.webSocket.accept();
  return wrap(response.webSocket);
}

export async function refused(status, readText) {
  const text = await readText().catch(() => '');
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    /* not our server's answer */
  }
  if (status === 401 || status === 403)
    return new ApiError(status, body ?? `WebSocket upgrade refused with status ${status}`);
  return new ConnectionError(`WebSocket upgrade refused with status ${status}`, { status });
}
