// Field cases, group "Limits, timeouts, isolation".
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import net from 'node:net';
import { cpus } from 'node:os';
import { OFF, full, group, openDoor, own, plainOwn, times } from '../lib/door.mjs';
import { until } from '../lib/server.mjs';

group('limits', {}, ({ both, plain }) => {
  plain('B106', '[ws] the defaults can be asked for', async s => {
    const d = await openDoor('ws', s);
    d.m.send({ type: 'hello' });
    const h = await until(() => d.m.stray.find(m => m.type === 'hello'), 'hello');
    assert.deepEqual([h.pingSeconds, typeof h.limits], [15, 'object']);
    assert.ok(Object.values(h.limits).every(v => typeof v === 'number'), JSON.stringify(h.limits));
    await d.close();
  });

  both('B104', 'a limit that is not enforced is refused by its name, and nothing is run', async (d, s) => {
    const ways = { limits: [{ memoryMb: 64 }, { cpuShares: 1 }, { maxProcesses: 1 }, { nofile: 8 }, { fsize: 1 }], isolation: ['strict'] };
    const routes = ['/api/execute', '/api/execute/stream', '/api/process/start'], ran = s.workspace + '/b104-' + d.name;
    for (const [field, values] of Object.entries(ways))
      for (const value of values)
        for (const sessionId of [OFF, 'b104'])
          for (const path of routes) {
            const r = await d.post(path, { command: `touch ${ran}`, sessionId, [field]: value });
            assert.deepEqual([r.status, r.body.code], [501, 'NOT_SUPPORTED'], JSON.stringify(r.body));
            assert.match(r.body.message, new RegExp(field));
          }
    assert.equal((await d.exec(`test -e ${ran}`)).body.exitCode, 1);
    const r = await d.exec('sleep 1000', { timeoutMs: 100 }); // the one that is there
    assert.deepEqual([r.body.exitCode, r.body.outcome], [124, 'timeout']);
  });

  both('B109', 'output over the limit: what fits, flags and counts, and the exit code', async d => {
    const total = full(104857600, 20 << 20), limit = 1 << 20;
    for (const sessionId of [OFF, 'b109']) {
      const r = (await d.exec(`head -c ${total} /dev/zero | tr '\\0' x; (exit 3)`, { maxOutputBytes: limit, sessionId })).body;
      assert.deepEqual([r.exitCode, r.outcome, r.stdoutTruncated, r.stderrTruncated, r.stdoutBytes, r.stdout.length], [3, 'exited', true, false, total, limit]);
    }
  });

  both('B110', 'what was cut is there by offset', async d => {
    const executionId = 'b110-' + d.name, limit = 1000, n = 300000;
    const want = times(n, i => `${i + 1}\n`).join('');
    const r = (await d.exec(`seq 1 ${n}`, { maxOutputBytes: limit, executionId })).body;
    assert.deepEqual([r.stdoutTruncated, r.stdout], [true, want.slice(0, limit)]);
    let got = r.stdout;
    for (let from = limit; from < want.length;) {
      const l = (await d.get(`/api/execution/${executionId}/logs?stream=stdout&from=${from}&limit=500000`)).body;
      assert.deepEqual([l.from, l.dropped, l.total], [from, 0, want.length]);
      got += l.data;
      assert.ok(l.next > from);
      from = l.next;
    }
    assert.ok(got === want);
    const st = d.stream(`/api/execution/${executionId}/stream?from=${limit}-0`);
    await st.done;
    assert.ok(st.text() === want.slice(limit));
  });

  both('B112', 'the machine is busy: pings and commands are answered', async d => {
    const hogs = times(4 * cpus().length + 1, i => `b112-${d.name}-${i}`), size = full(1e9, 2e8);
    const memory = `exec perl -e 'my $m = "x" x ${size}; for (;;) { for (my $i = 0; $i < ${size}; $i += 4096) { substr($m, $i, 1) = "y" } }'`;
    await Promise.all(hogs.map((id, i) => d.startProcess(id, i ? 'while :; do :; done' : memory)));
    try {
      for (let i = 0; i < 20; i++) {
        assert.equal((await d.get('/api/ping')).status, 200);
        assert.equal((await d.exec('true')).body.exitCode, 0);
      }
    } finally { await Promise.all(hogs.map(id => d.del(`/api/process/${id}?signal=KILL`))); }
  });

  both('B113', 'many slow calls at once do not hold up a short one', async (d, s) => {
    const gate = `${s.workspace}/b113-${d.name}`;
    let ended = 0;
    const slow = times(100, () => d.exec(`until [ -e ${gate} ]; do sleep ${full(0.1, 0.5)}; done`).then(r => { ended++; return r; }));
    assert.equal((await d.exec('echo short')).body.stdout, 'short\n');
    assert.equal(ended, 0);
    await d.exec('touch ' + gate);
    for (const r of slow) assert.equal((await r).body.exitCode, 0);
  });
});

