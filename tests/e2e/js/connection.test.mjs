// The JavaScript client when things go wrong: servers that die, refuse, are slow or unknown, and readers that leave.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import net from 'node:net';
import { readFile, writeFile } from 'node:fs/promises';
import WebSocket from 'ws';
import { Conflux, connect, ApiError, ConnectionError, ConnectionLostError, TimeoutError, createLogger } from '../../../client/js/src/node/index.js';
import { afterTimeout, gone, serverPid, start, until } from '../lib/server.mjs';
import { proxy } from './lib/proxy.mjs';

const pending = async (c, route) => JSON.stringify(await c.pending()).split(` ${route}"`).length - 1;
const gauge = (text, name) => Number(new RegExp(`^${name} (\\d+)`, 'm').exec(text)[1]);
// Streams that the server has open: a stream over HTTP is a connection that lasts.
const streams = async c => {
  const metrics = await (await c.transport.fetch('/metrics')).text();
  return gauge(metrics, 'conflux_http_streams') + await pending(c, '/api/process/{id}/stream');
};
const closed = url => new Promise(resolve => { // a port where nobody listens
  const server = net.createServer().listen(0, '127.0.0.1', () => { const { port } = server.address(); server.close(() => resolve(`${url}${port}`)); });
});

describe('one server, many clients', () => {
  let s, p;
  before(async () => { s = await start(); p = await proxy(() => s); });
  after(async () => { await p.close(); await s.stop(); });
  const through = options => connect({ baseUrl: p.base, ...options });

  test('one connection carries everything', async () => {
    const before = p.connections;
    const c = await through();
    await Promise.all(Array.from({ length: 100 }, (_, i) => c.exec(`echo ${i}`).then(r => assert.equal(r.stdout, `${i}\n`))));
    assert.equal(p.connections - before, 1);
    await c.dispose();
    await assert.rejects(c.ping(), e => e.code === 'DISPOSED');
  });

  test('a pool spreads what is in flight', async () => {
    const before = p.upgrades;
    const c = await through({ pool: 3 });
    const held = Array.from({ length: 3 }, () => c.execStream('cat', { stdin: 'open' }));
    for (const stream of held) await stream.next();
    assert.equal(p.upgrades - before, 3);
    for (const stream of held) stream.close();
    await c.dispose();
  });

  test('refused WebSockets: HTTP in their place, and back', async () => {
    p.refuse = '404 Not Found';
    const states = [];
    const c = await through({ retryAfter: 20, onState: state => states.push(state) });
    assert.equal(c.transport.getMode(), 'http');
    assert.equal((await c.exec('echo over http')).stdout, 'over http\n');
    p.refuse = null;
    await until(async () => { await c.ping(); return c.transport.getMode() === 'websocket'; }, 'the WebSocket');
    const { requests } = p;
    assert.equal((await c.exec('echo back')).stdout, 'back\n');
    assert.equal(p.requests, requests);
    assert.match(states[0].reason, /WebSocket upgrade refused with status 404/);
    assert.deepEqual(states.map(state => state.mode), ['http', 'websocket']);
    await c.dispose();
  });

  test('refused WebSockets are an error where nothing else is allowed', async () => {
    p.refuse = '426 Upgrade Required';
    await assert.rejects(through({ useWebSocket: true }), e => e instanceof ConnectionError && e.retrySafe && /WebSocket/.test(e.message));
    p.refuse = null;
  });

  test('without any WebSocket there is HTTP; with an injected one, that', async () => {
    class Broken { constructor() { throw new SyntaxError('no'); } }
    const c = await connect({ baseUrl: s.base, WebSocket: Broken });
    assert.deepEqual([c.transport.getMode(), (await c.exec('echo a')).stdout], ['http', 'a\n']);
    await c.dispose();
    const d = await connect({ baseUrl: s.base, WebSocket, useWebSocket: true });
    assert.deepEqual([d.transport.getMode(), (await d.exec('echo b')).stdout], ['websocket', 'b\n']);
    await d.dispose();
  });

  test('a server that does not answer: connect timeout', async () => {
    const mute = await proxy(() => s); // of its own: a kept HTTP connection would be answered
    mute.silent = true;
    for (const options of [{ transport: 'websocket', timeouts: { connect: 50 } }, { useWebSocket: true, containerTimeouts: { connect: 50 } }])
      await assert.rejects(connect({ baseUrl: mute.base, ...options }), e => e instanceof TimeoutError && /WebSocket/.test(e.message) && /timeout/.test(e.message));
    await assert.rejects(connect({ baseUrl: mute.base, timeouts: { connect: 50 } }), e => e instanceof TimeoutError);
    await mute.close();
  });

  for (const transport of ['websocket', 'http']) test(`a request that takes too long ends here and on the server (${transport})`, async () => {
    const c = await through({ transport });
    const file = `${s.workspace}/pid-${transport}`;
    await afterTimeout((requestTimeout, mark) => assert.rejects(c.exec(`echo $$ >${file}; ${mark}; exec sleep 1000`, { requestTimeout }),
      e => e instanceof TimeoutError && e.message.includes(`Request timeout after ${requestTimeout} ms`) && !e.retrySafe));
    await gone(Number(await readFile(file, 'utf8')));
    const kept = { executionId: `kept-${transport}`, requestTimeout: 50 }; // one with an id goes on
    await assert.rejects(c.exec('sleep 0.3; echo kept', kept), e => e instanceof TimeoutError && e.retrySafe && e.executionId === kept.executionId);
    assert.equal((await c.execution(kept.executionId).result({ requestTimeout: 20000 })).stdout, 'kept\n');
    await assert.rejects(collect(c.execStream('sleep 1000', { idleTimeout: 50, onCancel: 'kill' })), e => e instanceof TimeoutError && /Stream timeout/.test(e.message));
    await c.dispose();
  });

  for (const transport of ['websocket', 'http']) test(`leaving a for await cancels the stream on the server (${transport})`, async () => {
    const c = await through({ transport });
    const look = await connect({ baseUrl: s.base });
    const q = await c.startProcess('while :; do echo x; sleep 0.01; done');
    await until(async () => await streams(look) === 0, 'earlier streams to end');
    for await (const log of q.logs()) {
      assert.equal(log.type, 'stdout');
      assert.equal(await streams(look), 1);
      break;
    }
    await until(async () => await streams(look) === 0, 'the stream to end');
    assert.equal((await q.refresh()).status, 'running'); // the stream is cancelled, not the process
    await q.kill();
    let n = 0;
    for await (const e of c.execStream(`echo $$; exec sleep 1000`, { onCancel: 'kill', executionId: `left-${transport}` })) if (e.type === 'stdout') { n = Number(e.data); break; }
    await gone(n);
    await look.dispose();
    await c.dispose();
  });

  for (const transport of ['websocket', 'http']) test(`cancel with kill ends the command, also before it has begun and without an id (${transport})`, async () => {
    const c = await through({ transport });
    const running = async mark => (await c.listProcesses()).filter(q => q.command.includes(mark) && q.status === 'running');
    const late = c.execStream(`: late-${transport}; echo $$; exec sleep 1000`);
    for await (const e of late) if (e.type === 'stdout') { late.cancel({ kill: true }); await gone(Number(e.data)); }
    const early = c.execStream(`: early-${transport}; exec sleep 1000`);
    await c.exec('true');
    early.cancel({ kill: true });
    await until(async () => (await running(`early-${transport}`)).length === 0, 'the end of it');
    await c.dispose();
  });

  test('an abort that overtakes the command ends it all the same (http)', async () => {
    const statuses = [], stop = new AbortController();
    const slow = async (url, init) => { // the command is on its way until its end has been answered once
      if (init.method === 'POST') {
        until(() => statuses.length, 'the end to come first').then(() => fetch(url, { ...init, signal: undefined })).catch(() => {});
        return new Promise((_, reject) => {
          init.signal.addEventListener('abort', () => reject(init.signal.reason));
          stop.abort(new Error('enough'));
        });
      }
      const response = await fetch(url, init);
      if (init.method === 'DELETE') statuses.push(response.status);
      return response;
    };
    const c = await through({ transport: 'http', fetch: slow });
    await assert.rejects(c.exec('sleep 1000', { executionId: 'overtaken', signal: stop.signal }), /enough/);
    await until(() => statuses.at(-1) === 200, 'the end of it');
    assert.equal(statuses[0], 404);
    await assert.rejects(c.execution('overtaken').result(), e => e.code === 'CANCELLED');
    await c.dispose();
  });

  test('a connection that is cut: typed errors that say what may be repeated, and the result by its id', async () => {
    const c = await through({ transport: 'websocket' });
    const calls = [c.exec('sleep 0.3; echo done', { executionId: 'cut' }), c.exec('sleep 1000'), c.getProcess('none').catch(() => c.transport.request({ method: 'GET', path: '/api/events' }))]
      .map(call => call.then(() => null, e => e));
    await until(async () => (await c.pending()) && JSON.stringify(await c.pending()).includes('/api/events'), 'the calls to run');
    p.cut();
    const errors = await Promise.all(calls);
    for (const e of errors) assert.ok(e instanceof ConnectionLostError && /^WebSocket closed/.test(e.message), String(e));
    assert.deepEqual(errors.map(e => [e.code, e.retrySafe, e.executionId]), [['CONNECTION_LOST', true, 'cut'], ['CONNECTION_LOST', false, undefined], ['CONNECTION_LOST', true, undefined]]);
    assert.equal((await c.execution('cut').result()).stdout, 'done\n');
    await c.killAllProcesses();
    await c.dispose();
  });

  test('input that has arrived is not sent again after a cut', async () => {
    const c = await through({ transport: 'websocket' });
    const fed = c.execStream('head -n 1; cat', { executionId: 'fed', stdin: 'open' });
    await fed.write('one\n');
    let seen = '';
    for await (const e of fed) {
      if (e.type === 'stdout') seen += e.data;
      if (e.data !== 'one\n') continue;
      const connections = p.connections;
      p.cut(); // its receipt came before its output
      await until(() => p.connections > connections, 'the next connection');
      fed.close('two\n');
    }
    assert.equal(seen, 'one\ntwo\n');
    await c.dispose();
  });

  for (const transport of ['websocket', 'http']) test(`input that may be missing after a cut is an error (${transport})`, async () => {
    const c = await through({ transport });
    const unfed = c.execStream('echo ready; sleep 1000; cat', { executionId: `unfed-${transport}`, stdin: 'open' });
    unfed.write(new Uint8Array(transport === 'http' ? 24 << 20 : 2 << 20)); // more than is held for it
    await assert.rejects(async () => {
      for await (const e of unfed) if (e.type === 'stdout') p.cut();
    }, e => e instanceof ConnectionLostError && /how much of the input has arrived is not known/.test(e.message));
    const look = await connect({ baseUrl: s.base });
    await look.killAllProcesses();
    await look.dispose();
    await c.dispose();
  });

  for (const transport of ['websocket', 'http']) test(`streams of processes, executions and events are taken up where they were cut (${transport})`, async () => {
    const c = await through({ transport });
    const go = `${s.workspace}/go-${transport}`;
    const script = `echo before; until test -e ${go}; do sleep 0.01; done; echo after`;
    const q = await c.startProcess(script);
    const streams = [q.logs(), c.execStream(script, { executionId: `x-${transport}` }), c.events()];
    const seen = ['', '', []];
    const readers = streams.map(async (stream, i) => {
      for await (const e of stream) {
        if (i === 2) seen[2].push(e.id);
        else if (e.type === 'stdout') seen[i] += e.data;
        else seen[i] += e.type === 'start' ? '>' : e.type === 'complete' ? '<' : '';
      }
    });
    await until(() => seen[0] === 'before\n' && seen[1] === '>before\n' && seen[2].length, 'the first half');
    p.cut();
    await writeFile(go, '');
    await Promise.all(readers.slice(0, 2));
    assert.deepEqual(seen.slice(0, 2), ['before\nafter\n', '>before\nafter\n<']);
    const look = await connect({ baseUrl: s.base });
    await look.createSession({ id: `seen-${transport}` });
    await until(() => seen[2].length > 3, 'later events');
    streams[2].cancel();
    await readers[2];
    assert.deepEqual(seen[2], [...new Set(seen[2])].sort((a, b) => a - b));
    await look.dispose();
    await c.dispose();
  });

  test('a priority out of range is refused by the server, by name', async () => {
    const c = await connect({ baseUrl: s.base });
    await assert.rejects(c.exec('true', { priority: 9 }), e => e instanceof ApiError && e.code === 'VALIDATION_FAILED' && /priority/.test(e.message));
    await c.dispose();
  });

  test('higher priority first, when calls wait for a place', async () => {
    const c = await connect({ baseUrl: s.base, maxPending: 1, session: 'prio' });
    const order = [];
    await Promise.all([1, 5, 3, 7].map(priority => c.exec('true', { priority }).then(() => order.push(priority))));
    assert.deepEqual(order, [7, 5, 3, 1]);
    await c.dispose();
  });

  test('what is too long for a message goes over HTTP, and harms nothing else', async () => {
    const small = await start({ args: ['--max-message', '100000'] });
    const c = await connect({ baseUrl: small.base });
    const beside = c.exec('sleep 0.3; echo beside');
    const long = 'é'.repeat(100000);
    assert.equal((await c.exec('wc -c', { stdin: long })).stdout, '200000\n');
    assert.equal((await collect(c.execStream('wc -c', { stdin: long }))).find(e => e.type === 'stdout').data, '200000\n');
    const count = c.execStream('wc -c', { stdin: 'open' }); // input goes in pieces
    count.write(long);
    count.close(new Uint8Array(150000));
    assert.equal((await collect(count)).find(e => e.type === 'stdout').data, '350000\n');
    assert.equal((await beside).stdout, 'beside\n');
    assert.equal(c.transport.getMode(), 'websocket');
    await c.dispose();
    await small.stop();
  });

  test('disconnect ends what is pending; the next call connects again', async () => {
    const c = await connect({ baseUrl: s.base });
    const run = c.exec('sleep 1000', { onDisconnect: 'kill' });
    await until(async () => await pending(c, '/api/execute') === 1, 'the call');
    c.client.transport.disconnect();
    await assert.rejects(run, /WebSocket closed/);
    assert.equal(c.transport.isConnected(), false);
    await c.transport.connect();
    assert.equal(c.transport.isConnected(), true);
    await c.dispose();
  });

  test('an idle connection closes itself when asked to, and comes back', async () => {
    const states = [];
    const c = await connect({ baseUrl: s.base, idleTimeout: 30, onState: state => states.push(state.connected) });
    await c.ping();
    await until(() => states.at(-1) === false, 'the connection to close');
    assert.equal(await c.ping(), 'healthy');
    await c.dispose();
  });
});

