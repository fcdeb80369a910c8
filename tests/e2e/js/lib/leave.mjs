// A program that has one kind of call after the other under way, and disposes of each one's client. For each it prints how the call
// ended, and what kept the program from ending afterwards. Then it is to end by itself.
// Arguments: address of the server, transport, a folder with a large file.
import { existsSync, writeFileSync } from 'node:fs';
import { Conflux, ConfluxError } from '../../../../client/js/src/node/index.js';
import { until } from '../../lib/server.mjs';

const [baseUrl, transport, dir] = process.argv.slice(2);
let c, mark; // of the kind that is under way
const begun = () => until(() => existsSync(mark), 'the command');

// The rest of a stream after what shows that it runs.
async function rest(stream, reader = stream[Symbol.asyncIterator]()) {
  await reader.next();
  return { ended: (async () => { while (!(await reader.next()).done); })() };
}
const running = async ended => { await begun(); return { ended }; };
const lasting = () => `: >${mark}; exec sleep 1000`;
const readOf = async response => {
  const reader = (response.body ?? response).getReader();
  await reader.read();
  return { ended: (async () => { while (!(await reader.read()).done) await new Promise(setImmediate); })() };
};

const kinds = {
  exec: () => running(c.exec(lasting())),
  execWithId: () => running(c.exec(lasting(), { executionId: `${transport}-left` })),
  execStream: () => rest(c.execStream('echo begun; exec sleep 1000')),
  execStreamWithId: () => rest(c.execStream('echo begun; exec sleep 1000', { executionId: `${transport}-streamed` })),
  input: async () => {
    const stream = c.execStream('echo begun; exec sleep 1000', { stdin: 'open' });
    stream.write(new Uint8Array(20 << 20)); // more than anyone takes
    return rest(stream);
  },
  unread: async () => { const stream = c.execStream('head -c 8000000 /dev/zero | tr "\\0" y; exec sleep 1000'); await stream.next(); return { ended: until(() => stream.over, 'the end').then(() => { throw new ConfluxError('over', { code: 'DISPOSED' }); }) }; },
  result: async () => { c.exec(lasting(), { executionId: `${transport}-asked` }).catch(() => {}); await begun(); return { ended: c.execution(`${transport}-asked`).result() }; },
  logs: async () => rest((await c.startProcess('echo begun; exec sleep 1000')).logs()),
  wait: async () => ({ ended: (await c.startProcess('exec sleep 1000')).wait() }),
  waitForLog: async () => ({ ended: (await c.startProcess('exec sleep 1000')).waitForLog('never') }),
  events: async () => { await c.createSession(); return rest(c.events({ from: 0 })); },
  watch: () => rest(c.watch('.')),
  watchUsage: () => rest(c.watchUsage()),
  getRaw: async () => readOf(await c.getRaw(`${dir}/large`)),
  getRawUnread: async () => { await c.getRaw(`${dir}/large`); return {}; },
  getArchive: async () => readOf(await c.getArchive(dir)),
  putRaw: async () => {
    let asked;
    const pulled = new Promise(resolve => { asked = resolve; });
    const ended = c.putRaw(`${dir}/put`, new ReadableStream({ pull(controller) { controller.enqueue(new Uint8Array(1)); asked(); return new Promise(() => {}); } }));
    await pulled;
    return { ended };
  },
  fetchStream: async () => readOf(await c.transport.fetchStream('/api/execute/stream', { command: 'echo begun; exec sleep 1000' })),
  nothing: async () => { await c.ping(); return {}; },
};

// What keeps the program running, once it is no more than before or will not change.
async function held(before) {
  for (const end = Date.now() + 30000; ; await new Promise(setImmediate)) {
    const now = process.getActiveResourcesInfo();
    if (now.length <= before || Date.now() > end) return now.slice(before);
  }
}

for (const kind of Object.keys(kinds)) {
  const before = process.getActiveResourcesInfo().length;
  c = new Conflux({ baseUrl, transport });
  mark = `${dir}/${transport}-${kind}`;
  const { ended } = await kinds[kind]();
  const told = ended?.then(() => ({ ok: true }), e => ({ ours: e instanceof ConfluxError, name: e?.name, code: e?.code, message: e?.message }));
  await c.dispose();
  writeFileSync(1, `${JSON.stringify({ kind, told: (await told) ?? null, held: await held(before) })}\n`);
}
