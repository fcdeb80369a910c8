// What the kernel knows of the program under test: its processes, descriptors, memory, threads.
import { readdir, readFile, readlink } from 'node:fs/promises';

const read = (pid, name) => readFile(`/proc/${pid}/${name}`, 'utf8').catch(() => '');

async function stat(pid) {
  const m = /^\d+ \((.*)\) (\S) (\d+)/s.exec(await read(pid, 'stat'));
  return m && { pid: Number(pid), name: m[1], state: m[2], ppid: Number(m[3]) };
}

const all = async () => (await Promise.all((await readdir('/proc')).filter(p => /^\d+$/.test(p)).map(stat))).filter(Boolean);

export const zombiesOf = async keeper => (await all()).filter(p => p.ppid === keeper && p.state === 'Z').map(p => `${p.pid} (${p.name})`);

// Processes that carry `mark` in their environment: everything the program has started, wherever it has gone.
export async function marked(mark) {
  const found = [];
  for (const p of await all()) {
    if (!(await read(p.pid, 'environ')).split('\0').includes(mark)) continue;
    found.push({ ...p, args: (await read(p.pid, 'cmdline')).split('\0').join(' ').trim() });
  }
  return found;
}

export async function descriptors(pid) {
  const names = await readdir(`/proc/${pid}/fd`).catch(() => []);
  return (await Promise.all(names.map(n => readlink(`/proc/${pid}/fd/${n}`).catch(() => null)))).filter(Boolean);
}

export async function rss(pid) {
  return Number(/VmRSS:\s+(\d+)/.exec(await read(pid, 'status'))?.[1] ?? 0) / 1024;
}

// The one that the server raises its soft limit to.
export const hardLimit = async pid => Number(/Max open files\s+\d+\s+(\d+)/.exec(await read(pid, 'limits'))?.[1] ?? 1024);

export const threads = async pid => Number(/Threads:\s+(\d+)/.exec(await read(pid, 'status'))?.[1] ?? 0);
