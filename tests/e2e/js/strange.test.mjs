// The JavaScript client and servers that do not speak the protocol: each call ends, with an error of ours, and the program goes on.
// What is thrown in a handler of a socket ends the program: here it fails the test that it comes from.
import { test, describe, before, after } from 'node:test';
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Conflux, ConfluxError, ConnectionLostError, ProtocolError, TimeoutError } from '../../../client/js/src/node/index.js';
import { openNodeSocket } from '../../../client/js/src/node/websocket.js';
import { until } from '../lib/server.mjs';
import { send, strange } from './lib/strange.mjs';

const HANG = { timeout: 600000 }; // against hanging, no measure
const PONG = { success: true, status: 'healthy' };
const answer = (id, body = PONG, status = 200) => ({ type: 'response', id, status, body, done: true });
const broken = words => e => {
  assert.ok(e instanceof ProtocolError && e instanceof ConfluxError, `${e?.constructor?.name}: ${e?.message}`);
  assert.equal(e.code, 'PROTOCOL_ERROR');
  if (words) assert.match(e.message, words);
  return true;
};

describe('one strange server', HANG, () => {
  let s, c;
  before(async () => { s = await strange(); });
  after(() => s.close());
  const client = transport => new Conflux({ baseUrl: s.base, transport, timeouts: { request: 10000, stream: 10000 } });
  const kinds = { ping: () => c.ping(), stream: () => c.execStream('x').next(), fetch: () => c.transport.fetch('/api/ping') };

  const noMessages = { null: 'null', 'a number': '5', 'a text': '"x"', 'a list': '[]', 'not JSON': '{{{', nothing: '', 'an object without type': '{}', 'a type that is no text': '{"type":5}',
    'a hello with other limits': '{"type":"hello","limits":{"maxMessageBytes":"x"}}', 'a hello that allows nothing': '{"type":"hello","limits":{"maxPending":0}}', 'a hello with no limits': '{"type":"hello","limits":5}' };
  for (const [name, text] of Object.entries(noMessages)) test(`what belongs to no call ends the connection, and the next call has another: ${name}`, async () => {
    c = client('websocket');
    for (const kind of Object.values(kinds)) {
      s.message = (m, ws) => send(ws, text);
      await assert.rejects(kind(), broken(/^WebSocket closed: the server sent (what is no message|a malformed message of type hello): /));
      s.message = (m, ws) => send(ws, answer(m.id));
      assert.equal(await c.ping(), 'healthy');
    }
    await c.dispose();
  });

  const malformed = { 'data that are missing': { type: 'stream' }, 'data that are a number': { type: 'stream', data: 5 }, 'data that are an object': { type: 'stream', data: { a: 1 } }, 'data that are null': { type: 'stream', data: null },
    'an event id that is an object': { type: 'stream', data: '{"type":"stdout","data":""}', eventId: { a: 1 } }, 'an answer without status': { type: 'response' }, 'a status that is a text': { type: 'response', status: '200', body: {} },
    'status 0': { type: 'response', status: 0 }, 'status 101': { type: 'response', status: 101 }, 'status 600': { type: 'response', status: 600 }, 'status -1': { type: 'response', status: -1 }, 'status 200.5': { type: 'response', status: 200.5 },
    'an error without status': { type: 'error' }, 'an error with status 200': { type: 'error', status: 200 }, 'an error with a code that is an object': { type: 'error', status: 500, code: {} }, 'an error with a message that is a list': { type: 'error', status: 500, message: [] },
    'input that is taken, so many': { type: 'stdin', bytes: 'x' }, 'input that is taken, less than none': { type: 'stdin', bytes: -1e30 } };
  for (const [name, m] of Object.entries(malformed)) test(`what belongs to a call fails that call alone: ${name}`, async () => {
    c = client('websocket');
    const before = s.connections;
    for (const kind of Object.values(kinds)) {
      let good;
      s.message = ({ id, path }, ws) => { // the other call was first, and is answered after
        if (path === '/api/version') good = () => send(ws, answer(id, { version: '1' }));
        else { send(ws, { ...m, id }); good(); }
      };
      const beside = c.version();
      await assert.rejects(kind(), broken(new RegExp(`The server sent a malformed message of type ${m.type}: `)));
      assert.equal(await beside, '1');
    }
    assert.equal(s.connections - before, 1);
    await c.dispose();
  });

  test('messages of unknown types and for unknown calls are let be', async () => {
    c = client('websocket');
    s.message = ({ id }, ws) => {
      for (const m of [{ type: 'constructor', id }, { type: 'news', id: 5 }, { type: 'stream', id: 'other' }, { type: 'response', id: 'other' }, { type: 'error', message: 'x', status: 400 }]) send(ws, m);
      send(ws, answer(id));
      send(ws, answer(id));
    };
    for (let i = 0; i < 3; i++) assert.equal(await c.ping(), 'healthy');
    await c.dispose();
  });

  test('JSON that is too deep to be written again', async () => {
    c = client('websocket');
    const deep = '['.repeat(200000) + ']'.repeat(200000);
    s.message = ({ id }, ws) => send(ws, `{"type":"response","id":"${id}","status":200,"body":${deep}}`);
    await assert.rejects(kinds.fetch(), broken());
    await assert.rejects(kinds.ping(), broken(/a list/));
    await c.dispose();
  });

  // The same events and answers by both ways.
  const say = (status, text, type = 'application/json') => { s.answer = (_, response) => response.writeHead(status, { 'Content-Type': type }).end(text); };
  const events = { 'not json': /not JSON: the text "not json"/, null: /it is null/, '[]': /it is a list/, 5: /it is 5/, '{}': /"type" is missing/, '{"type":"stdout","data":5}': /"data" is 5/, '{"type":"start" broken': /not JSON/ };
  for (const transport of ['websocket', 'http']) {
    for (const [data, words] of Object.entries(events)) test(`an event that is none: ${data} (${transport})`, async () => {
      c = client(transport);
      s.message = ({ id }, ws) => send(ws, { type: 'stream', id, data });
      say(200, `data: ${data}\n\n`, 'text/event-stream');
      for (const stream of [c.execStream('x'), c.execution('x').stream()]) await assert.rejects(stream.next(), broken(words)); // it is not asked for again
      if (!data.includes('stdout')) for (const stream of [c.events(), c.watch('.'), c.watchUsage(), c.search('.'), c.readFileStream('f')]) await assert.rejects(stream.next(), broken(words));
      await c.dispose();
    });

    const calls = { startProcess: () => c.startProcess('x'), listProcesses: () => c.listProcesses(), getProcess: () => c.getProcess('p'), createSession: () => c.createSession(), listSessions: () => c.listSessions(), ping: () => c.ping(), version: () => c.version(),
      ports: () => c.ports(), usage: () => c.usage(), exec: () => c.exec('x'), result: () => c.execution('x').result(), readFile: () => c.readFile('f'), readBytes: () => c.readBytes('f'), exists: () => c.exists('f'), stat: () => c.stat('f'),
      listFiles: () => c.listFiles('.'), checkChanges: () => c.checkChanges('.'), batchFiles: () => c.batchFiles([]), killAllProcesses: () => c.killAllProcesses() };
    const wrong = { success: 'no', process: 7, processId: {}, processes: 5, data: null, content: 5, encoding: 9, status: [], version: {}, ports: 'x', cpu: 1, stdout: 5, stderr: {}, exitCode: 'x', exists: 'y', type: 1, size: 'x', files: {}, results: {}, cleanedCount: '1' };
    const bodies = { null: null, nothing: undefined, HTML: '<html>', 'a list': [], 'a number': 7, 'an empty object': {}, 'fields of other types': wrong,
      'lists of other things': { ...wrong, processes: [null], data: [5], files: [7], ports: [[]], results: [''] }, 'objects without id': { ...wrong, process: {}, processes: [{}], data: {} } };
    for (const [name, body] of Object.entries(bodies)) test(`an answer that is none: ${name} (${transport})`, async () => {
      c = client(transport);
      s.message = ({ id }, ws) => send(ws, { ...answer(id), body });
      say(200, body === undefined ? '' : typeof body === 'string' ? body : JSON.stringify(body));
      for (const [call, run] of Object.entries(calls)) await assert.rejects(run(), e => broken(/The server's answer to (GET|POST|DELETE) \/api\S+ is malformed: /)(e) || assert.fail(call));
      if (body === '<html>') await assert.rejects(c.ping(), /it is the text "<html>"/);
      for (const put of typeof body === 'object' && body !== null && !Array.isArray(body) ? [] : [() => c.putRaw('f', 'x'), () => c.putArchive('d', 'x')]) await assert.rejects(put(), broken());
      await c.dispose();
    });

    test(`an answer that goes on without end is one error: a list, and content (${transport})`, async () => {
      c = client(transport);
      const say = body => { s.message = ({ id }, ws) => send(ws, answer(id, body)); s.answer = (_, response) => response.end(JSON.stringify(body)); };
      say({ files: [{ name: 'a' }], truncated: true, next: 'a' });
      await assert.rejects(c.listFiles('.'), broken(/does not go on/));
      say({ files: [], truncated: true, next: 'b' });
      await assert.rejects(c.listFiles('.'), broken(/does not go on/));
      say({ content: '***', encoding: 'base64' });
      await assert.rejects(c.readBytes('f'), broken(/not base64/));
      await c.dispose();
    });

    test(`no field takes the place of a method (${transport})`, async () => {
      c = client(transport);
      const text = '{"process":{"id":"p","kill":5,"refresh":null,"constructor":1,"status":"running","__proto__":{"wait":1}}}';
      s.message = ({ id }, ws) => send(ws, `{"type":"response","id":"${id}","status":200,"body":${text}}`);
      s.answer = (_, response) => response.end(text);
      const p = await c.getProcess('p');
      assert.deepEqual([p.id, p.status], ['p', 'running']);
      for (const name of ['kill', 'refresh', 'wait']) assert.equal(typeof p[name], 'function');
      await c.dispose();
    });

    test(`an error whose fields are of other types is an ApiError all the same (${transport})`, async () => {
      c = client(transport);
      const body = { code: { a: 1 }, message: {}, context: 7, httpStatus: 'q', suggestion: 5 };
      s.message = ({ id }, ws) => send(ws, answer(id, body, 400));
      say(400, JSON.stringify(body));
      await assert.rejects(c.ping(), e => { assert.deepEqual([e.name, e.code, e.status, e.context, e.message, e.suggestion], ['ApiError', 'INTERNAL_ERROR', 400, {}, 'HTTP status 400', undefined]); return true; });
      await c.dispose();
    });
  }

  test('over HTTP: what is no stream of events, an event without end, a body that is cut', async () => {
    c = new Conflux({ baseUrl: s.base, transport: 'http', timeouts: { stream: 0 } }); // 64 MiB may take long
    say(200, '<html>', 'text/html');
    await assert.rejects(c.execStream('x').next(), broken(/status 200, content type text\/html/));
    s.answer = (_, response) => response.writeHead(204).end();
    await assert.rejects(c.execStream('x').next(), broken(/status 204/));
    s.answer = (_, response) => {
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      const piece = `data: ${'x'.repeat(1 << 20)}`; // one line for ever
      const go = () => { while (!response.destroyed) if (!response.write(piece)) return response.once('drain', go); };
      go();
    };
    await assert.rejects(c.execStream('x').next(), broken(/an event without end/));
    s.answer = (_, response) => { response.writeHead(200, { 'Content-Length': 100 }); response.write('abc', () => response.destroy()); };
    const cut = await c.getRaw('f');
    await assert.rejects(cut.text(), e => e instanceof ConnectionLostError && /HTTP connection closed/.test(e.message));
    s.answer = (_, response) => response.writeHead(206, { ETag: '"1"' }).end('part');
    const whole = await c.getRaw('f');
    assert.deepEqual([whole.status, whole.ok, whole.headers.get('ETag'), whole.url.startsWith(s.base), await whole.text()], [206, true, '"1"', true, 'part']);
    await c.dispose();
  });

  test('events whose lines end in any way and are cut anywhere', async () => {
    c = client('http');
    const text = ': note\r\n\r\nid: 7\rdata: {"type":"stdout",\r\ndata:"data":"é"}\n\nid\ndata: {"type":"complete"}\r\n\r\n', bytes = Buffer.from(text);
    s.answer = async (_, response) => {
      response.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders();
      for (const byte of bytes) { response.write(Buffer.from([byte])); await new Promise(setImmediate); }
      response.end();
    };
    const seen = [], stream = c.execStream('x');
    for await (const e of stream) seen.push([e.type, e.data, stream.lastId]);
    assert.deepEqual(seen, [['stdout', 'é', '7'], ['complete', undefined, '']]);
    await c.dispose();
  });

  test('a stream in place of an answer stops no clock', async () => {
    c = client('websocket');
    s.message = ({ id }, ws) => send(ws, { type: 'stream', id, data: '{"type":"stdout","data":"x"}' });
    await assert.rejects(c.exec('x', { requestTimeout: 300 }), e => e instanceof TimeoutError);
    await c.dispose();
  });

  // The pauses that the client asks for, which take no time here.
  const pausesOf = async run => {
    const real = globalThis.setTimeout, asked = [];
    globalThis.setTimeout = (act, ms, ...args) => {
      if (!(ms > 0 && ms <= 5000)) return real(act, ms, ...args);
      asked.push(ms);
      return real(act, 0, ...args);
    };
    try { await run(); } finally { globalThis.setTimeout = real; }
    return asked;
  };
  const GROWING = [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000];

  test('a server that answers a wait at once, again and again, is asked in growing pauses', async () => {
    c = client('websocket');
    let asked = 0;
    s.message = ({ id }, ws) => send(ws, ++asked % (GROWING.length + 1) ? answer(id, { status: 'running' }, 202) : answer(id, { stdout: 'x', stderr: '', exitCode: 0 }));
    assert.deepEqual(await pausesOf(async () => assert.equal((await c.execution('x').result()).stdout, 'x')), GROWING);
    assert.equal(asked, GROWING.length + 1);
    asked = 0;
    s.message = ({ id, path }, ws) => send(ws, !path.includes('/wait') ? answer(id, { process: { id: 'p' } }) : ++asked % (GROWING.length + 1) ? answer(id, { code: 'PROCESS_READY_TIMEOUT' }, 408) : answer(id, { process: { id: 'p', exitCode: 3 } }));
    const p = await c.getProcess('p');
    assert.deepEqual(await pausesOf(async () => assert.equal((await p.wait()).exitCode, 3)), GROWING);
    assert.equal(asked, GROWING.length + 1);
    await c.dispose();
  });

  test('a pause ends with the signal of its caller, and with the client', async () => {
    c = client('websocket');
    s.message = ({ id }, ws) => send(ws, answer(id, { status: 'running' }, 202));
    const stop = new AbortController();
    const left = assert.rejects(c.execution('x').result({ signal: stop.signal }), /enough/);
    const ended = assert.rejects(c.execution('x').result(), e => ['DISPOSED', 'CONNECTION_LOST'].includes(e.code));
    await c.ping().catch(() => {});
    stop.abort(new Error('enough'));
    await left;
    await c.dispose();
    await ended;
  });

  test('a stream that is lost after each event is taken up again: at once, then in growing pauses', async () => {
    c = client('websocket');
    let begun = 0;
    s.message = ({ id, path }, ws) => {
      if (!path.includes('/stream')) return send(ws, answer(id, { process: { id: 'p' } }));
      if (++begun > GROWING.length + 1) return send(ws, { type: 'stream', id, data: '{"type":"exit"}', eventId: begun }), send(ws, answer(id, undefined));
      ws.send(JSON.stringify({ type: 'stream', id, data: '{"type":"stdout","data":"x"}', eventId: begun }), () => ws.terminate());
    };
    const p = await c.getProcess('p');
    let seen = 0;
    const asked = await pausesOf(async () => { for await (const e of p.logs()) seen += e.data === 'x'; });
    assert.deepEqual([seen, asked], [GROWING.length + 1, GROWING]);
    await c.dispose();
  });

  test('a step of the clock stretches no wait', async () => {
    c = client('websocket');
    const real = Date.now;
    let asked = 0;
    const back = () => { if (++asked === 1) Date.now = () => real() - 3600000; };
    try {
      s.message = ({ id }, ws) => { back(); send(ws, answer(id, { status: 'running' }, 202)); };
      assert.equal(await c.execution('x').result({ timeout: 200 }), null);
      Date.now = real;
      asked = 0;
      s.message = ({ id, path }, ws) => { if (path.includes('/wait')) back(); send(ws, path.includes('/wait') ? answer(id, { code: 'PROCESS_READY_TIMEOUT' }, 408) : answer(id, { process: { id: 'p' } })); };
      const p = await c.getProcess('p');
      await assert.rejects(p.wait({ timeout: 200 }), e => e.code === 'PROCESS_READY_TIMEOUT');
    } finally { Date.now = real; }
    await c.dispose();
  });
});

test('a message of fragments without end ends the connection', HANG, async () => {
  const s = await strange({ message: (_, ws) => {
    const empty = Buffer.alloc(2 << 16); // 65,536 fragments of a text, not the last, without content
    ws._socket.write(Buffer.concat([Buffer.from([0x01, 0x00]), empty, Buffer.from([0x80, 0x00])]));
  } });
  const c = new Conflux({ baseUrl: s.base, transport: 'websocket', timeouts: { request: 10000 } });
  await assert.rejects(c.ping(), broken(/WebSocket closed \(1009: a message of too many fragments\)/));
  await c.dispose();
  await s.close();
});

test('pings of a peer that does not read are held in bounds, and the latest is answered', HANG, async () => {
  const s = await strange();
  const PINGS = 100000, last = `${PINGS}`.padStart(125);
  let peer, pongs = '';
  s.message = (_, ws) => {
    peer = ws;
    ws.on('pong', data => { pongs = String(data); });
    ws.pause();
    for (let i = 1; i <= PINGS; i++) ws.ping(`${i}`.padStart(125));
    ws.send('all');
  };
  const socket = await openNodeSocket({ url: s.base, headers: {}, timeout: 0 });
  const all = new Promise(resolve => { socket.onmessage = text => text === 'all' && resolve(); });
  socket.send('{"type":"request"}');
  await all;
  assert.ok(socket.bufferedAmount < 3 << 20, `${socket.bufferedAmount} bytes`);
  peer.resume();
  await until(() => pongs === last, 'the answer to the latest ping');
  socket.close();
  await once(peer, 'close');
  await s.close();
});
