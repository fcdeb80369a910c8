// Runs `conflux COMMAND` as a user does, against a server of the test.
import { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { BIN, NO_LEAKS, start } from './server.mjs';

export const exec = promisify(execFile);
export const ALL_BYTES = Buffer.from(Array.from({ length: 256 * 300 }, (_, i) => i & 255));
export const lines = text => text.trim().split('\n');
export const sha = data => createHash('sha256').update(data).digest('hex');
export const ok = r => { assert.deepEqual([r.code, r.signal], [0, null], r.stderr); return r.stdout; };
export const json = r => lines(ok(r)).map(line => JSON.parse(line));
// A command that ends has no leaks worth a search; those of the library are looked for in its own tests.
export const environment = s => ({ ...process.env, ASAN_OPTIONS: NO_LEAKS, XDG_CONFIG_HOME: '/nonexistent', CONFLUX_URL: s.base });

// What a test that failed has left behind would keep the file from ending.
const running = new Set();
after(() => { for (const child of running) child.kill('SIGKILL'); });

// s: a server, or {base}. o: input (string, Buffer or stream), env, cwd, prefix. Returns the child, with `done`:
// {code, signal, out (bytes), stdout, stderr}, and with what has come so far in child.seen and child.said.
export function conflux(s, args, o = {}) {
  const env = { ...environment(s), ...o.env };
  const whole = [...(o.prefix ?? []), BIN, ...args];
  const child = spawn(whole[0], whole.slice(1), { env, cwd: o.cwd, stdio: [o.input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'] });
  running.add(child);
  child.on('exit', () => running.delete(child));
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

// For the tests of a file: one server, a folder, and the way to run commands.
export function shared() {
  const t = { c: (args, o) => run(t.s, args, o) };
  before(async () => { t.s = await start(); t.dir = await mkdtemp(path.join(tmpdir(), 'conflux-cli-')); });
  after(async () => { await t.s.stop(); await rm(t.dir, { recursive: true, force: true }); });
  return t;
}
