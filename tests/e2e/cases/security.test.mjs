// Field cases, group "Auth and security". The whole matrix of routes, tokens and origins is in ../safety.test.mjs.
import assert from 'node:assert/strict';
import { OFF, group, openDoor, plainOwn } from '../lib/door.mjs';
import { connect } from '../lib/mux.mjs';
import { serverPid, until } from '../lib/server.mjs';

const TOKEN = 'field-case-token-31337';
for (const name of ['http', 'ws']) plainOwn('B114', `[${name}] what runs inside cannot drive the server without the token`, { env: { CONFLUX_TOKEN: TOKEN } }, async s => {
  const auth = { Authorization: 'Bearer ' + TOKEN };
  const d = name === 'http' ? await openDoor('http', s) : null, m = d ? null : await connect(s, { headers: auth });
  const exec = async command => (d ? await d.post('/api/execute', { command, sessionId: OFF }, { headers: auth }) : await m.post('/api/execute', { command, sessionId: OFF })).body;
  const inside = `exec 3<>/dev/tcp/127.0.0.1/${s.port}; printf 'POST /api/execute HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 100\\r\\n\\r\\n' >&3; head -n1 <&3`;
  assert.match((await exec(inside)).stdout, /^HTTP\/1\.1 401 /);
  const server = await serverPid(s), files = [s.child.pid, server].flatMap(pid => ['environ', 'cmdline', 'maps'].map(f => `/proc/${pid}/${f}`)).join(' ');
  const looked = await exec(`env; set; cat ${files} | tr '\\0' '\\n'`);
  assert.match(looked.stdout, /conflux-server/);
  assert.doesNotMatch(JSON.stringify(looked), new RegExp(TOKEN));
  if (d) { assert.equal((await d.get('/api/ping')).status, 401); d.close(); } else {
    await m.close();
    await assert.rejects(connect(s), e => e.status === 401);
  }
});

group('security', { args: ['--allow-origin', 'https://app.example'] }, ({ plain, both }) => {
  plain('B115', '[http] a web page of another origin is refused, with or without a preflight', async s => {
    const as = (Origin, method = 'POST') => fetch(s.base + '/api/execute', { method, headers: { Origin, 'Content-Type': 'text/plain', 'Access-Control-Request-Method': 'POST' }, ...method === 'POST' && { body: '{"command":"touch owned"}' } });
    for (const method of ['POST', 'OPTIONS']) assert.equal((await as('https://evil.example', method)).status, 403);
    assert.equal((await as('https://app.example')).status, 200);
  });
  plain('B115', '[ws] the same at the handshake', async s => {
    await assert.rejects(connect(s, { headers: { Origin: 'https://evil.example' } }), e => e.status === 403);
    for (const headers of [{}, { Origin: 'https://app.example' }]) await (await connect(s, { headers })).close();
  });

  both('B116', 'nothing of the server reaches a child: descriptors, environment, signals', async d => {
    const look = 'ls /proc/self/fd | tr "\\n" " "; echo; env; grep -E "^Sig(Blk|Ign)" /proc/self/status';
    const texts = [];
    for (const sessionId of [OFF, 'b116']) {
      texts.push((await d.exec(look, { sessionId })).body.stdout);
      const st = d.execStream(look, { sessionId });
      await st.done;
      texts.push(st.text());
      const id = `b116-${d.name}-${sessionId}`;
      await d.startProcess(id, look, { sessionId });
      await d.wait(id);
      texts.push((await d.get(`/api/process/${id}/logs`)).body.stdout);
    }
    texts.push((await d.post('/api/execute', { args: ['sh', '-c', look], sessionId: OFF })).body.stdout);
    for (const text of texts) {
      assert.equal(text.split('\n')[0].trim(), '0 1 2 3', 'ls sees 0 to 2 and its own folder handle');
      assert.doesNotMatch(text, /^CONFLUX_/m);
      assert.match(text, /^SigBlk:\s+0+$/m);
    }
  });
});

plainOwn('B121', 'clean closes leave no warning and no error in the log', {}, async s => {
  for (let i = 0; i < 100; i++) {
    const d = await openDoor(i % 2 ? 'http' : 'ws', s);
    assert.equal((await d.get('/api/ping')).status, 200);
    const st = d.execStream('echo x; sleep 0.01');
    if (i % 4 > 1) await st.done;
    else await st.opened;
    await d.close();
  }
  await until(async () => /conflux_websockets 0/.test(await (await fetch(s.base + '/metrics')).text()), 'all sockets to be closed');
  assert.doesNotMatch(s.stderr, /level=(warn|error)/);
});
