// Checked by tsc, never run: the declarations take what the documents show, and refuse what they should.
import { connect, Conflux, ApiError, createLogger, type ExecResult, type Process, type Stream, type LogEvent } from 'conflux-client';

async function use(signal: AbortSignal): Promise<void> {
  const remote: Conflux = await connect({ baseUrl: 'http://h:3000', token: 't', useWebSocket: true, containerTimeouts: { connect: 1, request: 2 }, logger: createLogger({ level: 'debug' }) });
  const own = await connect({ spawn: { host: '127.0.0.1', port: 0, token: 'x', binary: 'b', timeout: 1, log: 'inherit' } });
  await connect();
  await connect({ spawn: true });
  const r: ExecResult = await remote.exec(['ls', '-l'], { cwd: '/', env: { A: 'b' }, timeout: 5, signal, priority: 7 });
  r.stdout.trim();
  for await (const e of remote.execStream('make', { onCancel: 'kill' })) {
    if (e.type === 'stdout') e.data.trim();
    if (e.type === 'complete') e.exitCode?.toFixed();
  }
  const p: Process = await own.startProcess({ command: 'x' });
  const logs: Stream<LogEvent> = p.logs();
  for await (const log of logs) console.log(log.output);
  const code: number | undefined = (await p.wait({ timeout: 5 })).exitCode;
  await p.kill({ signal: 'SIGTERM', graceMs: code ?? 0 });
  const all: string[] = await remote.batch([1, 2].map(i => async c => (await c.readFile(`${i}`)).content));
  const settled: PromiseSettledResult<boolean>[] = await remote.batch([c => c.exists('x')], { settle: true });
  const response: Response = await remote.client.transport.fetch('/api/ping');
  const body: ReadableStream<Uint8Array> = await remote.transport.fetchStream('/api/execute/stream', { command: 'x' });
  const session = await remote.createSession({ id: 'a', cwd: '/' });
  await session.exec('pwd');
  try { await remote.ping(); } catch (e) { if (e instanceof ApiError) e.context.path; }
  // @ts-expect-error a command is a string or an array of them
  await remote.exec(5);
  // @ts-expect-error no such mode
  await connect({ baseUrl: 'x', transport: 'pigeon' });
  // @ts-expect-error a session is not made by hand
  new (await import('conflux-client')).Session();
  void [all, settled, response, body];
  await using disposed = remote;
  void disposed;
}
void use;
