// Opening a WebSocket with what a platform offers. Each opener yields {send, close, bufferedAmount, onmessage,
// onclose} and, where the platform can, ondrain, onactivity, ref and unref; it throws ApiError when the server's
// refusal can be read, else ConnectionError. The request has not begun by then, so all of them may be tried again.
import { ApiError, ConnectionError, TimeoutError, pathOf } from '../errors.js';

export const SUBPROTOCOL = 'conflux';
const NORMAL = 1000;

// In Workers `new WebSocket` cannot set headers, nor reach a Durable Object or a container: there the upgrade is a
// fetch.
export const isWorkers = () => globalThis.navigator?.userAgent === 'Cloudflare-Workers';

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
      ws.send(text);
    },
    close(reason) {
      ws.close(NORMAL, reason);
    },
  };
  const decoder = new TextDecoder();
  ws.addEventListener('message', e => socket.onmessage(typeof e.data === 'string' ? e.data : decoder.decode(e.data)));
  ws.addEventListener('close', e => socket.onclose(e.code, e.reason));
  ws.addEventListener('error', () => socket.onclose(1006, 'connection error'));
  return socket;
}

// A WebSocket as in browsers. The token goes as a subprotocol, because a browser can set no header.
export function openWithConstructor(WebSocket, { url, token, timeout }) {
  const protocols = token ? [SUBPROTOCOL, `bearer.${token}`] : [SUBPROTOCOL];
  return new Promise((resolve, reject) => {
    let ws, timer;
    const failed = why => {
      clearTimeout(timer);
      reject(new ConnectionError(`WebSocket connection to ${pathOf(url)} failed${why}`));
    };
    try {
      ws = new WebSocket(url, protocols);
    } catch (e) {
      // Its message may quote the token.
      return failed(`: ${e.name}`);
    }
    ws.binaryType = 'arraybuffer';
    if (timeout)
      timer = setTimeout(() => {
        ws.close();
        reject(connectTimeout(timeout));
      }, timeout);
    ws.addEventListener('open', () => {
      clearTimeout(timer);
      resolve(wrap(ws));
    });
    ws.addEventListener('error', e => failed(e.message ? `: ${e.message}` : ''));
    ws.addEventListener('close', e => failed(` (${e.code})`));
  });
}

// A fetch that upgrades, as in Workers; `fetch` may be a Durable Object's or a service binding's.
export async function openWithFetch(fetch, { url, headers, timeout }) {
  const upgrade = fetch(url.replace(/^ws/, 'http'), { headers: { ...headers, Upgrade: 'websocket' } }).catch(e => {
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
