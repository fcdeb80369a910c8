// The events of the real program, over HTTP and the multiplexed WebSocket (conflux-additions.md, "Events").
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { del, get, post, serverPid, sse, start, until } from './lib/server.mjs';
import { connect } from './lib/mux.mjs';

// Over either door: a stream whose events are collected; each carries its id outside as well, a gap its last id.
async function followHttp(s, query = '', headers = {}) {
  const abort = new AbortController();
  const response = await fetch(`${s.base}/api/events${query}`, { headers, signal: abort.signal });
  const f = { status: response.status, events: [], ended: false, close: () => abort.abort() };
  if (response.status !== 200) return Object.assign(f, { body: await response.json() });
  (async () => {
    for await (const e of sse(response)) {
      assert.equal(e.id, String(e.data.id ?? e.data.next - 1));
      f.events.push(e.data);
    }
  })().catch(() => {}).finally(() => { f.ended = true; });
  return f;
}
async function followMux(s, query = '', headers = {}) {
  const m = await connect(s);
  const f = { events: [], ended: false, close: () => m.ws.terminate() };
  const done = m.request('GET', '/api/events' + query, undefined, { headers }, (e, msg) => {
    assert.equal(msg.eventId, String(e.id ?? e.next - 1));
    f.events.push(e);
  });
  done.then(r => { f.status = r.status; f.body = r.body; }, () => {}).finally(() => { f.ended = true; });
  await m.request('GET', '/api/ping'); // requests are begun in order
  return f;
}
const doors = { http: followHttp, mux: followMux };
const of = (f, key, value) => f.events.filter(e => e[key] === value);
const rising = events => events.every((e, i) => i === 0 || e.id > events[i - 1].id);

