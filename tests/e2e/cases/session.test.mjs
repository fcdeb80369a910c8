// Field cases, group "Sessions and shell".
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { OFF, full, group, times } from '../lib/door.mjs';
import { until } from '../lib/server.mjs';

group('session', {}, ({ both }) => {
  const in_ = (d, row) => (command, o) => d.exec(command, { sessionId: `${row}-${d.name}`, ...o });

  both('B053', 'heredocs, and text that the shell cannot parse, harm nothing that follows', async d => {
    const S = in_(d, 'b053');
    assert.equal((await S("cat <<'EOF' >f\nhello\nEOF\nwc -l f")).body.stdout.trim(), '1 f');
    for (const bad of ['echo "unterminated', 'cat <<X', 'cat <<X\nbody', 'if true; then', 'echo $(', ')', 'echo `', "echo 'x", '{ echo', 'for', '\\', 'a() {']) {
      const r = await S(bad, { timeoutMs: 20000 });
      assert.ok(r.status === 200 || r.body.code === 'SESSION_TERMINATED', `${bad}: ${JSON.stringify(r.body)}`);
      assert.ok(!r.body.timedOut && !r.body.context?.timedOut);
      const st = d.execStream(bad, { sessionId: 'b053-' + d.name });
      await st.done;
      assert.equal(st.last().type, 'complete', bad);
      assert.equal((await S('echo ok')).body.stdout, 'ok', bad);
    }
  });

  both('B054', 'exit N: the code and what was printed, then a fresh shell', async d => {
    const S = in_(d, 'b054');
    await S('X=kept');
    const r = await S('echo bye; exit 3');
    assert.deepEqual([r.status, r.body.code, r.body.context.exitCode, r.body.context.stdout], [410, 'SESSION_TERMINATED', 3, 'bye']);
    assert.equal((await S('echo "[$X]"')).body.stdout, '[]');
  });

  both('B055', 'exec PROGRAM: its output, then a fresh shell', async d => {
    const S = in_(d, 'b055');
    const r = await S('exec echo hi');
    assert.deepEqual([r.status, r.body.code, r.body.context.exitCode, r.body.context.stdout], [410, 'SESSION_TERMINATED', 0, 'hi']);
    assert.equal((await S('echo ok')).body.stdout, 'ok');
  });

  both('B056', 'set -e ends the shell at the next failure, with a reply', async d => {
    const S = in_(d, 'b056');
    await S('set -e');
    const f = await S('false; echo x');
    assert.deepEqual([f.status, f.body.code, f.body.context.exitCode], [410, 'SESSION_TERMINATED', 1]);
    assert.equal((await S('false; echo ok')).body.stdout, 'ok');
  });

  both('B057', 'traps and $? of one call do not speak in the next', async d => {
    const S = in_(d, 'b057');
    await S("trap 'echo LEAK' EXIT");
    const r = (await S('echo clean')).body;
    assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['clean', '', 0]);
    await S('(exit 7)');
    assert.equal((await S(':')).body.exitCode, 0);
  });

  both('B059', 'output without a final newline: every byte', async d => {
    for (const sessionId of [OFF, 'b059-' + d.name]) {
      const X = async command => (await d.exec(command, { sessionId })).body;
      assert.equal((await X('printf abc')).stdout, 'abc');
      // one final newline is taken off in a session, as the page has it; the count and base64 tell all
      const two = await X("printf '\\n\\n'");
      assert.deepEqual([two.stdout, two.stdoutBytes], [sessionId === OFF ? '\n\n' : '\n', 2]);
      assert.equal((await X('printf "%0100000d" 7')).stdout, '7'.padStart(100000, '0'));
      const st = d.execStream("printf 'a\\nb'", { sessionId });
      await st.done;
      assert.equal(st.text(), 'a\nb');
    }
  });

  both('B060', '20 at once in one session: each whole, first in, first out; another session is not delayed', async (d, s) => {
    const S = in_(d, 'b060'), gate = `${s.workspace}/b060-${d.name}`;
    const first = S(`n=0; : >${gate}-held; until [ -e ${gate} ]; do sleep 0.02; done`); // holds the queue until all are in it
    await until(() => existsSync(`${gate}-held`), 'the queue to be held');
    const all = times(20, i => S(`n=$((n+1)); for k in 1 2 3; do echo ${i}-$k; done; echo n$n`));
    assert.equal((await d.exec('echo free', { sessionId: 'b060-other-' + d.name })).body.stdout, 'free');
    await d.exec('touch ' + gate);
    assert.equal((await first).body.exitCode, 0);
    const turns = [];
    for (const [i, r] of (await Promise.all(all)).entries()) {
      const lines = r.body.stdout.split('\n');
      assert.deepEqual(lines.slice(0, 3), [1, 2, 3].map(k => `${i}-${k}`));
      turns.push(Number(lines[3].slice(1)));
    }
    assert.deepEqual([...turns].sort((a, b) => a - b), times(20, i => i + 1));
    if (d.name === 'ws') assert.deepEqual(turns, times(20, i => i + 1)); // several connections have no order
  });

  both('B061', 'create and delete of one id, again and again', async d => {
    const id = 'b061-' + d.name;
    for (let i = 0; i < full(100, 30); i++) {
      assert.equal((await d.post('/api/session/create', { id })).status, 200);
      if (i % 2) await d.exec('sleep 1000 & true', { sessionId: id });
      assert.equal((await d.post('/api/session/delete', { sessionId: id })).status, 200);
    }
    assert.ok(!(await d.get('/api/session/list')).body.data.includes(id));
  });

  both('B062', 'sessionless calls share nothing; a session, the default one too, keeps its state', async (d, s) => {
    await d.exec('cd /tmp; export A=1; f() { :; }');
    assert.equal((await d.exec('pwd; echo [$A]; type -t f')).body.stdout, `${s.workspace}\n[]\n`);
    for (const sessionId of [undefined, 'b062-' + d.name]) {
      await d.exec('cd /tmp; export A=1', { sessionId });
      assert.equal((await d.exec('pwd; echo [$A]', { sessionId })).body.stdout, '/tmp\n[1]');
    }
    await d.post('/api/session/delete', { sessionId: 'default' });
  });

  both('B063', 'a session has its folder and environment from its creation', async d => {
    const id = 'b063-' + d.name;
    assert.equal((await d.post('/api/session/create', { id, cwd: '/tmp', env: { A: '1', B: 'a b\n"$x' } })).status, 200);
    assert.equal((await d.exec('pwd; echo $A; echo "$B"', { sessionId: id })).body.stdout, '/tmp\n1\na b\n"$x');
    const st = d.execStream('pwd; echo $A', { sessionId: id });
    await st.done;
    assert.equal(st.text(), '/tmp\n1\n');
    const again = await d.post('/api/session/create', { id });
    assert.deepEqual([again.status, again.body.code], [409, 'SESSION_ALREADY_EXISTS']);
  });
});
