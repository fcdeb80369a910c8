// The HTTP side as strangers see it: heads, bodies, crowds, proxies in front.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, readdir, stat, writeFile } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import { serverPid, start, until } from '../lib/server.mjs';
import { connect } from '../lib/mux.mjs';
import { ASAN, OFF, held } from '../lib/door.mjs';

const dial = async s => {
  const c = net.connect({ port: Number(s.port), host: '127.0.0.1', noDelay: true });
  c.got = '';
  c.over = false;
  c.on('data', d => { c.got += d.toString('latin1'); });
  c.on('error', () => {});
  c.on('close', () => { c.over = true; });
  c.on('end', () => { c.over = true; });
  await once(c, 'connect');
  return c;
};
const ended = c => until(() => c.over, 'the end of the connection');
// What a connection says to these bytes until it ends, after its client has shut its side down.
const talk = async (s, ...pieces) => {
  const c = await dial(s);
  for (const p of pieces) await new Promise(resolve => c.write(p, 'latin1', resolve));
  c.end();
  await ended(c);
  return c.got;
};
const statuses = text => [...text.matchAll(/HTTP\/1\.1 (\d+) /g)].map(m => Number(m[1]));
const HOST = 'Host: 127.0.0.1\r\n';
const PING = `GET /api/ping HTTP/1.1\r\n${HOST}\r\n`;
const execute = body => `POST /api/execute HTTP/1.1\r\n${HOST}Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
const put = (s, name, framing) => `PUT /api/files/raw?path=${encodeURIComponent(path.join(s.dir, name))} HTTP/1.1\r\n${HOST}${framing}\r\n\r\n`;
const state = async pid => ({ fds: (await readdir(`/proc/${pid}/fd`)).length, threads: (await readdir(`/proc/${pid}/task`)).length });

test('X02: blanks before a head, or in its place, are no other request, and never one of another client', async () => {
  const token = 'a-secret-of-somebody';
  const s = await start({ env: { CONFLUX_TOKEN: token } });
  const theirs = `GET /api/processes HTTP/1.1\r\n${HOST}Authorization: Bearer ${token}\r\n\r\n`;
  const blanks = ['\r\n\r\n', '   \r\n\r\n', ' \t\r\n\r\n', '\n\n', `${' '.repeat(200)}\r\n\r\n`];
  try {
    for (const b of blanks) {
      for (let i = 0; i < 16; i++) assert.deepEqual(statuses(await talk(s, theirs + theirs)), [404, 404]);
      const got = await talk(s, b);
      assert.deepEqual(statuses(got), /^[\r\n]*$/.test(b) && b !== '\n\n' ? [] : [400], JSON.stringify(b));
    }
    const before = `\r\n\r\n${execute('{}').replace(HOST, HOST + `Authorization: Bearer ${token}\r\n`)}`;
    assert.deepEqual(statuses(await talk(s, before)), [400]); // one answer: "{}" names no command
    assert.deepEqual(statuses(await talk(s, ...before)), [400]);
  } finally { await s.stop(); }
});

test('X33: a chunked body with trailers keeps its connection; every answer has a Date; 405 says Allow', async () => {
  const s = await start();
  const body = JSON.stringify({ command: 'echo chunked', sessionId: OFF });
  const chunked = `POST /api/execute HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\nX-Sum: 1\r\n\r\n`;
  try {
    const got = await talk(s, chunked + PING);
    assert.deepEqual(statuses(got), [200, 200]);
    assert.match(got, /chunked\\n/);
    for (const r of [PING, `DELETE /api/ping HTTP/1.1\r\n${HOST}\r\n`, `GET /none HTTP/1.1\r\n${HOST}\r\n`, 'nonsense\r\n\r\n', `OPTIONS * HTTP/1.1\r\n${HOST}\r\n`])
      assert.match(await talk(s, r), /\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n/, r);
    assert.match(await talk(s, `DELETE /api/ping HTTP/1.1\r\n${HOST}\r\n`), /^HTTP\/1.1 405 [^]*\r\nAllow: [A-Z, ]*GET/);
  } finally { await s.stop(); }
});

test('X148: extensions of many chunks are ignored, one that does not end is refused', async () => {
  const s = await start();
  try {
    for (const [body, status] of [['1;' + 'e'.repeat(80) + '\r\nx\r\n', 200], ['1;' + 'e'.repeat(17000) + '\r\nx\r\n', 400]]) {
      const c = await dial(s);
      c.write(put(s, 'chunks', 'Transfer-Encoding: chunked\r\nConnection: close') + body.repeat(400) + '0\r\n\r\n');
      await ended(c);
      assert.deepEqual(statuses(c.got), [status]);
    }
    assert.equal((await stat(path.join(s.dir, 'chunks'))).size, 400);
  } finally { await s.stop(); }
});

test('X148: chunk extensions are ignored, a malformed chunk is answered with 400', async () => {
  const s = await start();
  const head = `POST /api/execute HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n`;
  const body = JSON.stringify({ command: 'echo extended', sessionId: OFF });
  try {
    const half = body.slice(0, 9), rest = body.slice(9);
    const good = `${head}9;a=b;c="d"\r\n${half}\r\n${rest.length.toString(16)} ;x\r\n${rest}\r\n0;last\r\n\r\n`;
    assert.match(await talk(s, good), /^HTTP\/1.1 200 [^]*extended/);
    for (const bad of ['x\r\n', '5\r\nhelloX', '-1\r\n', 'fffffffffffffffff\r\n', '\r\n']) {
      const got = await talk(s, head + bad);
      assert.deepEqual(statuses(got), [400], JSON.stringify(bad));
      assert.match(got, /"code":"INVALID_REQUEST"/);
    }
  } finally { await s.stop(); }
});

test('X144: what another site\'s page causes is refused, and no answer can be taken for a script', async () => {
  const s = await start();
  await writeFile(path.join(s.workspace, 'x.js'), 'alert(1)');
  const get = `GET /api/files/raw?path=${encodeURIComponent(path.join(s.workspace, 'x.js'))} HTTP/1.1\r\n${HOST}`;
  try {
    for (const mode of ['no-cors', 'cors', 'navigate'])
      assert.deepEqual(statuses(await talk(s, `${get}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: ${mode}\r\n\r\n`)), [403], mode);
    for (const r of [`${get}\r\n`, PING, 'nonsense\r\n\r\n', `GET /none HTTP/1.1\r\n${HOST}\r\n`]) {
      const got = await talk(s, r);
      assert.match(got, /\r\nX-Content-Type-Options: nosniff\r\n/, r);
      assert.match(got, /\r\nCross-Origin-Resource-Policy: same-origin\r\n/, r);
    }
  } finally { await s.stop(); }
});

// Waits until the server holds no more than it did.
const settles = (pid, before) => until(async () => {
  const now = await state(pid);
  return now.fds <= before.fds && now.threads <= before.threads + 34; // threads for large bodies and files stay a while
}, 'descriptors to be given back');

test('X141: half heads, half bodies and resets hold nobody up, and leave nothing behind', async () => {
  const s = await start();
  const crowd = [];
  try {
    assert.equal((await fetch(s.base + '/api/ping')).status, 200);
    const pid = await serverPid(s), before = await state(pid), n = ASAN ? 200 : 700;
    const half = ['G', 'GET /api/ping HTTP/1.1\r\nHost: 127', execute('{"command":"echo x"}').slice(0, -4),
      `PUT /api/files/raw?path=/tmp/never HTTP/1.1\r\n${HOST}Content-Length: 1000000\r\n\r\nabc`];
    for (let i = 0; i < n; i++) {
      const c = await dial(s);
      c.write(half[i % 20 === 3 ? 3 : i % 3]);
      crowd.push(c);
    }
    for (let i = 0; i < 5; i++) assert.deepEqual(statuses(await talk(s, PING)), [200]);
    assert.match(await talk(s, execute(JSON.stringify({ command: 'echo served', sessionId: OFF }))), /served/);
    for (const c of crowd) c.resetAndDestroy();
    await settles(pid, before);
    assert.deepEqual(statuses(await talk(s, PING.repeat(2000))), Array(2000).fill(200));
  } finally { for (const c of crowd) c.destroy(); await s.stop(); }
});

// Their own time is an hour: only room that is made for others lets anybody in.
for (const [what, sent] of [
  ['nothing', ''],
  ['half a head', 'GET /api/ping HTTP/1.1\r\nHost: 127'],
  ['half a body of what is open to all', `GET /healthz HTTP/1.1\r\n${HOST}Content-Length: 100\r\n\r\nx`],
  ['half a body of what is not', execute('{"command":"echo x"}').slice(0, -4)],
  ['requests whose answers are not read', `GET / HTTP/1.1\r\n${HOST}\r\n`.repeat(1500)],
]) test(`X141: 400 connections without a token that send ${what} do not keep a client out where there is room for 100`, async () => {
  const token = 't'.repeat(20), crowd = [];
  const s = await start({ args: ['--header-timeout', '3600000', '--stall-timeout', '3600000'], env: { CONFLUX_TOKEN: token },
    prefix: ['prlimit', `--nofile=${ASAN ? 320 : 256}`] });
  try {
    for (let i = 0; i < 400; i++) {
      const c = net.connect(s.port, s.host);
      c.on('error', () => {});
      c.on('connect', () => c.write(sent));
      c.pause();
      crowd.push(c);
    }
    await until(() => crowd.filter(c => !c.connecting).length > 200, 'the crowd');
    for (let i = 0; i < 3; i++) {
      const r = await fetch(s.base + '/api/ping', { headers: { Authorization: 'Bearer ' + token }, signal: AbortSignal.timeout(60000) });
      assert.deepEqual([r.status, (await r.json()).status], [200, 'healthy']);
    }
  } finally { for (const c of crowd) c.destroy(); await s.stop(); }
});

test('X141: without a token no memory is held for a body', async () => {
  const token = 't'.repeat(20), crowd = [], headers = { Authorization: 'Bearer ' + token };
  const s = await start({ args: ['--header-timeout', '3600000', '--memory-budget', String(16 << 20)], env: { CONFLUX_TOKEN: token } });
  try {
    for (const path of ['/', '/healthz', '/readyz']) {
      for (const framing of ['Content-Length: 7000000\r\n\r\n', 'Transfer-Encoding: chunked\r\n\r\n6ACFC0\r\n']) {
        const c = await dial(s);
        c.write(`GET ${path} HTTP/1.1\r\n${HOST}${framing}`);
        c.write(Buffer.alloc(6900000));
        crowd.push(c);
        await ended(c); // it is answered, and its connection ends
        assert.deepEqual(statuses(c.got), [200]);
      }
    }
    const r = await fetch(s.base + '/api/write', { method: 'POST', headers, body: JSON.stringify({ path: 'large', content: 'x'.repeat(3e6) }) });
    assert.equal(r.status, 200, await r.text());
    const small = await dial(s); // what has come with the head is passed over
    small.write(`GET /healthz HTTP/1.1\r\n${HOST}Content-Length: 2\r\n\r\n{}GET /healthz HTTP/1.1\r\n${HOST}Connection: close\r\n\r\n`);
    await ended(small);
    assert.deepEqual(statuses(small.got), [200, 200]);
  } finally { for (const c of crowd) c.destroy(); await s.stop(); }
});

test('X141: uploads that trickle, more than there are threads for, do not keep the threads from another upload', async () => {
  const s = await start({ args: ['--header-timeout', '3600000'] });
  const crowd = [];
  let trickle;
  try {
    for (let i = 0; i < 320; i++) {
      const c = await dial(s);
      c.write(put(s, 'never' + i, 'Transfer-Encoding: chunked') + '1\r\na\r\n');
      crowd.push(c);
    }
    trickle = setInterval(() => { for (const c of crowd) if (!c.over) c.write('1\r\na\r\n'); }, 200);
    const c = await dial(s), size = 1 << 20;
    c.write(put(s, 'whole', `Content-Length: ${size}\r\nConnection: close`) + 'x'.repeat(size));
    await ended(c);
    assert.deepEqual(statuses(c.got), [200]);
    assert.equal((await stat(path.join(s.dir, 'whole'))).size, size);
  } finally { clearInterval(trickle); for (const c of crowd) c.destroy(); await s.stop(); }
});

test('X141: 3,000 uploads of which nothing has come but a byte hold no thread', async () => {
  const s = await start({ args: ['--header-timeout', '3600000'] }), crowd = [];
  const waiting = async () => (await readdir(`/proc/${await serverPid(s)}/task`)).length;
  try {
    await (await fetch(s.base + '/api/ping')).text();
    const before = await waiting();
    for (let i = 0; i < 3000; i++) {
      const c = await dial(s);
      c.write(i % 2 ? put(s, 'never' + i, 'Content-Length: 1000000') + 'a' : put(s, 'never' + i, 'Transfer-Encoding: chunked') + '1\r\na\r\n');
      crowd.push(c);
    }
    // Pieces of every size, so that the first one ends anywhere.
    for (const [name, framing, encode] of [
      ['length', size => `Content-Length: ${size}`, p => [p]],
      ['chunks', () => 'Transfer-Encoding: chunked', p => [Buffer.from(p.length.toString(16) + '\r\n'), p, Buffer.from('\r\n')]],
    ]) {
      for (const size of [0, 1, 16383, 16384, 16385, 300000, 1 << 20]) {
        const data = randomBytes(size), c = await dial(s);
        c.write(put(s, name + size, framing(size) + '\r\nConnection: close'));
        for (let at = 0, n = 1; at < size; at += n, n = Math.min(n * 3, 70000)) c.write(Buffer.concat(encode(data.subarray(at, at + n))));
        if (name === 'chunks') c.write('0\r\n\r\n');
        await ended(c);
        assert.deepEqual(statuses(c.got), [200], `${name} ${size}: ${c.got}`);
        assert.ok((await readFile(path.join(s.dir, name + size))).equals(data), `${name} ${size}`);
      }
    }
    const asks = await dial(s);
    asks.write(put(s, 'length16384', 'Content-Length: 1000000\r\nIf-None-Match: *\r\nExpect: 100-continue\r\nConnection: close'));
    await ended(asks);
    assert.deepEqual(statuses(asks.got), [412], 'refused before the body is asked for');
    const now = await waiting();
    assert.ok(now <= before + 16, `threads: ${now}, before: ${before}`); // the crowd would take 32 and more
    for (const c of crowd) assert.ok(!c.over, 'nobody was cut: ' + c.got);
  } finally { for (const c of crowd) c.destroy(); await s.stop(); }
});

test('X31: a deadlineMs that one door refuses is refused by the other', async () => {
  const s = await start(), m = await connect(s), body = { command: 'echo x', sessionId: OFF };
  const http = deadlineMs => fetch(s.base + '/api/execute', { method: 'POST', body: JSON.stringify({ ...body, deadlineMs }) });
  try {
    for (const [deadlineMs, status] of [[2 ** 31 - 1, 200], [2 ** 31, 400], [2 ** 40, 400], [-1, 400]]) {
      assert.equal((await http(deadlineMs)).status, status, 'HTTP: ' + deadlineMs);
      assert.equal((await m.post('/api/execute', body, { deadlineMs })).status, status, 'WebSocket: ' + deadlineMs);
    }
  } finally { await m.close(); await s.stop(); }
});

test('X143: receipts for input that nobody reads are in the memory budget, and come back', async () => {
  const s = await start({ args: ['--memory-budget', String(16 << 20)] }), m = await connect(s), each = 16000;
  const refused = () => m.ws.refused ?? 0;
  m.ws.on('message', raw => { if (/"of":"stdin"/.test(raw) && /LIMIT_EXCEEDED/.test(raw)) m.ws.refused = refused() + 1; });
  try {
    const calls = [];
    for (let i = 0; i < 4; i++) {
      calls.push(m.post('/api/execute', { command: 'sleep 1000', stdin: 'open', sessionId: OFF }, { onDisconnect: 'kill' }));
      calls.at(-1).catch(() => {}); // awaited below
      const id = calls.at(-1).id;
      m.send({ type: 'stdin', id, data: 'x'.repeat(1 << 17) }); // more than a pipe takes
      for (let k = 0; k < each; k++) m.send({ type: 'stdin', id, data: '', ack: true });
    }
    await m.get('/api/ping');
    const now = await held(s, 'stdin');
    assert.ok(now >= 2 * each * 64, `held: ${now}`); // a receipt is no less than 64 bytes
    assert.ok(now <= 16 << 20, `held: ${now}`);
    assert.ok(refused() > 0, 'some had no room'); // a quarter of the budget is 4 MiB
    for (const c of calls) m.send({ type: 'cancel', id: c.id, kill: true });
    await Promise.all(calls);
    assert.equal((await m.get('/api/ping')).status, 200);
    await until(async () => await held(s, 'stdin') === 0, 'the receipts to come back');
  } finally { await m.close(); await s.stop(); }
});

test('frames that come with the upgrade, whole or in part, are frames like any other', async () => {
  const s = await start();
  const head = `GET /ws HTTP/1.1\r\n${HOST}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${'A'.repeat(22)}==\r\n\r\n`;
  const frame = text => { // masked with zeros
    const n = Buffer.byteLength(text), long = n > 125;
    return Buffer.concat([Buffer.from([0x81, 0x80 | (long ? 126 : n), ...(long ? [n >> 8, n & 255] : []), 0, 0, 0, 0]), Buffer.from(text)]);
  };
  const ask = id => frame(JSON.stringify({ type: 'request', id, method: 'GET', path: '/api/ping', headers: { 'x-filler': 'f'.repeat(Number(id) * 40) } }));
  const ids = [...Array(20).keys()].map(i => i + 1), all = Buffer.concat([Buffer.from(head), ...ids.map(i => ask(String(i)))]);
  try {
    for (let cut = 1; cut < all.length; cut += 211) { // the cut falls into the head, at its end, into frames
      const c = await dial(s);
      c.write(all.subarray(0, cut));
      await new Promise(resolve => setImmediate(resolve));
      c.write(all.subarray(cut));
      await until(() => ids.every(i => new RegExp(`"id":"${i}"[^}]*"status":200`).test(c.got)), 'answers to all');
      c.destroy();
    }
  } finally { await s.stop(); }
});

test('the address that is told on start is a URL, also of IPv6', async () => {
  for (const host of ['::1', '[::1]', '127.0.0.1']) {
    const s = await start({ args: ['--host', host] });
    try {
      const url = /listening on (\S+)/.exec(s.stdout)[1];
      assert.equal((await fetch(new URL('/api/ping', url))).status, 200, url);
    } finally { await s.stop(); }
  }
});

test('X162: 1,000 connections are kept and all served', async () => {
  const s = await start();
  const all = [];
  try {
    const n = 1000;
    for (let i = 0; i < n; i++) all.push(await dial(s));
    for (let round = 1; round <= 3; round++) {
      for (const c of all) c.write(PING);
      await until(() => all.every(c => statuses(c.got).length === round), `answer ${round} on each`);
    }
    assert.ok(all.every(c => !c.over && statuses(c.got).every(x => x === 200)));
  } finally { for (const c of all) c.destroy(); await s.stop(); }
});

test('X13: where few threads may be started it serves with fewer, or says at once which limit it is', async () => {
  for (const [limit, serves] of [[60, true], [3, false]]) {
    const s = await start({ user: 64000 + limit, prefix: ['prlimit', `--nproc=${limit}:${limit}`] });
    try {
      if (serves) {
        assert.equal((await fetch(s.base + '/api/ping')).status, 200);
        assert.deepEqual(statuses(await talk(s, PING.repeat(100))), Array(100).fill(200));
      } else {
        await until(() => s.exited, 'the end of the program');
        assert.notEqual(s.exited.code, 0);
        assert.match(s.stderr, /thread|process/);
      }
    } finally { await s.stop(); }
  }
});

// nginx in front of s, on a free port, with connections that it keeps.
const nginx = async s => {
  const dir = path.join(s.dir, 'nginx'), probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const port = probe.address().port;
  probe.close();
  await mkdir(dir);
  await writeFile(path.join(dir, 'conf'), `daemon off; worker_processes 1; pid ${dir}/pid; error_log ${dir}/error.log;
    events { worker_connections 256; }
    http { access_log off; client_body_temp_path ${dir}/b; proxy_temp_path ${dir}/p; fastcgi_temp_path ${dir}/f; uwsgi_temp_path ${dir}/u; scgi_temp_path ${dir}/s;
      client_max_body_size 0; proxy_max_temp_file_size 0;
      map $http_upgrade $up { default upgrade; '' ''; }
      upstream c { server 127.0.0.1:${s.port}; keepalive 8; }
      server { listen 127.0.0.1:${port};
        location / { proxy_pass http://c; proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Upgrade $http_upgrade;
          proxy_set_header Connection $up; proxy_read_timeout 2s; proxy_request_buffering off; } } }`);
  const child = spawn('nginx', ['-c', path.join(dir, 'conf'), '-p', dir], { stdio: ['ignore', 'ignore', 'inherit'] });
  const exit = once(child, 'exit');
  const base = `http://127.0.0.1:${port}`;
  await until(async () => (await fetch(base + '/healthz').catch(() => null))?.status === 200, 'nginx');
  return { base, ws: base.replace('http', 'ws'), dir: s.dir, port, stop: async () => { child.kill('SIGTERM'); await exit; } };
};