for (const [door, follow] of Object.entries(doors)) {
  describe(`events over ${door}`, () => {
    let s, f;
    before(async () => { s = await start(); f = await follow(s); });
    after(async () => { f.close(); await s.stop(); });

    test('a process starts, becomes ready and ends', async () => {
      await post(s, '/api/process/start', { command: 'echo is-up >&2; read x; exit 3', processId: 'p', sessionId: 'own', stdin: 'open' });
      await get(s, '/api/process/p/wait?for=log&pattern=is-up');
      await post(s, '/api/process/p/stdin', { data: 'x\n', encoding: 'text' });
      await until(() => of(f, 'type', 'process.exited').length, 'the end');
      const mine = of(f, 'processId', 'p');
      assert.deepEqual(mine.map(e => e.type), ['process.started', 'process.ready', 'process.exited']);
      const { pid, executionId } = mine[0];
      assert.ok(pid > 0);
      for (const e of mine) {
        assert.deepEqual([e.pid, e.executionId, e.sessionId], [pid, executionId, 'own']);
        assert.equal(new Date(e.timestamp).toISOString(), e.timestamp);
      }
      assert.equal(mine[1].stream, 'stderr');
      assert.deepEqual([mine[2].exitCode, mine[2].outcome, 'signal' in mine[2]], [3, 'exited', false]);
      assert.ok(rising(f.events));
    });

    test('a killed one says its signal; one that cannot start says that it ended', async () => {
      await post(s, '/api/process/start', { command: 'sleep 1000', processId: 'k' });
      await del(s, '/api/process/k');
      await post(s, '/api/process/start', { args: ['/no/such/program'], processId: 'none', sessionId: '__DISABLE_SESSION__' });
      await until(() => of(f, 'processId', 'k').length === 2 && of(f, 'processId', 'none').length === 1, 'the ends');
      assert.deepEqual([of(f, 'processId', 'k')[1].signal, of(f, 'processId', 'k')[1].exitCode], ['SIGTERM', 143]);
      const none = of(f, 'processId', 'none')[0];
      assert.deepEqual([none.type, 'outcome' in none, 'pid' in none], ['process.exited', false, false]);
    });

    test('executions with an id to come back for, and sessions', async () => {
      await post(s, '/api/execute', { command: 'true', sessionId: 'shell' });
      await post(s, '/api/execute', { command: 'exit 4', executionId: 'mine', sessionId: '__DISABLE_SESSION__' });
      const later = await post(s, '/api/execute', { command: 'sleep 0.2' }, { Prefer: 'respond-async' });
      assert.equal(later.status, 202);
      await until(() => of(f, 'executionId', later.body.executionId).length, 'its end');
      assert.deepEqual(of(f, 'type', 'execution.ended').map(e => e.executionId), ['mine', later.body.executionId]);
      assert.equal(of(f, 'executionId', 'mine')[0].exitCode, 4);
      await post(s, '/api/session/delete', { sessionId: 'shell' });
      await until(() => of(f, 'sessionId', 'shell').length === 2, 'session.ended');
      assert.deepEqual(of(f, 'sessionId', 'shell').map(e => e.type), ['session.created', 'session.ended']);
    });

    test('from: exclusive, from the first one, by header, from now on', async () => {
      const ids = f.events.map(e => e.id), mid = ids[2];
      for (const [query, headers, want] of [[`?from=${mid}`, {}, ids.filter(i => i > mid)], ['?from=0', {}, ids],
        ['?from=0', { 'Last-Event-ID': String(mid) }, ids.filter(i => i > mid)]]) {
        const g = await follow(s, query, headers);
        await until(() => g.events.length >= want.length, 'what was missed');
        assert.deepEqual(g.events.map(e => e.id), want);
        g.close();
      }
      const old = await follow(s, '?from=1'); // of another log, or not kept any more
      await until(() => old.events.length > ids.length, 'all of it');
      assert.deepEqual(old.events[0], { type: 'events.dropped', from: 1, next: ids[0] });
      old.close();
      const now = await follow(s);
      const future = await follow(s, `?from=${ids.at(-1) + 1000}`);
      await post(s, '/api/execute', { command: 'true', executionId: 'now', sessionId: '__DISABLE_SESSION__' });
      await until(() => now.events.length, 'the new one');
      assert.deepEqual(now.events.map(e => e.executionId), ['now']);
      assert.deepEqual(future.events, []);
      now.close();
      future.close();
    });

    test('what is wrong is refused by name', async () => {
      for (const [query, headers, field] of [['?from=-1', {}, 'from'], ['?from=x', {}, 'from'], ['?since=1', {}, 'since'],
        ['', { 'Last-Event-ID': '1-2' }, 'Last-Event-ID']]) {
        const g = await follow(s, query, headers);
        await until(() => g.status, 'the answer');
        assert.deepEqual([g.status, g.body.code], [400, 'VALIDATION_FAILED']);
        assert.match(JSON.stringify(g.body), new RegExp(field));
        g.close();
      }
    });
  });

  test(`${door}: a subscriber keeps nobody from leaving, and comes back after a handover`, async () => {
    const s = await start();
    const f = await follow(s);
    await post(s, '/api/execute', { command: 'true', executionId: 'a', sessionId: '__DISABLE_SESSION__' });
    await until(() => f.events.length, 'an event');
    const first = await serverPid(s);
    s.child.kill('SIGHUP');
    await until(() => f.ended, 'the end of the stream');
    await until(async () => { const now = await serverPid(s); return now && now !== first; }, 'the next server');
    await until(async () => (await get(s, '/healthz').catch(() => ({}))).status === 200, 'its answer');
    const g = await follow(s, `?from=${f.events[0].id}`);
    await until(() => g.events.length, 'server.restarted');
    assert.deepEqual(g.events.map(e => [e.id, e.type]), [[f.events[0].id + 1, 'server.restarted']]);
    await s.stop();
    assert.deepEqual(s.exited, { code: 0, signal: null });
    assert.ok(g.ended, 'the stream has ended with the server');
    g.close();
  });

  // A subscriber that comes back with the last id it saw, while the server is killed under 50 processes.
  test(`${door}: kill -9 loses and repeats no event`, async () => {
    const s = await start();
    const seen = [];
    let f, done = false;
    const keepFollowing = (async () => {
      let from = 0;
      while (!done) {
        f = await follow(s, `?from=${from}`).catch(() => null);
        if (!f) { await new Promise(r => setTimeout(r, 10)); continue; }
        await until(() => f.ended || done, 'the stream to end', 120000);
        f.close();
        seen.push(...f.events);
        from = seen.at(-1)?.id ?? 0;
        f = null;
      }
    })();
    const startOne = async i => {
      const body = { command: `sleep 0.${i % 10}; exit ${i}`, processId: `p${i}`, executionId: `e${i}`, sessionId: '__DISABLE_SESSION__' };
      await until(async () => (await post(s, '/api/process/start', body).catch(() => ({}))).status === 200, `p${i}`);
    };
    const kill = async () => {
      const pid = await until(() => serverPid(s), 'the server');
      process.kill(pid, 'SIGKILL');
      await until(async () => { const now = await serverPid(s); return now && now !== pid; }, 'another server');
      await until(async () => (await get(s, '/healthz').catch(() => ({}))).status === 200, 'its answer');
    };
    for (let i = 0; i < 50; i++) {
      await startOne(i);
      if (i % 15 === 14) await kill();
    }
    const all = () => [...seen, ...(f?.events ?? [])];
    await until(() => all().filter(e => e.type === 'process.exited').length >= 50, 'all ends', 60000);
    done = true;
    await keepFollowing;
    assert.ok(rising(seen), 'ids increase');
    assert.deepEqual(seen.filter(e => e.type === 'events.dropped'), []);
    assert.equal(seen.filter(e => e.type === 'server.restarted').length, 3);
    for (let i = 0; i < 50; i++) {
      const mine = seen.filter(e => e.processId === `p${i}`);
      assert.deepEqual(mine.map(e => e.type), ['process.started', 'process.exited'], `p${i}`);
      assert.deepEqual([mine[1].exitCode, mine[1].outcome], [i, 'exited']);
    }
    const again = await follow(s, '?from=0');
    await until(() => again.events.length >= seen.length, 'all of it once more');
    assert.deepEqual(again.events, seen, 'what was seen is what is kept');
    again.close();
    await s.stop();
  });
}