async function collect(stream) { const all = []; for await (const e of stream) all.push(e); return all; }

test('nobody listens: one error, soon', async () => {
  const base = await closed('http://127.0.0.1:');
  for (const transport of ['auto', 'websocket', 'http'])
    await assert.rejects(connect({ baseUrl: base, transport }), e => e instanceof ConnectionError && e.retrySafe && (transport !== 'websocket' || /WebSocket/.test(e.message)));
  assert.throws(() => new Conflux({ baseUrl: 'localhost:3000' }), /baseUrl/);
  assert.throws(() => new Conflux({ baseUrl: 'http://user:pass@host' }), /credentials/);
  assert.throws(() => new Conflux({ baseUrl: base, transport: 'carrier pigeon' }), /transport/);
});

test('tokens: the right one by header and by subprotocol, a wrong one is an error at once', async () => {
  const s = await start({ env: { CONFLUX_TOKEN: 'open sesame'.replace(' ', '-') } });
  for (const more of [{}, { transport: 'http' }, { WebSocket }]) {
    const c = await connect({ baseUrl: s.base, token: 'open-sesame', ...more });
    assert.equal((await c.exec('echo in')).stdout, 'in\n');
    assert.equal(c.transport.getMode(), more.transport ?? 'websocket');
    await c.dispose();
    for (const token of ['wrong', undefined])
      await assert.rejects(connect({ baseUrl: s.base, token, ...more }), e => e instanceof ApiError && e.code === 'UNAUTHORIZED' && e.status === 401);
  }
  await s.stop();
});

