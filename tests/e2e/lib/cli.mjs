// Runs `conflux COMMAND` as a user does, against a server of the test.
import { spawn } from 'node:child_process';
import { BIN } from './server.mjs';

// s: a server, or {base}. o: input (string, Buffer or stream), env, cwd, prefix. Returns the child, with `done`:
// {code, signal, out (bytes), stdout, stderr}, and with what has come so far in child.seen and child.said.
export function conflux(s, args, o = {}) {
  const env = { ...process.env, XDG_CONFIG_HOME: '/nonexistent', CONFLUX_URL: s.base, ...o.env };
  const whole = [...(o.prefix ?? []), BIN, ...args];
  const child = spawn(whole[0], whole.slice(1), { env, cwd: o.cwd, stdio: [o.input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'] });
  const parts = [];
  child.seen = '';
  child.said = '';
  child.stdout.on('data', d => { parts.push(d); if (child.seen.length < 1e6) child.seen += d; });
  child.stderr.on('data', d => { child.said += d; });
  child.done = new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => {
      const out = Buffer.concat(parts);
      resolve({ code, signal, out, stdout: out.toString(), stderr: child.said });
    });
  });
  if (o.input?.pipe) o.input.pipe(child.stdin);
  else if (o.input !== undefined && o.input !== 'open') child.stdin.end(o.input);
  child.stdin?.on('error', () => {}); // the command may have ended before it read all
  return child;
}
export const run = (s, args, o) => conflux(s, args, o).done;
