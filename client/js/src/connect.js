// The client, and how one comes to be.
import { ConfluxError, SpawnError } from './errors.js';
import { Calls, NO_SESSION, query, segment, split } from './calls.js';
import { asLogger } from './log.js';
import { Execution } from './execution.js';
import { INFO, Process, killProcess } from './process.js';
import { Operations, Session } from './session.js';
import { Transport } from './transport/transport.js';

const TIMEOUTS = { connect: 30000, request: 120000, stream: 300000, reconnect: 5000 };

let spawnServer = null;
export const useSpawn = spawn => {
  spawnServer = spawn;
};

// A client of the server at baseUrl, connected; without one, of a server that is started for it (Node and Bun).
export async function connect(options = {}) {
  const { spawn = !options.baseUrl, ...rest } = options;
  if (!spawn || spawn.enabled === false) return ready(new Conflux(rest));
  if (rest.baseUrl) throw new TypeError('give either baseUrl or spawn');
  if (!spawnServer) throw new SpawnError('No server can be started here: give baseUrl');
  const server = await spawnServer({ ...(rest.token && { token: rest.token }), ...(spawn === true ? {} : spawn) });
  try {
    return await ready(new Conflux({ ...rest, baseUrl: server.baseUrl, token: server.token }, server));
  } catch (e) {
    await server.dispose();
    throw e;
  }
}

async function ready(client) {
  try {
    await client.transport.connect();
  } catch (e) {
    await client.dispose();
    throw e;
  }
  return client;
}

// Names of the Cloudflare SDK and of its older documents mean the same as ours.
function normalize({ baseUrl, useWebSocket, transport, transportMode, containerTimeouts, timeouts, ...rest }) {
  if (typeof baseUrl !== 'string' || !/^https?:\/\//.test(baseUrl))
    throw new TypeError('baseUrl must be an http or https URL');
  // It is shown in messages of errors.
  if (/^https?:\/\/[^/]*@/.test(baseUrl)) throw new TypeError('baseUrl must hold no credentials: give a token');
  const mode = transport ?? transportMode ?? { true: 'websocket', false: 'http' }[useWebSocket] ?? 'auto';
  const given = Object.entries({ ...containerTimeouts, ...timeouts }).filter(([, ms]) => ms !== undefined);
  return {
    ...rest,
    baseUrl: baseUrl.replace(/\/+$/, ''),
    transport: mode,
    timeouts: { ...TIMEOUTS, ...Object.fromEntries(given) },
  };
}

// Created by hand it connects at the first call, or at transport.connect().
export class Conflux extends Operations {
  #baseUrl;
  #token;
  #session;
  #server;
  #transport;
  constructor(options, server = null) {
    const { session, logger, ...rest } = normalize(options);
    const transport = new Transport({ ...rest, log: asLogger(logger) });
    super(new Calls(transport, rest.timeouts));
    this.#transport = transport;
    this.#baseUrl = rest.baseUrl;
    this.#token = rest.token;
    this.#session = session ?? NO_SESSION;
    this.#server = server;
    // A server that ends waits for its clients, and one that is about to exit no longer answers.
    if (server) server.beforeExit = () => transport.abort();
  }

  // Getters, so that a client that is printed does not show its token.
  get baseUrl() {
    return this.#baseUrl;
  }
  get token() {
    return this.#token;
  }
  get transport() {
    return this.#transport;
  }
  // sandbox.client.transport, as the SDK has it.
  get client() {
    return this;
  }
  scoped(body) {
    return { sessionId: this.#session, ...body };
  }

  // Closes the connections, and ends the server if it was started for this client.
  async dispose() {
    this.#transport.dispose();
    await this.#server?.dispose();
  }

  // ---- sessions ----

  session(id) {
    return new Session(this.calls, id);
  }
  // Options: id, env, cwd, commandTimeoutMs.
  async createSession(options) {
    const [control, rest] = split(options);
    return this.session((await this.calls.post('/api/session/create', rest, control, { fields: { data: INFO } })).data.id);
  }
  async listSessions(options) {
    return (await this.calls.get('/api/session/list', split(options)[0], { fields: { data: ['text'] } })).data;
  }
  deleteSession(id, options) {
    return this.session(id).delete(options);
  }

  // ---- processes and executions ----

  // Options: status, sessionId, limit, after.
  async listProcesses(options) {
    const [control, rest] = split(options);
    const { processes } = await this.calls.get(query('/api/process/list', rest), control, {
      fields: { processes: [INFO] },
    });
    return processes.map(info => new Process(this.calls, info));
  }
  async getProcess(id, options) {
    const found = await this.calls.get(`/api/process/${segment(id)}`, split(options)[0], { fields: { process: INFO } });
    return new Process(this.calls, found.process);
  }
  killProcess(id, options) {
    return killProcess(this.calls, id, options);
  }
  async killAllProcesses(options) {
    const fields = { cleanedCount: 'number' };
    const ended = await this.calls.send('DELETE', '/api/process/kill-all', undefined, split(options)[0], { fields });
    return ended.cleanedCount;
  }
  execution(id) {
    return new Execution(this.calls, id);
  }

  // ---- the rest ----

  async ping(options) {
    return (await this.calls.get('/api/ping', split(options)[0], { fields: { status: 'text' } })).status;
  }
  async version(options) {
    return (await this.calls.get('/api/version', split(options)[0], { fields: { version: 'text' } })).version;
  }
  // Who listens: [{port, address, protocol, pid?, name?, processId?}].
  async ports(options) {
    return (await this.calls.get('/api/ports', split(options)[0], { fields: { ports: ['object'] } })).ports;
  }
  usage(options) {
    return this.calls.get('/api/usage', split(options)[0], { fields: { cpu: 'object', memory: 'object', disk: 'object' } });
  }
  // The same again and again, every intervalMs (1000), until it is left.
  watchUsage({ intervalMs, ...options } = {}) {
    const path = query('/api/usage', { stream: 1, intervalMs });
    const again = { resume: () => ({ path }), last: () => false };
    return this.calls.stream('GET', path, undefined, split(options)[0], again);
  }
  pending(options) {
    return this.calls.get('/api/pending', split(options)[0]);
  }

  // What happens to processes, executions and sessions, each event once, over lost connections too; from: the last id
  // seen.
  events({ from, ...options } = {}) {
    const at = f => ({ path: query('/api/events', { from: f }) });
    return this.calls.stream('GET', at(from).path, undefined, split(options)[0], {
      idle: 0,
      last: () => false,
      resume: last => at(last ?? from),
    });
  }

  // Runs functions that call this client, at most `concurrency` at a time; results in their order. With settle: true
  // as Promise.allSettled, else the first failure is thrown, and no further one is begun.
  async batch(tasks, { concurrency = 64, settle = false } = {}) {
    const results = new Array(tasks.length);
    let next = 0,
      failed = false;
    const work = async () => {
      while (next < tasks.length && !failed) {
        const i = next++;
        try {
          const value = await tasks[i](this);
          results[i] = settle ? { status: 'fulfilled', value } : value;
        } catch (reason) {
          if (!settle) {
            failed = true;
            throw reason;
          }
          results[i] = { status: 'rejected', reason };
        }
      }
    };
    if (!(concurrency >= 1)) throw new ConfluxError('concurrency must be at least 1', { code: 'VALIDATION_FAILED' });
    await Promise.all(Array.from({ length: Math.min(concurrency, tasks.length) }, work));
    return results;
  }
}

// `await using client = await connect(…)`, where the platform knows it.
if (Symbol.asyncDispose)
  Conflux.prototype[Symbol.asyncDispose] = function () {
    return this.dispose();
  };
