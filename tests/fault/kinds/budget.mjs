// More than the memory budget: large bodies that come at once or haltingly, and large answers that nobody takes for a
// while. Each is taken whole or refused by name, and what is refused has done nothing.
import { readFile, rm } from 'node:fs/promises';
import net from 'node:net';
import { connect } from '../../e2e/lib/mux.mjs';
import { until } from '../../e2e/lib/server.mjs';
import { Lost, OFF, sleep } from '../lib/load.mjs';

const BODIES = 16, SIZE = 3 << 20, REPLIES = 6;
const content = n => `${n}:`.repeat(SIZE / 4).slice(0, SIZE);

// A request of which one half comes, and the other later.
function halting(f, body, wait) {
  const text = Buffer.from(JSON.stringify(body)), { host, port } = f.s;
  const c = net.connect({ host, port });
  let got = '';
  c.setEncoding('latin1');
  c.on('data', d => { got += d; });
  const ended = new Promise(resolve => { c.on('error', () => {}); c.on('close', resolve); });
  c.write(`POST /api/write HTTP/1.1\r\nHost: ${host}:${port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n`);
  c.write(text.subarray(0, text.length >> 1));
  sleep(wait).then(() => { if (!c.destroyed) c.write(text.subarray(text.length >> 1)); });
  return ended.then(() => {
    const [, status, answer] = /^HTTP\/1\.1 (\d+) [^]*?\r\n\r\n([^]*)$/.exec(got) ?? [];
    try { return { status: Number(status), body: JSON.parse(answer) }; } catch { throw new Lost(); }
  });
}

async function write(f, file, n, wait) {
  const body = { path: file, content: content(n), sessionId: OFF }, begun = Date.now();
  let r = null;
  try { r = await (wait === null ? f.load.once('POST', '/api/write', body) : halting(f, body, wait)); } catch (e) { if (!(e instanceof Lost)) throw e; }
  const has = async () => { const t = await readFile(file, 'utf8').catch(() => ''); return t === '' ? 'nothing' : t === body.content ? 'all' : `${t.length} other bytes`; };
  let found;
  if (!r || r.body?.code === 'OPERATION_INTERRUPTED') await until(async () => ['nothing', 'all'].includes(found = await has()), 'a whole file', 10000).catch(() => f.load.bad(`a large body whose answer was lost left ${found}`));
  else if (r.status === 200) { if ((found = await has()) !== 'all') f.load.bad(`a large body was taken, and the file has ${found}`); }
  else if (!f.excuses(r.body, begun)) f.load.bad(`a large body: ${r.status} ${JSON.stringify(r.body).slice(0, 300)}`);
  else { f.load.refused++; if ((found = await has()) !== 'nothing') f.load.bad(`a large body was refused (${r.body.code}), and the file has ${found}`); }
  await rm(file, { force: true });
}

// Answers that wait for a client who does not read.
async function unread(f, rng) {
  const m = await connect(f.s).catch(() => null), begun = Date.now();
  if (!m) return;
  m.ws.on('error', () => {});
  m.ws.pause();
  const all = Array.from({ length: REPLIES }, () => m.post('/api/execute', { command: `head -c ${SIZE} /dev/zero | tr '\\0' x`, sessionId: OFF }).catch(() => null));
  await sleep(rng.int(200, 1500));
  m.ws.resume();
  for (const r of await Promise.all(all)) {
    if (!r) continue; // with its connection
    const said = r.body?.stdout, declared = r.body?.stdoutTruncated ? said?.length < SIZE : said?.length === SIZE;
    if (r.status === 200 ? !declared || /[^x]/.test(said) || r.body.stdoutBytes !== SIZE : !f.excuses(r.body ?? r, begun))
      f.load.bad(`a large answer: ${r.status} ${said?.length} of ${r.body?.stdoutBytes} bytes, ${JSON.stringify({ ...r, body: undefined }).slice(0, 300)}`);
  }
  m.ws.terminate();
}

export async function budget(f, dir, rng) {
  const all = [unread(f, rng)];
  for (let i = 0; i < BODIES; i++) all.push(write(f, `${dir}/large.${i}`, i, i % 2 ? rng.int(0, 1500) : null));
  await Promise.all(all);
}
