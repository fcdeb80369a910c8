// A file system that never answers: who looks into it hangs, as a child (not even KILL ends it) and as a thread of the
// server, which then cannot be killed either; nobody else does.
import { mkdir, rmdir } from 'node:fs/promises';
import { hold, silent } from '../../e2e/lib/hold.mjs';
import { OFF, sleep } from '../lib/load.mjs';
import { servedMeanwhile } from './meanwhile.mjs';

export async function mounted(f, dir, rng, tag) {
  const place = `${dir}/silent`;
  await mkdir(place);
  const h = await hold(silent, place), begun = Date.now();
  if (!h.held) return f.cannot('mount', `a file system of our own cannot be mounted: ${h.said.trim()}`);
  const told = (what, r) => {
    // At which step its start failed, the keeper tells the server that has asked for it; the next one hears of an exit.
    const codes = f.since(begun, 'kill', 'hup', 'emfile') ? [124, 137, 127] : [124, 137];
    const timely = r.status === 200 && codes.includes(r.body.exitCode), failed = /chdir|not connected|silent/i.test(r.body?.message);
    if (!timely && !failed && r.body?.code !== 'EXECUTION_LOST' && !f.excuses(r.body, begun) && !f.forgot(r.body, begun)) f.load.bad(`${what} in a file system that does not answer: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
  };
  const hanging = [
    f.load.ask('POST', '/api/execute', { args: ['true'], cwd: `${place}/sub`, executionId: `${tag}-mount`, sessionId: OFF, timeoutMs: 500 }).then(r => told('exec', r)),
    f.load.ask('POST', '/api/read', { path: `${place}/file`, sessionId: OFF }).then(r => told('read', r)),
  ];
  try {
    await sleep(rng.int(0, 300));
    await servedMeanwhile(f, 'a file system that does not answer');
    await sleep(rng.int(0, 700));
  } finally { await h.release(); }
  await Promise.all(hanging);
  await rmdir(place);
}
