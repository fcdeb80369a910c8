// Watching files on the real program, over HTTP and the multiplexed WebSocket (cloudflare-sandbox.md section 3.5).
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { mkdir, readdir, readlink, rename, rm, writeFile } from 'node:fs/promises';
import { get, post, serverPid, sse, start, until } from './lib/server.mjs';
import { connect } from './lib/mux.mjs';

// Over either door: a stream whose events are collected.
async function watchHttp(s, body) {
  const abort = new AbortController();
  const response = await fetch(s.base + '/api/watch', { method: 'POST', body: JSON.stringify(body), signal: abort.signal });
  const w = { status: response.status, events: [], ended: false, cancel: () => abort.abort() };
  if (response.status !== 200) return Object.assign(w, { body: await response.json() });
  (async () => { for await (const e of sse(response)) w.events.push(e.data); })().catch(() => {}).finally(() => { w.ended = true; });
  return w;
}
async function watchMux(s, m, body) {
  const w = { events: [], ended: false };
  const done = m.post('/api/watch', body, {}, e => w.events.push(e));
  done.then(r => { w.status = r.status; w.body = r.body; }, () => {}).finally(() => { w.ended = true; });
  w.cancel = () => m.send({ type: 'cancel', id: done.id });
  await until(() => w.events.length || w.ended, 'an answer');
  return w;
}
const has = (w, eventType, path) => until(() => w.events.find(e => e.eventType === eventType && e.path === path), `${eventType} ${path}`);

// The inotify instances that the server holds.
async function instances(s) {
  const pid = await serverPid(s);
  const links = await Promise.all((await readdir(`/proc/${pid}/fd`)).map(f => readlink(`/proc/${pid}/fd/${f}`).catch(() => '')));
  return links.filter(l => l.includes('inotify')).length;
}

describe('watch', () => {
  let s, m;
  before(async () => { s = await start(); m = await connect(s); });
  after(async () => { await m.close(); await s.stop(); });

  for (const door of ['http', 'mux']) {
    const watch = body => door === 'http' ? watchHttp(s, body) : watchMux(s, m, body);

    test(`${door}: watching comes first, then what happens, until cancelled`, async () => {
      const D = `${s.workspace}/${door}`;
      await mkdir(D);
      const w = await watch({ path: D });
      await until(() => w.events.length, 'watching');
      assert.deepEqual(Object.keys(w.events[0]), ['type', 'path', 'watchId']);
      assert.deepEqual([w.events[0].type, w.events[0].path], ['watching', D]);
      assert.match(w.events[0].watchId, /^watch-\d+-\d+$/);
      await mkdir(`${D}/a/b`, { recursive: true });
      await writeFile(`${D}/a/b/f`, 'x');
      await has(w, 'create', `${D}/a/b/f`);
      await rename(`${D}/a`, `${D}/z`);
      await has(w, 'move_to', `${D}/z`);
      await writeFile(`${D}/z/b/f`, 'y');
      const e = await has(w, 'modify', `${D}/z/b/f`);
      assert.deepEqual(Object.keys(e), ['type', 'eventType', 'path', 'isDirectory', 'timestamp']);
      assert.deepEqual([e.type, e.isDirectory], ['event', false]);
      await post(s, '/api/write', { path: `${D}/w`, content: 'x' });
      await has(w, 'modify', `${D}/w`);
      assert.ok(!w.events.some(x => x.path.includes('.conflux-')), 'our temporary files are not shown');
      w.cancel();
      await until(async () => w.ended && await instances(s) === 0, 'the watcher to end');
    });

    test(`${door}: a removed root ends the stream`, async () => {
      const D = `${s.workspace}/${door}-gone`;
      await mkdir(D);
      const w = await watch({ path: `${door}-gone` });
      await until(() => w.events.length, 'watching');
      await rm(D, { recursive: true });
      await until(() => w.ended, 'the end');
      assert.equal(w.events.at(-1).type, 'stopped');
      assert.equal(typeof w.events.at(-1).reason, 'string');
    });

    test(`${door}: refusals come before the stream`, async () => {
      for (const [body, status, code] of [[{}, 400, 'VALIDATION_FAILED'], [{ path: '/etc' }, 403, 'PERMISSION_DENIED'],
        [{ path: 'none' }, 404, 'FILE_NOT_FOUND'], [{ path: '.', include: ['[a]'] }, 400, 'VALIDATION_FAILED']]) {
        const w = await watch(body);
        assert.deepEqual([w.status, w.body.code, w.body.httpStatus], [status, code, status]);
      }
    });
  }

  test('a client that goes away leaves nothing behind', async () => {
    const gone = await connect(s);
    const all = await Promise.all(['**/a', '**/b', '**/c'].map(p => watchMux(s, gone, { path: '.', exclude: [p] })));
    all.push(await watchHttp(s, { path: '.', recursive: false }));
    await until(async () => await instances(s) === 4, 'four watchers');
    all[3].cancel();
    gone.ws.terminate();
    await until(async () => await instances(s) === 0, 'all watchers to end');
  });

  test('checks: unchanged, changed, resync', async () => {
    const D = `${s.workspace}/check`;
    await mkdir(D);
    const check = async since => (await post(s, '/api/watch/check', { path: D, since })).body;
    const a = await check();
    assert.deepEqual([a.success, a.status], [true, 'unchanged']);
    assert.match(a.version, /^watch-\d+-\d+:0$/);
    await writeFile(`${D}/f`, 'x');
    const b = await check(a.version);
    assert.equal(b.status, 'changed');
    const c = (await m.post('/api/watch/check', { path: D, since: b.version })).body;
    assert.deepEqual([c.status, c.version], ['unchanged', b.version]);
    assert.deepEqual([(await check('watch-99-1:0')).status, (await check('watch-99-1:0')).reason], ['resync', 'restarted']);
    assert.equal((await post(s, '/api/watch/check', { path: D, since: 'garbage' })).status, 400);
    assert.equal((await get(s, '/healthz')).status, 200);
  });
});