test('a server killed in mid-call: an error, then its successor, and no output lost', async () => {
  const s = await start();
  const c = await connect({ baseUrl: s.base });
  const q = await c.startProcess(`for i in $(seq 100); do echo $i; done; until test -e ${s.workspace}/go; do sleep 0.01; done; echo end`);
  let out = '';
  const reader = (async () => { for await (const log of q.logs()) out += log.output; })();
  const run = c.exec('sleep 1000').then(() => null, e => e);
  const waits = q.wait();
  await until(() => out.includes('100\n'), 'the output');
  process.kill(await serverPid(s), 'SIGKILL');
  assert.match((await run).message, /WebSocket closed/);
  assert.equal((await c.exec('echo again')).stdout, 'again\n');
  await c.writeFile('go', '');
  assert.equal((await waits).exitCode, 0);
  await reader;
  assert.equal(out, `${Array.from({ length: 100 }, (_, i) => `${i + 1}\n`).join('')}end\n`);
  await c.dispose();
  await s.stop();
});

test('the logger sees the flow of messages, and nothing that could be a secret', async () => {
  const s = await start({ env: { CONFLUX_TOKEN: 'TOK-SECRET' } });
  for (const transport of ['websocket', 'http']) {
    const lines = [];
    const sink = Object.fromEntries(['debug', 'info', 'warn', 'error'].map(level => [level, (...args) => lines.push(JSON.stringify(args))]));
    const c = await connect({ baseUrl: s.base, token: 'TOK-SECRET', transport, headers: { 'X-Key': 'HDR-SECRET' }, logger: createLogger({ level: 'debug', sink }) });
    await c.exec('echo CMD-SECRET', { env: { A: 'ENV-SECRET' }, stdin: 'IN-SECRET' });
    await c.writeFile('f', 'FILE-SECRET');
    await c.readFile('f');
    await collect(c.execStream('cat f'));
    const q = await c.startProcess('cat f');
    await q.waitForLog('FILE-SECRET');
    await c.readFile('/QUERY-SECRET').catch(() => {});
    c.transport.disconnect();
    const all = lines.join('\n');
    assert.match(all, /\/api\/execute\/stream/);
    assert.doesNotMatch(all, /SECRET/);
    assert.doesNotMatch(`${JSON.stringify(c)}${(await import('node:util')).inspect(c, { depth: 9, showHidden: true })}`, /TOK-SECRET/);
    const functional = [];
    const d = new Conflux({ baseUrl: s.base, token: 'TOK-SECRET', transport, logger: line => functional.push(line) });
    await d.ping();
    assert.ok(functional.some(line => line.level === 'debug' && line.path === '/api/ping'));
    await d.dispose();
    await c.dispose();
  }
  await s.stop();
});