own('B106', 'a timeout of 0 is none, whatever the default', { args: ['--command-timeout', '200'] }, async d => {
  const seconds = full(70, 0.8);
  for (const sessionId of [OFF, 'b106']) {
    const short = await d.exec('sleep 1000', { sessionId });
    assert.equal((sessionId === OFF ? short.body : short.body.context).timedOut, true, 'the default is in force');
  }
  assert.equal((await d.exec(`sleep ${seconds}; echo all`, { timeoutMs: 60000 + seconds * 1000 })).body.stdout, 'all\n');
});
own('B106', 'no timeout by default, and 0 is none', {}, async d => {
  const seconds = full(70, 0.5);
  const all = await Promise.all([undefined, 0].map(timeoutMs => d.exec(`sleep ${seconds}; echo all`, { timeoutMs })));
  for (const r of all) assert.equal(r.body.stdout, 'all\n');
});

own('B107', 'answered at once and asked for again: a long command through a proxy that cuts silent connections', {}, async (d, s) => {
  const idle = full(60000, 1500), seconds = full(150, 4);
  const proxy = net.createServer(a => {
    const b = net.connect(s.port, '127.0.0.1');
    let timer;
    const cut = () => { clearTimeout(timer); a.destroy(); b.destroy(); };
    const touch = () => { clearTimeout(timer); timer = setTimeout(cut, idle); };
    touch();
    for (const [x, y] of [[a, b], [b, a]]) { x.on('data', t => { touch(); y.write(t); }); x.on('close', cut); x.on('error', () => {}); }
  }).listen(0, '127.0.0.1').unref();
  await new Promise(f => proxy.once('listening', f));
  const port = proxy.address().port;
  const p = await openDoor(d.name, { ...s, base: 'http://127.0.0.1:' + port, ws: 'ws://127.0.0.1:' + port });
  const request = { command: `sleep ${seconds}; echo through`, sessionId: OFF, executionId: 'b107' };
  if (d.name === 'http') {
    const first = await p.post('/api/execute', request, { headers: { Prefer: 'respond-async' } });
    assert.deepEqual([first.status, first.body.executionId, first.headers.location], [202, 'b107', '/api/execution/b107']);
  } else {
    const first = await p.post('/api/execute', { ...request, detachAfterMs: 0 });
    assert.deepEqual([first.body.detached, first.body.executionId], [true, 'b107']);
  }
  const r = await until(async () => { const q = await p.get(`/api/execution/b107?waitMs=${Math.floor(idle / 3)}`); return q.status === 200 && q; }, 'the result', 300000);
  assert.equal(r.body.stdout, 'through\n');
  await p.close();
  proxy.close();
});

plainOwn('B107', 'detachAfterMs hands out the execution on either door', {}, async s => {
  for (const name of ['http', 'ws']) {
    const d = await openDoor(name, s);
    const r = (await d.exec('sleep 0.5; echo end', { detachAfterMs: 50 })).body;
    assert.equal(r.detached, true);
    assert.equal((await d.get(`/api/execution/${r.executionId}?waitMs=20000`)).body.stdout, 'end\n');
    await d.close();
  }
});

own('B111', 'logs have a budget: the newest is kept, what was dropped is counted', { args: ['--log-budget', String(full(64 << 20, 1 << 20))] }, async (d, s) => {
  const cap = full(64 << 20, 1 << 20), lines = full(500e6, 5e6), size = 11; // bytes of a line
  await d.startProcess('b111', `seq -f 'l%09.0f' 1 ${lines}`);
  await until(async () => (await d.wait('b111')).status === 200, 'the end', 600000);
  const used = Number(execFileSync('du', ['-s', '-B1', s.dir + '/state'], { encoding: 'utf8' }).split('\t')[0]);
  assert.ok(used < 2 * cap + (8 << 20), `${used} bytes on the disk`);
  const from = async at => (await d.get(`/api/process/b111/logs?stream=stdout&from=${at}`)).body;
  const l = await from(0);
  const want = i => `l${String(i).padStart(9, '0')}\n`;
  assert.deepEqual([l.total, l.from, l.dropped + l.data.length], [lines * size, 0, l.next]);
  assert.ok(l.dropped > 0 && l.dropped >= l.total - cap - (1 << 20), `${l.dropped} dropped`);
  const first = Math.ceil(l.dropped / size);
  assert.ok(l.data.includes(want(first + 2)), 'the data begin where the dropped bytes end');
  let kept = l.data.length;
  for (let at = l.next; at < l.total;) {
    const more = await from(at);
    assert.deepEqual([more.dropped, more.data.length > 0, more.next], [0, true, at + more.data.length]);
    kept += more.data.length;
    at = more.next;
  }
  assert.equal(l.dropped + kept, l.total);
  assert.equal((await from(l.total - size)).data, want(lines));
  const p = await d.process('b111');
  assert.equal(p.dropped.stdout, l.dropped);
  const st = d.stream('/api/process/b111/stream?from=0');
  await st.done;
  const told = st.events.filter(e => e.type === 'dropped').reduce((n, e) => n + e.bytes, 0);
  assert.equal(told + st.text().length, lines * size, 'received and declared dropped is all that was written');
});
