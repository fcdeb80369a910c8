// Where else the JavaScript client runs: in workerd (a Durable Object), in Bun, as a package that npm has installed; and its types.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { connect, ConnectionError } from '../../../client/js/src/node/index.js';
import { BIN, start } from '../lib/server.mjs';
import { proxy } from './lib/proxy.mjs';

const run = promisify(execFile);
const here = path.dirname(fileURLToPath(import.meta.url));
const source = path.join(here, '../../../client/js');
const modules = path.join(here, '../node_modules');
const TOKEN = 'platform-token';
const WANT = { stdout: 'hello', streamed: '1\n2\n3\n', bytes: [0, 255] };

// A program that a package ships for this machine; null where it has none.
function program(names, file) {
  for (const name of names) if (existsSync(path.join(modules, name, file))) return path.join(modules, name, file);
  return null;
}
const workerd = program(['@cloudflare/workerd-linux-64', '@cloudflare/workerd-linux-arm64'], 'bin/workerd');
const bun = program(['@oven/bun-linux-x64-baseline', '@oven/bun-linux-aarch64'], 'bin/bun');

describe('platforms', () => {
  let s, dir, installed;
  before(async () => {
    s = await start({ env: { CONFLUX_TOKEN: TOKEN } });
    dir = await mkdtemp(path.join(tmpdir(), 'conflux-e2e-'));
    installed = path.join(dir, 'user');
    await mkdir(installed);
    await writeFile(path.join(installed, 'package.json'), '{"name":"user","private":true,"type":"module"}');
    const npm = (args, cwd) => run('npm', [...args, '--no-audit', '--no-fund', '--no-update-notifier', '--offline', '--cache', path.join(dir, 'cache')], { cwd });
    const { stdout } = await npm(['pack', '--json', '--pack-destination', dir], source);
    await npm(['install', path.join(dir, JSON.parse(stdout)[0].filename)], installed);
    for (const name of ['smoke.mjs', 'types.ts']) await cp(path.join(here, 'platforms', name), path.join(installed, name));
  });
  after(async () => { await s.stop(); await rm(dir, { recursive: true, force: true }); });

  const smoke = async (runtime, env) => JSON.parse((await run(runtime, ['smoke.mjs'], { cwd: installed, env: { ...process.env, CONFLUX_BIN: BIN, ...env } })).stdout);

  test('npm pack: all that is needed, no dependencies, no tests', async () => {
    const root = path.join(installed, 'node_modules/conflux-client');
    assert.deepEqual((await readdir(root)).sort(), ['LICENSE', 'README.md', 'index.d.ts', 'package.json', 'src']);
    const manifest = JSON.parse(await readFile(path.join(root, 'package.json')));
    assert.equal(manifest.dependencies, undefined);
    assert.deepEqual((await readdir(path.join(installed, 'node_modules'))).filter(name => !name.startsWith('.')), ['conflux-client']);
  });

  test('the installed package, in Node: a server that is there, and one of its own', async () => {
    assert.deepEqual(await smoke(process.execPath, { BASE: s.base, TOKEN }), { mode: 'websocket', ...WANT });
    assert.deepEqual(await smoke(process.execPath, {}), { mode: 'websocket', ...WANT });
  });

  test('https and wss: a certificate that is trusted, and one that is not', async () => {
    const key = path.join(dir, 'key.pem'), cert = path.join(dir, 'cert.pem');
    await run('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', key, '-out', cert,
      '-subj', '/CN=conflux-test', '-addext', 'subjectAltName=IP:127.0.0.1', '-days', '2']);
    const p = await proxy(() => s, { key: await readFile(key), cert: await readFile(cert) });
    try {
      assert.deepEqual(await smoke(process.execPath, { BASE: p.base, TOKEN, NODE_EXTRA_CA_CERTS: cert }), { mode: 'websocket', ...WANT });
      for (const transport of ['auto', 'websocket', 'http'])
        await assert.rejects(connect({ baseUrl: p.base, token: TOKEN, transport }), e => e instanceof ConnectionError && e.retrySafe && /certificate/.test(e.message));
    } finally { await p.close(); }
  });

  test('the JavaScript section of the README, as pasted', async () => {
    const root = path.join(here, '../../..');
    const section = /^## JavaScript\n([^]*?)^## /m.exec(await readFile(path.join(root, 'README.md'), 'utf8'))[1];
    const block = section.split('\n').filter(line => line.startsWith('    ')).map(line => line.slice(4)).join('\n');
    const open = await start();
    try {
      const script = block.replaceAll('/tmp/try', path.join(dir, 'try')).replaceAll('http://127.0.0.1:3000', open.base).replace('npm install', 'npm install --offline --silent');
      const { stdout } = await run('bash', ['-euc', script], { cwd: root });
      assert.match(stdout, /^Linux .*\n\n1\n2\n3\n\nready\n$/);
    } finally { await open.stop(); }
  });

  test('Bun: the same', { skip: !bun && 'no Bun for this machine' }, async () => {
    assert.deepEqual(await smoke(bun, { BASE: s.base, TOKEN }), { mode: 'websocket', ...WANT });
    assert.deepEqual(await smoke(bun, {}), { mode: 'websocket', ...WANT });
  });

  test('what browsers and Workers load has nothing of Node in it', async () => {
    const root = path.join(installed, 'node_modules/conflux-client');
    const exports = JSON.parse(await readFile(path.join(root, 'package.json'))).exports['.'];
    for (const condition of ['browser', 'workerd', 'default']) assert.equal(exports[condition].default, './src/index.js');
    const seen = new Set(), queue = [path.join(root, 'src/index.js')];
    for (let file; (file = queue.pop());) {
      if (seen.has(file)) continue;
      seen.add(file);
      for (const [, name] of (await readFile(file, 'utf8')).matchAll(/(?:from|import\()\s*'([^']+)'/g)) {
        assert.match(name, /^\.\.?\//, `${file} imports ${name}`);
        queue.push(path.resolve(path.dirname(file), name));
      }
    }
    assert.ok(![...seen].some(file => file.includes('/node/')));
  });

  // It runs nothing of ours, so once is enough.
  test('types, by tsc in strict mode', { skip: !!process.env.CONFLUX_TEST_SLOW && 'seen in the run on the release build' }, async () => {
    const tsc = createRequire(path.join(modules, 'x.js')).resolve('typescript/bin/tsc');
    const options = ['--noEmit', '--strict', '--skipDefaultLibCheck', '--exactOptionalPropertyTypes', '--module', 'nodenext', '--target', 'esnext', '--lib', 'esnext,dom,dom.iterable,dom.asynciterable'];
    await run(process.execPath, [tsc, ...options, 'types.ts'], { cwd: installed }).catch(e => assert.fail(e.stdout));
    // With Node's own types beside it, and none of the browser's.
    const node = ['--noEmit', '--strict', '--skipDefaultLibCheck', '--module', 'nodenext', '--target', 'esnext', '--lib', 'esnext', '--types', 'node', '--typeRoots', path.join(modules, '@types'), '--skipLibCheck', 'false'];
    await writeFile(path.join(installed, 'node.ts'), "import { connect } from 'conflux-client';\nconst c = await connect({});\nc.token?.length;\n");
    await run(process.execPath, [tsc, ...node, 'node.ts'], { cwd: installed }).catch(e => assert.fail(e.stdout));
  });

  test('workerd: 100 execs and a process cost a Durable Object one sub-request', { skip: !workerd && 'no workerd for this machine' }, async () => {
    const p = await proxy(() => s);
    const root = path.join(dir, 'worker');
    await cp(path.join(source, 'src'), path.join(root, 'src'), { recursive: true, filter: name => !name.endsWith('/node') });
    await cp(path.join(here, 'platforms/worker.js'), path.join(root, 'worker.js'));
    const names = ['worker.js', ...(await readdir(path.join(root, 'src'), { withFileTypes: true })).filter(e => e.isFile()).map(e => `src/${e.name}`),
      ...(await readdir(path.join(root, 'src/transport'))).map(name => `src/transport/${name}`)];
    await writeFile(path.join(root, 'config.capnp'), config(names, { BASE: p.base, TOKEN }));
    const child = spawn(workerd, ['serve', '--control-fd=3', 'config.capnp'], { cwd: root, stdio: ['ignore', 'inherit', 'inherit', 'pipe'] });
    try {
      const [line] = await Promise.race([once(child.stdio[3], 'data'), once(child, 'exit').then(() => assert.fail('workerd ended'))]);
      const answer = await (await fetch(`http://127.0.0.1:${JSON.parse(line).port}/`)).json();
      assert.deepEqual(answer, { subrequests: 1, results: Array.from({ length: 100 }, (_, i) => `${i}\n`), logs: '1\n2\n3\n', mode: 'websocket' });
      assert.deepEqual([p.connections, p.upgrades], [1, 1]);
    } finally {
      const exit = child.exitCode ?? once(child, 'exit');
      child.kill();
      await exit;
      await p.close();
    }
  });
});

const config = (names, bindings) => `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "main", worker = .box), (name = "internet", network = (allow = ["local", "private"]))],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
);
const box :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [${names.map(name => `(name = "${name}", esModule = embed "${name}")`).join(', ')}],
  durableObjectNamespaces = [(className = "Box", uniqueKey = "box")],
  durableObjectStorage = (inMemory = void),
  bindings = [(name = "BOX", durableObjectNamespace = "Box"), ${Object.entries(bindings).map(([name, value]) => `(name = "${name}", text = "${value}")`).join(', ')}],
);
`;