test('X161: through nginx a quiet stream outlives its read timeout; kept connections, WebSockets, large files', async () => {
  const s = await start({ args: ['--ping-interval', '500'] });
  const p = await nginx(s);
  try {
    for (let i = 0; i < 50; i++) assert.equal((await fetch(p.base + '/api/ping')).status, 200);
    const quiet = fetch(p.base + '/api/execute/stream', { method: 'POST', body: JSON.stringify({ command: 'sleep 3; echo woke', sessionId: OFF }) });
    const size = 8 << 20, content = Buffer.alloc(size, 'large'), file = encodeURIComponent(path.join(s.workspace, 'large'));
    const put = await fetch(`${p.base}/api/files/raw?path=${file}`, { method: 'PUT', body: content });
    assert.ok(put.ok, `upload: ${put.status}`);
    const back = Buffer.from(await (await fetch(`${p.base}/api/files/raw?path=${file}`)).arrayBuffer());
    assert.ok(back.equals(content));
    const m = await connect(p);
    assert.equal((await m.get('/api/ping')).status, 200);
    const r = await quiet;
    assert.equal(r.headers.get('content-type'), 'text/event-stream');
    let text = '';
    for await (const chunk of r.body) text += Buffer.from(chunk).toString();
    assert.match(text, /\n:\n\n/); // it spoke while it was quiet
    assert.match(text, /woke/);
    assert.match(text, /"type":"complete"/);
    await m.close();
  } finally { await p.stop(); await s.stop(); }
});
