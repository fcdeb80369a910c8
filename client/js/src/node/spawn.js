// Starts a server of one's own, and ends it: on dispose(), when this program exits, and when it dies without a word.
//
// The last is the work of a lifeline: the server's main program (`conflux serve -- CMD`) is a shell that waits for the
// end of its input, a pipe whose other end only we hold, and then fails, which ends the server and all that it started.
// So no signal handler has to be installed in a program that is not ours.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { accessSync, constants, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { SpawnError } from '../errors.js';
import { now } from '../time.js';

const TOKEN_BYTES = 24;
const START_MS = 15000;
const GRACE_MS = 5000; // between TERM and KILL
const POLL_MS = 20;
const STDERR_KEPT = 4096;
const LIFELINE = ['/bin/sh', '-c', 'cat >/dev/null; exit 1'];

const wait = ms => new Promise(resolve => setTimeout(resolve, ms));
const executable = file => {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
};

// The option, CONFLUX_BIN, the package for this platform, PATH: the first that names one.
export function findBinary(option) {
  for (const named of [option, process.env.CONFLUX_BIN]) {
    if (!named) continue;
    if (executable(named)) return named;
    throw new SpawnError(`no program that can be run: ${named}`);
  }
  const packaged = platformBinary();
  if (packaged) return packaged;
  for (const folder of (process.env.PATH ?? '').split(path.delimiter)) {
    if (folder && executable(path.join(folder, 'conflux'))) return path.join(folder, 'conflux');
  }
  throw new SpawnError('no conflux program: give the option `binary`, set CONFLUX_BIN, or put it on the PATH');
}

function platformBinary() {
  const name = `conflux-client-${process.platform}-${process.arch}/bin/conflux`;
  try {
    return createRequire(import.meta.url).resolve(name);
  } catch {
    // Not installed.
    return null;
  }
}

// {baseUrl, token, pid, dispose()}. Options: host, port, token, binary, timeout, log, workspace, state, args, env,
// grace.
export async function spawnServer(options = {}) {
  const server = new Server(options);
  try {
    await server.ready(options.timeout ?? START_MS);
  } catch (e) {
    await server.dispose();
    throw e;
  }
  return server;
}

class Server {
  baseUrl = null;
  beforeExit = () => {};
  #token;
  #child;
  #state;
  #ownState;
  #said = '';
  #ended = null;
  #exit;
  #onExit;
  #log;
  #listening;
  #grace;

  constructor({
    host = '127.0.0.1',
    port = 0,
    token,
    binary,
    log = 'silent',
    workspace,
    state,
    args = [],
    env,
    grace = GRACE_MS,
  } = {}) {
    this.#grace = grace;
    this.#token = token ?? randomBytes(TOKEN_BYTES).toString('hex');
    this.#log = log;
    const program = findBinary(binary);
    this.#ownState = !state;
    // Two servers cannot share one: each has its own unless it is to outlive the server.
    this.#state = state ?? mkdtempSync(path.join(tmpdir(), 'conflux-'));
    const flags = [
      'serve',
      '--host',
      host,
      '--port',
      String(port),
      '--state',
      this.#state,
      ...(workspace ? ['--workspace', workspace] : []),
      ...args,
    ];
    this.#child = spawn(program, [...flags, '--', ...LIFELINE], {
      // A group of its own, so that Ctrl-C reaches us alone and we decide; the token is wiped from there at once.
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { ...process.env, ...env, CONFLUX_TOKEN: this.#token },
    });
    this.#watch();
  }

  get token() {
    return this.#token;
  }
  get pid() {
    return this.#child.pid;
  }

  #watch() {
    const child = this.#child;
    this.#exit = new Promise(resolve => {
      child.once('error', e => {
        this.#ended ??= e.message;
        resolve();
      });
      child.once('exit', (code, signal) => {
        this.#ended ??= signal ? `killed by ${signal}` : `exit code ${code}`;
        resolve();
      });
    });
    this.#listening = new Promise(resolve => {
      child.stdout.on('data', data => {
        this.#tell(data);
        this.#said = (this.#said + data).slice(-STDERR_KEPT);
        const url = /listening on (http:\/\/\S+)\s/.exec(this.#said);
        if (url) resolve(url[1]);
      });
    });
    child.stderr.on('data', data => {
      this.#tell(data);
      this.#said = (this.#said + data).slice(-STDERR_KEPT);
    });
    child.stdin.on('error', () => {}); // it may end first
    for (const handle of [child, child.stdin, child.stdout, child.stderr]) handle.unref?.(); // Bun's pipes cannot
    this.#onExit = () => this.#endNow();
    process.on('exit', this.#onExit);
  }

  #tell(data) {
    if (this.#log === 'inherit') process.stderr.write(data);
    else if (typeof this.#log === 'function') for (const line of String(data).split('\n')) if (line) this.#log(line);
  }

  // Its line says where it listens; it is ready when it answers there.
  async ready(timeout) {
    const end = now() + timeout;
    let timer;
    const late = new Promise(resolve => {
      timer = setTimeout(resolve, timeout);
    });
    const url = await Promise.race([this.#listening, this.#exit, late]);
    clearTimeout(timer);
    if (!url) throw this.#failure(timeout);
    this.baseUrl = url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:');
    while (!(await this.#healthy())) {
      if (this.#ended || now() > end) throw this.#failure(timeout);
      await wait(POLL_MS);
    }
  }

  async #healthy() {
    try {
      const response = await fetch(`${this.baseUrl}/healthz`);
      await response.arrayBuffer();
      return response.ok;
    } catch {
      // Not yet.
      return false;
    }
  }

  #failure(timeout) {
    const why = this.#ended ? `ended: ${this.#ended}` : `was not ready: timeout after ${timeout} ms`;
    return new SpawnError(`The server ${why}${this.#said ? `\n${this.#said.trim()}` : ''}`);
  }

  async dispose() {
    if (!this.#onExit) return this.#exit;
    process.off('exit', this.#onExit);
    this.#onExit = null;
    this.#child.ref();
    if (!this.#ended) this.#child.kill('SIGTERM');
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), this.#grace);
    await this.#exit;
    clearTimeout(timer);
    this.#child.stdin.destroy();
    this.#child.stdout.destroy();
    this.#child.stderr.destroy();
    this.#removeState();
  }

  // While a program exits nothing asynchronous runs any more.
  #endNow() {
    this.beforeExit();
    if (!this.#ended && this.#child.pid) {
      this.#child.kill('SIGTERM');
      const end = now() + this.#grace,
        cell = new Int32Array(new SharedArrayBuffer(4));
      while (running(this.#child.pid) && now() < end) Atomics.wait(cell, 0, 0, POLL_MS);
      if (running(this.#child.pid)) this.#child.kill('SIGKILL');
    }
    this.#removeState();
  }

  #removeState() {
    if (this.#ownState) rmSync(this.#state, { recursive: true, force: true, maxRetries: 3 });
  }
}

// A zombie has ended; its parent, this program, cannot reap it here.
function running(pid) {
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}
