// What the file routes do that only the whole program can show, on both doors.
import assert from 'node:assert/strict';
import { closeSync, openSync } from 'node:fs';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { group, own, times } from './lib/door.mjs';
import { until } from './lib/server.mjs';

async function tree(root) {
  await mkdir(`${root}/src/deep`, { recursive: true });
  await writeFile(`${root}/a.txt`, 'one\ntwo needles\n');
  await writeFile(`${root}/src/b.txt`, 'nothing\n');
  await writeFile(`${root}/src/deep/c.txt`, 'a needle\n');
  await symlink('../..', `${root}/src/deep/loop`).catch(() => {});
}

group('files', {}, ({ both }) => {
  both('search', 'is a stream with an end', async (d, s) => {
    const root = `${s.workspace}/search-${d.name}`;
    await tree(root);
    const st = d.stream('/api/files/search', { path: root, glob: '*.txt' });
    assert.equal((await st.done).status, 200);
    assert.deepEqual(st.events.filter(e => e.type === 'match').map(e => e.relativePath).sort(), ['a.txt', 'src/b.txt', 'src/deep/c.txt']);
    assert.deepEqual(st.last(), { type: 'complete', matches: 3, truncated: false, skipped: 0 });
  });

  both('grep', 'tells file, line and text', async (d, s) => {
    const root = `${s.workspace}/grep-${d.name}`;
    await tree(root);
    const st = d.stream('/api/files/grep', { path: root, pattern: 'needles?$', regex: true });
    await st.done;
    const found = st.events.filter(e => e.type === 'match').map(e => [e.absolutePath, e.line, e.text]).sort();
    assert.deepEqual(found, [[`${root}/a.txt`, 2, 'two needles'], [`${root}/src/deep/c.txt`, 1, 'a needle']]);
    assert.equal(st.last().files, 3);
  });

  both('search', 'what cannot be searched is an error with its status, not an event', async (d, s) => {
    const st = d.stream('/api/files/search', { path: `${s.workspace}/nowhere-${d.name}` });
    const r = await st.done;
    assert.deepEqual([r.status, r.body.code, st.events.length], [404, 'FILE_NOT_FOUND', 0]);
  });
});

own('search', 'ends when its client goes, and a slow client holds nobody up', { args: ['--max-scans', '1'] }, async (d, s) => {
  const root = `${s.workspace}/many`, deep = root + `/${'d'.repeat(250)}`.repeat(10); // each match tells its path: long ones make few files many bytes
  for (let k = 0; k < 4; k++) {
    await mkdir(`${deep}/${k}`, { recursive: true });
    times(1000, i => closeSync(openSync(`${deep}/${k}/${'n'.repeat(200)}${i}`, 'w')));
  }
  const c = await d.another();
  const st = c.stream('/api/files/search', { path: root, limit: 1000000 });
  await st.until(e => e.type === 'match');
  st.pause(); // about 10 MB are left, more than sockets hold
  const refused = await d.stream('/api/files/search', { path: root }).done;
  assert.deepEqual([refused.status, refused.body.code], [429, 'LIMIT_EXCEEDED']);
  assert.equal((await d.post('/api/exists', { path: root })).status, 200);
  st.cut();
  await until(async () => (await d.stream('/api/files/search', { path: root, limit: 1 }).done).status === 200, 'the search to be given up');
});
