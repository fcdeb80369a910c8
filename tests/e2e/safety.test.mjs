// design: every request is checked for origin, host and token before its body is read, on every route.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import net from 'node:net';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { get, post, start } from './lib/server.mjs';
import { connect } from './lib/mux.mjs';

// Every route that the server says it has, and one that it lacks. In the token test: those that are not open.
async function routes(s, headers = {}, open = true) {
  const { paths } = await (await fetch(s.base + '/openapi.json', { headers })).json();
  const all = Object.entries(paths).flatMap(([p, ops]) => Object.entries(ops).filter(([, op]) => open || !op.security).map(([m]) => [m.toUpperCase(), p.replace(/\{\w+\}/g, 'x')]));
  assert.ok(all.length > 40, `only ${all.length} routes`);
  return [...all, ['GET', '/no/such/route']];
}

// One raw exchange: what the server says to exactly these bytes. Resolves with the status line and body at the end of the connection,
// or as soon as `enough` matches.
function raw(s, bytes, enough = /$^/) {
  return new Promise((resolve, reject) => {
    const k = net.connect(s.port, '127.0.0.1', () => k.write(bytes));
    let text = '';
    k.on('data', d => { text += d; if (enough.test(text)) { k.destroy(); resolve(text); } });
    k.on('end', () => { k.destroy(); resolve(text); });
    k.on('error', e => (text ? resolve(text) : reject(e)));
    k.setTimeout(20000, () => { k.destroy(); reject(new Error('no answer to ' + bytes.slice(0, 60))); });
  });
}
const status = text => Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]);
// The body is announced and never sent: a refusal has to come without it.
const head = (method, p, headers, body = 'Content-Length: 100\r\n') =>
  `${method} ${p} HTTP/1.1\r\n${headers}${method === 'GET' ? '' : body}\r\n`;
const upgrade = (p, headers) => `GET ${p} HTTP/1.1\r\n${headers}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`;

