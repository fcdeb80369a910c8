// A program that somebody holds by a lease: who executes it waits, and nobody else does (X03).
import { chmod, copyFile, rm } from 'node:fs/promises';
import { hold, lease } from '../../e2e/lib/hold.mjs';
import { OFF, sleep } from '../lib/load.mjs';
import { servedMeanwhile } from './meanwhile.mjs';

export async function leased(f, dir, rng, tag) {
  const file = `${dir}/leased`;
  await copyFile('/bin/true', file);
  await chmod(file, 0o755);
  const h = await hold(lease, file), begun = Date.now();
  if (!h.held) return f.load.bad(`no lease could be had: ${h.said}`);
  // Its own time limit, or a true answer once the lease has gone; a fault that comes between says its name.
  const right = r => (r.status === 200 && (r.body.exitCode === 0 || [124, 137].includes(r.body.exitCode)))
    || r.body?.code === 'EXECUTION_LOST' || /execve/.test(r.body?.message) || f.excuses(r.body, begun) || f.forgot(r.body, begun);
  const stuck = f.load.ask('POST', '/api/execute', { args: [file], executionId: `${tag}-lease`, sessionId: OFF, timeoutMs: 500 })
    .then(r => { if (!right(r)) f.load.bad(`exec of a program under a lease: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`); });
  try {
    await servedMeanwhile(f, 'a program that is held by a lease');
    await sleep(rng.int(0, 1000));
  } finally { await h.release(); }
  await stuck;
  await rm(file);
}
