// A part of the state folder is taken away while it is used. What was lost with it is told: an id that is not known, a
// gap that is declared; and all else goes on.
import { readdir, rm } from 'node:fs/promises';
import { sleep } from '../lib/load.mjs';

const parts = { logs: n => n === 'logs', registry: n => n.startsWith('registry.db') };

// How long the log of a command is that still runs, is known to the server alone: if that is killed when the log has
// gone, the next one begins at 0 and declares nothing. So no server ends in this round once the logs are gone, unless
// both are asked for (--only torn,kill).
export async function torn(f, dir, rng) {
  const what = f.ending() ? 'registry' : rng.pick(Object.keys(parts));
  f.lasting = what === 'logs' && !f.always.includes('torn');
  f.begin(what); // told apart in the excuses
  for (const name of await readdir(f.state)) if (parts[what](name)) await rm(`${f.state}/${name}`, { recursive: true, force: true, maxRetries: 50, retryDelay: 1 });
  await sleep(rng.int(100, 1500));
  f.over(what);
}
