// What another program can hold while ours wants it.
import { spawn } from 'node:child_process';
import { until } from './server.mjs';

// A write lease on a program: who executes it waits for the holder.
export const lease = `
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN) # somebody wants it: let him wait
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
sys.stdin.read()`;

// A file system that never answers: what looks into it hangs, and once the request has been taken, not even KILL ends it.
export const silent = `
import ctypes, os, select, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
if libc.mount(b'silent', sys.argv[1].encode(), b'fuse', 0, options): sys.exit(os.strerror(ctypes.get_errno()))
head = struct.unpack_from('<IIQQIIII', os.read(fd, 1 << 17))
os.write(fd, struct.pack('<IiQ', 16 + 64, 0, head[2]) + struct.pack('<IIIIHHIIHHI28x', 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)) # FUSE_INIT
print('held', flush=True)
poll = select.poll()
poll.register(fd, select.POLLIN)
poll.register(0, select.POLLIN)
while not any(f == 0 for f, _ in poll.poll()): os.read(fd, 1 << 17)
libc.umount2(sys.argv[1].encode(), 2)`;

// Holds what is named until release() is called.
export async function hold(script, what) {
  const p = spawn('python3', ['-c', script, what], { stdio: ['pipe', 'pipe', 'pipe'] });
  let said = '';
  for (const s of [p.stdout, p.stderr]) s.on('data', d => { said += d; });
  const ended = new Promise(r => p.on('exit', r));
  await until(() => said.includes('held') || p.exitCode !== null, 'the holder');
  return { held: said.includes('held'), said, release: () => { p.stdin.destroy(); return ended; } };
}
