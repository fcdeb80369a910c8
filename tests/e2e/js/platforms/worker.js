// Runs in workerd: a Durable Object that makes 100 calls, and counts what they cost.
import { DurableObject } from 'cloudflare:workers';
import { connect } from './src/index.js';

export class Box extends DurableObject {
  async fetch() {
    let subrequests = 0;
    const counted = (url, init) => { subrequests++; return fetch(url, init); };
    const c = await connect({ baseUrl: this.env.BASE, token: this.env.TOKEN, fetch: counted });
    const results = [];
    for (let i = 0; i < 100; i++) results.push((await c.exec(`echo ${i}`)).stdout);
    const process = await c.startProcess({ command: 'seq 3' });
    let logs = '';
    for await (const log of process.logs()) logs += log.output;
    const answer = { subrequests, results, logs, mode: c.transport.getMode() };
    await c.dispose();
    return Response.json(answer);
  }
}

export default {
  fetch: (request, env) => env.BOX.get(env.BOX.idFromName('one')).fetch(request),
};