describe('without a token, on loopback', () => {
  let s;
  before(async () => { s = await start({ args: ['--allow-origin', 'https://app.example', '--allow-host', 'box.example'] }); });
  after(() => s.stop());

  test('a page of a foreign origin is refused on every route, before the body', async () => {
    for (const [m, p] of await routes(s)) for (const origin of ['https://evil.example', 'null', 'http://127.0.0.1.evil.example', 'https://app.example.evil', `http://127.0.0.1:${s.port - 1}`]) {
      const text = await raw(s, head(m, p, `Host: 127.0.0.1:${s.port}\r\nOrigin: ${origin}\r\n`), /ORIGIN_NOT_ALLOWED/);
      assert.equal(status(text), 403, `${m} ${p} from ${origin}: ${text.slice(0, 200)}`);
      assert.doesNotMatch(text, /Access-Control-Allow-Origin/i);
    }
    for (const p of ['/ws', '/api/ws'])
      assert.equal(status(await raw(s, upgrade(p, `Host: 127.0.0.1:${s.port}\r\nOrigin: https://evil.example\r\n`), /ORIGIN_NOT_ALLOWED/)), 403);
  });

  test('a rebinding Host is refused on every route', async () => {
    for (const [m, p] of await routes(s)) for (const host of ['evil.example', `evil.example:${s.port}`, '127.0.0.1.nip.example']) {
      const text = await raw(s, head(m, p, `Host: ${host}\r\n`), /HOST_NOT_ALLOWED/);
      assert.equal(status(text), 403, `${m} ${p} for ${host}: ${text.slice(0, 200)}`);
    }
    assert.equal(status(await raw(s, upgrade('/ws', 'Host: evil.example\r\n'), /HOST_NOT_ALLOWED/)), 403);
  });

  test('listed origins, our own, listed hosts and names without a dot are served', async () => {
    for (const origin of ['https://app.example', `http://127.0.0.1:${s.port}`, `http://localhost:${s.port}`]) {
      const r = await get(s, '/api/ping', { Origin: origin });
      assert.equal(r.status, 200);
      assert.equal(r.headers.get('access-control-allow-origin'), origin);
      assert.match(r.headers.get('vary') ?? '', /Origin/);
    }
    for (const host of ['box.example', 'localhost', 'container', `[::1]:${s.port}`, '10.1.2.3'])
      assert.equal(status(await raw(s, `GET /api/ping HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)), 200, host);
    const m = await connect(s, { headers: { Origin: 'https://app.example' } });
    assert.equal((await m.get('/api/ping')).status, 200);
    await m.close();
  });

  test('CORS: * only without an Origin, each header once; preflight answers listed origins only', async () => {
    const r = await get(s, '/api/ping');
    assert.equal(r.headers.get('access-control-allow-origin'), '*');
    assert.equal(r.headers.get('access-control-allow-methods'), 'GET, POST, PUT, DELETE, OPTIONS');
    const pre = origin => fetch(s.base + '/api/execute', { method: 'OPTIONS', headers: { Origin: origin, 'Access-Control-Request-Method': 'POST' } });
    const good = await pre('https://app.example');
    assert.ok(good.status === 204 || good.status === 200);
    assert.equal(good.headers.get('access-control-allow-origin'), 'https://app.example');
    assert.equal((await pre('https://evil.example')).status, 403);
  });

  test('without a token, Authorization names the session as the page says', async () => {
    const r = await post(s, '/api/execute', { command: 'echo hi' }, { Authorization: 'Bearer some-session' });
    assert.equal(r.body.sessionId, 'some-session');
  });
});

describe('with a token', () => {
  const token = 'a-long-secret-token-4711';
  let s, dir;
  before(async () => {
    dir = await mkdtemp(path.join(tmpdir(), 'conflux-token-'));
    await writeFile(path.join(dir, 'token'), token + '\n', { mode: 0o600 });
    s = await start({ args: ['--token-file', path.join(dir, 'token')] });
  });
  after(async () => { await s.stop(); await rm(dir, { recursive: true }); });
  const auth = { Authorization: 'Bearer ' + token };

  test('a missing or wrong token is refused on every route, before the body', async () => {
    for (const [m, p] of await routes(s, auth, false)) for (const h of ['', 'Authorization: Bearer wrong-token-0815\r\n', `Authorization: Basic ${token}\r\n`, `Authorization: Bearer ${token}x\r\n`, `Authorization: Bearer ${token.slice(0, -1)}\r\n`]) {
      const text = await raw(s, head(m, p, `Host: 127.0.0.1:${s.port}\r\n${h}`), /UNAUTHORIZED/);
      assert.equal(status(text), 401, `${m} ${p} ${h}: ${text.slice(0, 200)}`);
    }
    assert.equal(status(await raw(s, upgrade('/ws', `Host: 127.0.0.1:${s.port}\r\n`), /UNAUTHORIZED/)), 401);
  });

  test('the greeting and the health routes are open', async () => {
    for (const p of ['/', '/healthz', '/readyz']) assert.equal((await fetch(s.base + p)).status, 200, p);
  });

  test('the right token opens HTTP and the WebSocket, and never names a session', async () => {
    assert.equal((await get(s, '/api/ping', auth)).status, 200);
    const r = await post(s, '/api/execute', { command: 'echo hi' }, auth);
    assert.deepEqual([r.status, r.body.stdout, r.body.sessionId], [200, 'hi', undefined]);
    const m = await connect(s, { headers: auth });
    assert.equal((await m.post('/api/execute', { command: 'echo ws' })).body.stdout, 'ws');
    await m.close();
  });

  test('children see neither token nor descriptors, and the logs hold no secret', async () => {
    const r = await post(s, '/api/execute', { command: 'env; ls /proc/self/fd; tr "\\0" "\\n" < /proc/$PPID/environ; tr "\\0" "\\n" </proc/$PPID/cmdline', sessionId: '__DISABLE_SESSION__' }, auth);
    assert.doesNotMatch(r.body.stdout, new RegExp(token));
    assert.doesNotMatch((await post(s, '/api/execute', { command: 'env; set', sessionId: '__DISABLE_SESSION__' }, auth)).body.stdout, /CONFLUX_/);
    for (const sessionId of ['fds', '__DISABLE_SESSION__']) {
      const f = await post(s, '/api/execute', { command: 'echo /proc/$BASHPID/fd/*; (ls /proc/self/fd | tr "\\n" " ")', sessionId }, auth);
      assert.equal(f.body.stdout.split('\n')[1].trim(), '0 1 2 3', `${sessionId}: ls sees 0-2 and its own folder handle`);
    }
    await post(s, '/api/execute', { command: 'echo secret-in-code', env: { PASSWORD: 'secret-in-env' } }, auth);
    await post(s, '/api/write', { path: `${s.workspace}/f`, content: 'secret-in-file' }, auth);
    assert.doesNotMatch(s.stderr, new RegExp(`${token}|secret-in`));
  });

  test('the token from the environment is wiped', async () => {
    const e = await start({ env: { CONFLUX_TOKEN: token } });
    try {
      assert.equal((await get(e, '/api/ping')).status, 401);
      assert.equal((await get(e, '/api/ping', auth)).status, 200);
      assert.doesNotMatch(await readFile(`/proc/${e.child.pid}/environ`, 'latin1'), new RegExp(token));
    } finally { await e.stop(); }
  });
});

test('an open address without a token is refused at start', async () => {
  for (const host of ['0.0.0.0', '::', '127.example.com', '127.0.0.1.example.com']) { // the names may lead anywhere
    const s = await start({ args: ['--host', host] });
    assert.notEqual((await s.exit).code, 0, host);
    assert.match(s.stderr, /--insecure/, host);
    await rm(s.dir, { recursive: true, force: true });
  }
});

describe('--file-root', () => {
  let s;
  before(async () => {
    const dir = await mkdtemp(path.join(tmpdir(), 'conflux-root-'));
    s = await start({ dir, workspace: path.join(dir, 'workspace'), args: ['--file-root', dir] });
  });
  after(async () => { await s.stop(); await rm(s.dir, { recursive: true, force: true }); });

  test('no file call leaves the root', async () => {
    await post(s, '/api/execute', { command: `cd ${s.workspace} && ln -s /etc l && ln -s /tmp/conflux-never dangling && ln -s / top` });
    const w = s.workspace;
    for (const [p, body] of [
      ['/api/read', { path: `${w}/l/passwd` }], ['/api/read', { path: '/etc/passwd' }], ['/api/read', { path: `${w}/../../../../etc/passwd` }], ['/api/read', { path: `${w}/top/etc/passwd` }],
      ['/api/write', { path: `${w}/l/conflux-never`, content: 'x' }], ['/api/write', { path: `${w}/dangling`, content: 'x' }], ['/api/write', { path: '/tmp/conflux-never', content: 'x' }],
      ['/api/mkdir', { path: '/tmp/conflux-never' }], ['/api/list-files', { path: `${w}/l` }], ['/api/delete', { path: '/tmp/conflux-never' }],
      ['/api/rename', { oldPath: `${w}/l/passwd`, newPath: `${w}/stolen` }], ['/api/move', { sourcePath: '/etc/hostname', destinationPath: `${w}/stolen` }],
      ['/api/files/copy', { source: '/etc/passwd', destination: `${w}/stolen` }], ['/api/files/stat', { path: '/etc/passwd' }], ['/api/files/chmod', { path: `${w}/l/passwd`, mode: '0777' }],
    ]) assert.ok((await post(s, p, body)).status >= 400, `${p} ${JSON.stringify(body)}`);
    assert.ok((await fetch(s.base + '/api/files/raw?path=' + encodeURIComponent(`${w}/l/passwd`))).status >= 400);
    assert.equal((await post(s, '/api/exists', { path: '/etc/passwd' })).body.exists ?? false, false);
    await assert.rejects(readFile('/tmp/conflux-never'));
    assert.equal((await post(s, '/api/write', { path: `${w}/ok`, content: 'fine' })).status, 200);
  });
});
