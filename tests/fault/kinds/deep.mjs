// A tree of 3,000 nested folders: listed, copied, searched, and moved to another file system, which copies it and then
// removes it; each as often as it takes.
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, stat } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { OFF } from '../lib/load.mjs';

const run = promisify(execFile), DEPTH = 3000, END = 'd/'.repeat(DEPTH) + 'end';

// From one folder to the next: the whole path is longer than the kernel takes.
const grow = root => run(process.execPath, ['-e',
  'const fs = require("fs"); for (let i = 0; i < +process.argv[1]; i++) { fs.mkdirSync("d"); process.chdir("d"); } fs.writeFileSync("end", "deep");', DEPTH], { cwd: root });
const entries = async root => Number((await run('sh', ['-c', 'find . -mindepth 1 | wc -l'], { cwd: root })).stdout);
// A server that works on while its client is gone may put something in behind us.
const clear = root => run('sh', ['-c', 'for i in 1 2 3 4 5 6 7 8 9; do rm -rf "$0" && exit 0; done; exit 1', root]);

// A try that was lost may have come to its end, or into the middle of removing what it had copied: then the whole is at
// the other side already.
async function move(load, tree, right) {
  const there = await mkdtemp('/dev/shm/conflux-torture-').catch(() => null);
  if (!there || (await stat(there)).dev === (await stat(tree)).dev) return;
  let tries = 0;
  const r = await load.again('move of a deep tree', n => {
    tries = n + 1;
    return load.once('POST', '/api/move', { sourcePath: tree, destinationPath: path.join(there, String(n)), sessionId: OFF });
  });
  const overtaken = tries > 1 && r.status !== 200; // by the lost one, which had copied all and was removing what is moved here
  if (!overtaken) right('move', r, () => true);
  if (!overtaken && await stat(tree).catch(() => null)) load.bad('deep tree: it is still where it was, after its move');
  const found = await Promise.all(Array.from({ length: tries }, (_, n) => entries(path.join(there, String(n))).catch(() => 0)));
  if (!found.includes(DEPTH + 1)) load.bad(`deep tree: moved, and there are ${found.join(', ')} entries instead of ${DEPTH + 1}`);
  await clear(there);
}

// Without descriptors a folder cannot be read: then the answer says how many it has left out, and is asked for once more.
async function entire(load, what, skipped, attempt) {
  for (;;) {
    const begun = Date.now(), r = await load.again(what, attempt);
    if (!(skipped(r) > 0 && load.faults.since(begun, 'emfile'))) return r;
    load.refused++;
    load.check(what);
  }
}

export async function deep({ load }, dir) {
  const root = `${dir}/deep`, tree = `${root}/t`;
  await mkdir(tree, { recursive: true });
  await grow(tree);
  const right = (what, r, ok) => { if (r.status !== 200 || !ok(r)) load.bad(`deep tree, ${what}: ${r.status} ${JSON.stringify({ ...r.body, files: undefined }).slice(0, 300)}`); };

  right('list', await entire(load, 'list of a deep tree', r => r.body?.skipped,
    () => load.once('POST', '/api/list-files', { path: tree, sessionId: OFF, options: { recursive: true } })),
    r => r.body.count === DEPTH + 1 && r.body.files.at(-1).relativePath === END);
  let copy; // each try has a place of its own: what a lost one has left is nobody's promise
  right('copy', await load.again('copy of a deep tree', n =>
    load.once('POST', '/api/files/copy', { source: tree, destination: copy = `${root}/copy${n}`, recursive: true })), r => r.body.bytes === 4);
  const n = await entries(copy);
  if (n !== DEPTH + 1) load.bad(`deep tree: the copy has ${n} entries instead of ${DEPTH + 1}`);
  right('search', await entire(load, 'search in a deep tree', r => r.events?.at(-1).skipped, () => load.events('POST', '/api/files/search', { path: tree, glob: 'end' })),
    r => r.events.length === 2 && r.events[0].relativePath === END && r.events[1].type === 'complete' && !r.events[1].skipped);
  await move(load, tree, right);
  await clear(root);
}
