// HTTP for the load, on node:http. Not fetch: in Node 20 one whose server is killed at the wrong moment never settles and
// has no connection any more, so that a request seems to hang which the server has never seen.
import http from 'node:http';
import { json } from 'node:stream/consumers';

export class Client {
  agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
  constructor(base) { this.base = base; }
  // The answer's head, a stream of its body. Rejects when the connection ends before; the stream fails when it does later.
  open(method, url, body, signal) {
    const text = body === undefined ? undefined : typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body);
    const headers = text === undefined ? {} : { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text) };
    return new Promise((resolve, reject) => {
      const q = http.request(this.base + url, { method, agent: this.agent, headers, signal }, m => { m.on('error', () => {}); resolve(m); });
      q.on('error', reject);
      q.on('close', () => reject(new Error('closed')));
      q.end(text);
    });
  }
  async ask(method, url, body, signal) {
    const m = await this.open(method, url, body, signal);
    return { status: m.statusCode, body: await json(m) };
  }
  close() { this.agent.destroy(); }
}
