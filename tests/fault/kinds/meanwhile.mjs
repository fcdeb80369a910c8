// While something hangs, others are served.
import { OFF, sleep } from '../lib/load.mjs';

const LONG_MS = 30000; // less than the kernel waits for a lease, so that its end does not pass for an answer

export async function servedMeanwhile(f, hangs) {
  const bodies = [{ args: ['echo', 'hi'], sessionId: OFF }, { command: 'echo hi', sessionId: OFF }, { command: 'echo hi', sessionId: 'a' }];
  for (const body of bodies) {
    const r = await Promise.race([f.load.ask('POST', '/api/execute', body), sleep(LONG_MS)]);
    if (!r) f.load.bad(`no answer to ${JSON.stringify(body)} within ${LONG_MS} ms, behind ${hangs}`);
    else if (r.body?.stdout?.trim() !== 'hi') f.load.bad(`${JSON.stringify(body)}, beside ${hangs}: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
  }
}
