// Heads that come slowly, by the thousand. Half of them never come to their end; the others are answered, and so is
// everybody else meanwhile.
import net from 'node:net';
import { until } from '../../e2e/lib/server.mjs';
import { sleep } from '../lib/load.mjs';

const CROWD = 2000, HEADER_TIMEOUT_MS = 10000;
const BEGIN = 'GET /api/ping HT', REST = ['TP/1.1\r\nHo', 'st: 127.0.0.1\r\n', 'Connection: close\r\nX-Pad: ', 'x\r\n\r\n'];

function dial({ host, port }) {
  const c = net.connect({ host, port });
  Object.assign(c, { got: '', born: Date.now() });
  c.setEncoding('latin1');
  c.on('error', () => {});
  c.on('data', d => { c.got += d; });
  const ready = new Promise(r => { c.on('connect', r); c.on('close', () => { c.over = Date.now(); r(); }); });
  c.write(BEGIN);
  return { c, ready };
}

// What came on a connection that has ended; null: what should have.
function wrong(c, excused) {
  const [, status, body] = /^HTTP\/1\.1 (\d+) [^]*?\r\n\r\n([^]*)$/.exec(c.got) ?? [];
  if (status === '200') { try { return JSON.parse(body).success ? null : body; } catch { return `a body that is no JSON: ${body}`; } }
  const late = (c.over ?? Date.now()) - c.born >= HEADER_TIMEOUT_MS;
  if (late || excused) return c.got && !/^HTTP\/1\.1 (408|429|500) /.test(c.got) ? c.got.slice(0, 200) : null;
  return c.got ? c.got.slice(0, 200) : `cut without an answer after ${(c.over ?? Date.now()) - c.born} ms`;
}

export async function heads(f, dir, rng) {
  const began = Date.now(), crowd = [];
  try {
    for (let i = 0; i < CROWD; i++) {
      const { c, ready } = dial(f.s);
      crowd.push(c);
      if (i % 100 === 99) await ready;
    }
    await f.answer();
    const going = crowd.filter((_, i) => i % 2);
    for (const piece of REST) {
      await sleep(rng.int(0, 200));
      for (const c of going) if (!c.destroyed) c.write(piece);
    }
    await until(() => going.every(c => c.over), 'an end of each slow head', 60000).catch(e => f.load.bad(e.message));
    const bad = going.map(c => wrong(c, f.since(began, 'kill', 'hup', 'emfile'))).filter(Boolean);
    if (bad.length) f.load.bad(`${bad.length} slow heads: ${bad[0]}`);
  } finally { for (const c of crowd) c.resetAndDestroy(); }
}
