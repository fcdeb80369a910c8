// dispose() ends all that is under way, and then nothing holds the program: each kind of call, with a client of its own, in one program.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, readFile, truncate, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Conflux, ConfluxError } from '../../../client/js/src/node/index.js';
import { gone, start, until } from '../lib/server.mjs';
import { proxy } from './lib/proxy.mjs';

const program = path.join(path.dirname(fileURLToPath(import.meta.url)), 'lib/leave.mjs');
const run = promisify(execFile);
const SILENT = ['getRawUnread', 'nothing']; // nobody waits for them
const KINDS = ['exec', 'execWithId', 'execStream', 'execStreamWithId', 'input', 'unread', 'result', 'logs', 'wait', 'waitForLog', 'events', 'watch', 'watchUsage',
  'getRaw', 'getRawUnread', 'getArchive', 'putRaw', 'fetchStream', 'nothing'];

describe('dispose', () => {
  let s, dir;
  before(async () => {
    s = await start();
    dir = path.join(s.dir, 'of-the-test');
    await mkdir(dir);
    await writeFile(`${dir}/large`, '');
    await truncate(`${dir}/large`, 300 << 20); // more than lies between a reader and the server
  });
  after(() => s.stop());

  for (const transport of ['http', 'websocket']) {
    let told;
    test(`X54: the program exits (${transport})`, async () => {
      // The limit is one against hanging: it ends a program that does not.
      const ended = await run(process.execPath, [program, s.base, transport, dir], { timeout: 240000, killSignal: 'SIGKILL' }).catch(e => e);
      told = new Map(ended.stdout.split('\n').filter(Boolean).map(JSON.parse).map(line => [line.kind, line]));
      assert.ifError(ended instanceof Error ? ended : null);
      assert.deepEqual([...told.keys()], KINDS);
    });
    for (const kind of KINDS) test(`X54: ${kind} ends, and leaves nothing (${transport})`, () => {
      const line = told.get(kind);
      assert.deepEqual(line.held, []);
      if (SILENT.includes(kind)) return assert.equal(line.told, null);
      assert.ok(line.told.ours && ['CONNECTION_LOST', 'DISPOSED'].includes(line.told.code), JSON.stringify(line));
    });

    test(`a connection that is being opened is given up (${transport})`, async () => {
      const mute = await proxy(() => s);
      mute.silent = true;
      const c = new Conflux({ baseUrl: mute.base, transport, timeouts: { connect: 0, request: 0 } });
      const ended = [c.ping(), c.transport.connect(), c.execStream('true').next()].map(call => call.then(() => null, e => e));
      await until(() => mute.connections, 'the connection');
      await c.dispose();
      for (const e of await Promise.all(ended)) assert.ok(e instanceof ConfluxError && ['DISCONNECTED', 'DISPOSED', 'CONNECTION_LOST'].includes(e.code), String(e));
      await mute.close();
    });
  }

  test('what was to end on the server ends there, though the client is disposed of at once (http)', async () => {
    const c = new Conflux({ baseUrl: s.base, transport: 'http' });
    const stop = new AbortController();
    const run = assert.rejects(c.exec(`echo $$ >${dir}/aborted; exec sleep 1000`, { executionId: 'aborted', signal: stop.signal }), /enough/);
    const stream = c.execStream('echo $$; exec sleep 1000');
    let pid;
    while (!pid) { const { value } = await stream.next(); if (value.type === 'stdout') pid = Number(value.data); }
    const other = await until(() => readFile(`${dir}/aborted`, 'utf8').then(Number, () => 0), 'the command');
    const early = c.execStream(': early; exec sleep 1000');
    await c.ping();
    early.cancel({ kill: true });
    stream.cancel({ kill: true });
    stop.abort(new Error('enough'));
    await c.dispose();
    await run;
    await gone(pid);
    await gone(other);
  });
});
