// Field cases, group "Streaming": what a stream brings, over lost connections too.
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { ASAN, OFF, full, group, memory, openDoor, plainOwn, times } from '../lib/door.mjs';
import { serverPid, until } from '../lib/server.mjs';

group('streaming', {}, ({ both, plain }) => {
  both('B029', 'a stream that is cut: the command runs on, result and output are there by its id', async d => {
    const executionId = 'b029-' + d.name, n = full(200, 10);
    const lost = await d.another();
    const st = lost.execStream(`for i in $(seq 1 ${n}); do echo $i; sleep 0.1; done; exit 7`, { executionId });
    await st.sees('2\n');
    st.cut();
    assert.equal((await st.done).lost, true);
    await lost.close();
    await until(async () => (await d.get(`/api/execution/${executionId}?waitMs=30000`)).status === 200, 'the end', 60000);
    if (full(true, false)) await new Promise(r => setTimeout(r, 180000)); // an attach by id after minutes
    const all = times(n, i => `${i + 1}\n`).join('');
    const r = (await d.get('/api/execution/' + executionId)).body;
    assert.deepEqual([r.exitCode, r.outcome, r.stdout], [7, 'exited', all]);
    const again = d.stream(`/api/execution/${executionId}/stream?from=0`);
    await again.done;
    assert.deepEqual([again.text(), again.last().type, again.last().exitCode], [all, 'complete', 7]);
  });

  both('B030', 'cut again and again, attached with the last offset: no gap, no duplicate, the right code', async d => {
    const executionId = 'b030-' + d.name;
    let from = '0-0', cuts = 0, last;
    const got = { stdout: '', stderr: '' }, want = w => times(400, i => `${w} ${i + 1} é\n`).join('');
    const start = { command: 'for i in $(seq 1 400); do echo out $i é; echo err $i é >&2; [ $((i % 4)) != 0 ] || sleep 0.012; done; exit 9', executionId, sessionId: OFF };
    for (let round = 0; !last; round++) {
      const c = await d.another();
      const by = round % 3; // by the request, again and again; by the id; by the header of a browser that reconnects
      const st = by === 0 ? c.stream('/api/execute/stream', { ...start, from }) : by === 1 ? c.stream(`/api/execution/${executionId}/stream?from=${from}`)
        : c.stream(`/api/execution/${executionId}/stream?from=0`, undefined, { headers: { 'Last-Event-ID': from } });
      await until(() => st.events.length > 12 || st.last()?.type === 'complete', 'some events');
      st.cut();
      await st.done;
      st.events.forEach((e, i) => {
        if (e.data !== undefined) {
          assert.equal(e.offset, Buffer.byteLength(got[e.type]), 'each event begins where the one before it ended');
          got[e.type] += e.data;
        }
        if (st.ids[i]) from = st.ids[i];
        if (e.type === 'complete') last = e;
      });
      cuts++;
      await c.close();
    }
    assert.deepEqual([got.stdout, got.stderr, last.exitCode], [want('out'), want('err'), 9]);
    assert.ok(cuts > 3);
  });

  both('B031', 'an offset beyond the end: nothing; a malformed one: 400', async d => {
    const id = 'b031-' + d.name;
    await d.startProcess(id, 'printf 0123456789', { executionId: 'x' + id });
    await d.wait(id);
    for (const base of ['/api/process/' + id, '/api/execution/x' + id]) {
      const log = from => d.get(`${base}/logs?stream=stdout&from=${from}&limit=4`);
      const l = (await log(3)).body;
      assert.deepEqual([l.data, l.from, l.next, l.total, l.dropped, l.ended], ['3456', 3, 7, 10, 0, true]);
      const beyond = (await log(110)).body;
      assert.deepEqual([beyond.data, beyond.total, beyond.dropped], ['', 10, 0]);
      for (const bad of ['-1', 'x', '', '1.5', '99999999999999999999']) assert.equal((await log(bad)).status, 400, bad);
      const st = d.stream(`${base}/stream?from=4`);
      await st.done;
      const i = st.events.findIndex(e => e.type === 'stdout');
      assert.deepEqual([st.events[i].data, st.events[i].offset, st.ids[i]], ['456789', 4, '10-4']);
      const none = d.stream(`${base}/stream?from=110`);
      await none.done;
      assert.deepEqual([none.text(), none.last().exitCode], ['', 0]);
      const bad = d.stream(`${base}/stream?from=-1`);
      assert.equal((await bad.done).status, 400);
    }
  });

  both('B033', 'output in small pieces is neither kept beyond the limit nor copied again and again', async (d, s) => {
    const server = await serverPid(s), size = full(200e6, 20e6), limit = 1 << 20;
    await writeFile(`/proc/${server}/clear_refs`, '5').catch(() => {}); // the peak begins anew
    const before = await memory(server, 'VmHWM');
    const r = (await d.exec(`head -c ${size} /dev/zero | tr '\\0' x | dd bs=100 iflag=fullblock status=none`, { maxOutputBytes: limit })).body;
    assert.deepEqual([r.exitCode, r.stdoutBytes, r.stdout.length, r.stdoutTruncated], [0, size, limit, true]);
    const grown = await memory(server, 'VmHWM') - before;
    if (!ASAN) assert.ok(grown <= 1 + 32, `${grown} MiB more`);
  });

  both('B035', 'what a process was and printed can be read when its session is gone', async d => {
    const sessionId = 'b035-' + d.name, ended = sessionId + '-ended', killed = sessionId + '-killed', call = sessionId + '-call';
    await d.startProcess(ended, 'echo out; echo err >&2; exit 3', { sessionId });
    await d.startProcess(killed, 'echo out; exec sleep 1000', { sessionId });
    await d.wait(ended);
    await d.logged(killed, 'out');
    await d.exec('echo result', { sessionId, executionId: call });
    assert.equal((await d.post('/api/session/delete', { sessionId })).status, 200);
    await d.wait(killed);
    const logs = async id => { const l = (await d.get(`/api/process/${id}/logs`)).body; return [l.stdout, l.stderr]; };
    const p = await d.process(ended);
    assert.deepEqual([p.status, p.exitCode, ...await logs(ended)], ['failed', 3, 'out\n', 'err\n']);
    assert.deepEqual([(await d.process(killed)).status, ...await logs(killed)], ['killed', 'out\n', '']);
    const again = (await d.get('/api/execution/' + call)).body;
    assert.deepEqual([again.stdout, again.exitCode], ['result', 0]);
  });

  both('B082', 'output that is no text: base64 is exact, text is flagged', async d => {
    const command = "printf '\\xff\\x00\\xfe'";
    const t = (await d.exec(command)).body;
    assert.equal(t.lossy, true);
    assert.match(t.stdout, /\ufffd/);
    const exact = Buffer.from([0xff, 0, 0xfe]).toString('base64');
    assert.equal((await d.exec(command, { encoding: 'base64' })).body.stdout, exact);
    const st = d.execStream(command, { encoding: 'base64' });
    await st.done;
    assert.equal(Buffer.concat(st.events.filter(e => e.type === 'stdout').map(e => Buffer.from(e.data, 'base64'))).toString('base64'), exact);
  });

  const ECHO = 'while IFS= read -r line; do printf "{\\"got\\":%s}\\n" "$line"; done';
  plain('B124', '[ws] a JSON-lines echo over one stream: each turn whole, no echo, no CR', async s => {
    const d = await openDoor('ws', s), n = full(1000, 200);
    const st = d.execStream(ECHO, { stdin: 'open' });
    await st.opened;
    let want = '';
    for (let i = 0; i < n; i++) {
      d.m.send({ type: 'stdin', id: st.id, data: `{"n":${i}}\n` });
      want += `{"got":{"n":${i}}}\n`;
      await until(() => st.text().length >= want.length, 'the answer');
    }
    d.m.send({ type: 'stdin', id: st.id, eof: true });
    await st.done;
    assert.deepEqual([st.text(), st.last().exitCode], [want, 0]);
    await d.close();
  });
  plain('B124', '[http] the same with a process, its stdin and its stream', async s => {
    const d = await openDoor('http', s), n = full(1000, 50);
    await d.startProcess('b124', ECHO, { stdin: 'open' });
    const st = d.stream('/api/process/b124/stream');
    let want = '';
    for (let i = 0; i < n; i++) {
      assert.equal((await d.post('/api/process/b124/stdin', { data: `{"n":${i}}\n` })).status, 200);
      want += `{"got":{"n":${i}}}\n`;
      await until(() => st.text().length >= want.length, 'the answer');
    }
    assert.equal((await d.post('/api/process/b124/stdin', { eof: true })).status, 200);
    await st.done;
    assert.deepEqual([st.text(), st.last().exitCode], [want, 0]);
    await d.close();
  });
});
