// What is made of the table of commands: the man page and the completions say what the program says.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { exec } from './lib/cli.mjs';
import { BIN } from './lib/server.mjs';

const docs = path.join(path.dirname(BIN), 'docs');
const help = async (...args) => (await exec(BIN, [...args, '--help'])).stdout;
const commands = async () => [...(await exec(BIN, ['help'])).stdout.matchAll(/^ {2}(\S+) {2,}\S/gm)].map(m => m[1]);
const options = text => [...text.matchAll(/^ +(?:-(\w), )?--([\w-]+)/gm)].flatMap(m => [`--${m[2]}`, ...m[1] ? [`-${m[1]}`] : []]);
const missing = error => error.code === 'ENOENT';

// What bash offers for these words, of which the last is being typed.
async function offered(...words) {
  const script = `source '${docs}/bash/conflux'; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _conflux; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const { stdout, stderr } = await exec('bash', ['--norc', '-c', script, 'bash', ...words]);
  assert.equal(stderr, '');
  return stdout.split('\n').filter(Boolean);
}

test('the man page renders without a warning, and has every command and option', async t => {
  const page = path.join(docs, 'man', 'conflux.1');
  let text;
  for (const [program, ...args] of [['groff', '-man', '-ww', '-Tutf8', '-P-cbou', page], ['mandoc', '-W', 'warning', '-Tutf8', page]]) {
    try {
      const r = await exec(program, args, { maxBuffer: 1 << 24 });
      assert.equal(r.stderr, '');
      text = r.stdout.replaceAll('\u2010\n', '');
      break;
    } catch (e) { if (!missing(e)) throw e; }
  }
  if (text === undefined) return t.skip('neither groff nor mandoc is installed');
  const common = options(await help('ports'));
  for (const name of (await commands()).filter(n => !['help', 'version'].includes(n))) {
    const section = new RegExp(`conflux ${name} \\[options\\][^]*?(?=\\n +conflux \\w+\\n|\\n\\w)`).exec(text)?.[0];
    assert.ok(section, name);
    for (const option of options(await help(name)).filter(o => !common.includes(o))) assert.ok(section.includes(option), `${name} ${option}`);
  }
  for (const option of common) assert.ok(text.includes(option), option);
});

test('bash completes commands, options and their words', async () => {
  const names = await commands();
  assert.deepEqual((await offered('conflux', '')).sort(), names.sort());
  assert.deepEqual((await offered('conflux', 'ex')), ['exec']);
  for (const name of names.filter(n => !['help', 'version'].includes(n)))
    assert.deepEqual((await offered('conflux', name, '-')).sort(), [...new Set(name === 'serve' ? [...options(await help(name)), '--config', '--help'] : options(await help(name)))].filter(o => name !== 'serve' || o !== '-h').sort(), name);
  assert.deepEqual(await offered('conflux', 'ps', '--mode', ''), ['auto', 'websocket', 'http']);
  assert.deepEqual(await offered('conflux', 'wait', '--for', 'l'), ['log']);
  assert.deepEqual(await offered('conflux', 'logs', '--stream', 'stde'), ['stderr']);
  assert.deepEqual(await offered('conflux', 'sessions', 'd'), ['delete']);
  assert.deepEqual(await offered('conflux', 'help', 'doc'), ['doctor']);
  assert.deepEqual(await offered('conflux', 'ps', '--url', ''), []);
  const [file] = await offered('conflux', 'cp', BIN.slice(0, -1));
  assert.ok(BIN.startsWith(file) || file.startsWith(BIN.slice(0, -1)));
  assert.ok((await offered('conflux', 'ps', '--token-file', BIN.slice(0, -1))).includes(BIN));
});

test('zsh reads its completions', async t => {
  try { await exec('zsh', ['-n', path.join(docs, 'zsh', '_conflux')]); } catch (e) {
    if (missing(e)) return t.skip('zsh is not installed');
    throw e;
  }
  const text = await readFile(path.join(docs, 'zsh', '_conflux'), 'utf8');
  for (const name of (await commands()).filter(n => !['help', 'version'].includes(n)))
    for (const option of options(await help(name)).filter(o => o !== '-h' || name !== 'serve')) {
      const part = new RegExp(`^    ${name}\\) [^]*?;;$`, 'm').exec(text)?.[0];
      if (name === 'serve' && option === '--help') continue;
      assert.ok(part?.includes(option), `${name} ${option}`);
    }
});

// Each pattern is waited for: the terminal shows what zsh makes of the keys before it.
test('zsh completes by them', async t => {
  const script = `zmodload zsh/zpty || exit 3
zpty z zsh -f -i
see() { zpty -r z out "*\${~1}*" }
zpty -w z "PS1='ready''> '; fpath=(${docs}/zsh \\$fpath); autoload -U compinit; compinit -u -D; setopt no_list_packed"
see 'ready> '
zpty -n -w z $'conflux doct\t'; see 'doct*or'
zpty -n -w z $'\\C-uconflux exec --tok\t\t'; see 'token-file'
zpty -n -w z $'\\C-uconflux exec --mode w\t'; see 'mode w*ebsocket'
zpty -n -w z $'\\C-uconflux sessions del\t'; see 'del*ete'
zpty -d z`;
  try { await exec('zsh', ['-f', '-c', script], { timeout: 30000, env: { ...process.env, TERM: 'dumb' } }); } catch (e) {
    if (missing(e) || e.code === 3) return t.skip('zsh with zpty is not installed');
    throw e;
  }
});

test('an installed tree works from wherever it lies', async t => {
  const prefix = await mkdtemp(path.join(tmpdir(), 'conflux-install-'));
  const manifest = path.join(path.dirname(BIN), 'install_manifest.txt'); // what `uninstall` goes by: ours is not to replace it
  const kept = await readFile(manifest).catch(() => null);
  try { await exec('cmake', ['--install', path.dirname(BIN), '--prefix', prefix]); } catch (e) {
    if (missing(e)) return t.skip('cmake is not installed');
    throw e;
  } finally { await (kept ? writeFile(manifest, kept) : rm(manifest, { force: true })); }
  const installed = path.join(prefix, 'bin', 'conflux');
  assert.match((await exec(installed, ['exec', '--help'])).stdout, /^usage: conflux exec/);
  for (const file of ['libexec/conflux/conflux-cli', 'share/man/man1/conflux.1', 'share/bash-completion/completions/conflux', 'share/zsh/site-functions/_conflux'])
    assert.ok((await stat(path.join(prefix, file))).size > 0, file);
  await rm(prefix, { recursive: true });
});
