// Types of conflux-client, for every platform. What does not concern a platform (spawning in a browser) is refused at
// run time.

export type Mode = 'auto' | 'websocket' | 'http';
export type Bytes = ArrayBuffer | ArrayBufferView;
type Extra = { [field: string]: unknown };
// By way of Response: `BodyInit` and `ReadableStream` are not global in every set of types.
type Body = ConstructorParameters<typeof Response>[0];
type ByteStream = NonNullable<Response['body']>;

// ---- options ----

export interface Timeouts {
  /** Opening a connection, ms (30000). */
  connect?: number;
  /** A request without its answer, ms (120000); 0: none. A command's own `timeout` extends it. */
  request?: number;
  /** A stream without an event while its reader waits, ms (300000); 0: none. */
  stream?: number;
  /** How long a lost WebSocket is tried again before a call fails or goes by HTTP, ms (5000). */
  reconnect?: number;
}

export interface LogMethods {
  debug?(message: string, fields?: object): void;
  info?(message: string, fields?: object): void;
  warn?(message: string, fields?: object): void;
  error?(message: string, fields?: object): void;
}
export type Logger = LogMethods | ((line: { level: string; message: string; [field: string]: unknown }) => void);
export function createLogger(options?: {
  level?: 'debug' | 'info' | 'warn' | 'error';
  component?: string;
  sink?: LogMethods;
}): LogMethods;

export interface State {
  mode: 'websocket' | 'http';
  connected: boolean;
  reason?: string;
}

export interface ClientOptions {
  baseUrl: string;
  token?: string;
  /** auto: a WebSocket, HTTP while there is none, and back. Default auto. */
  transport?: Mode;
  /** The address of the WebSocket when it is not baseUrl + '/ws'. */
  wsUrl?: string;
  timeouts?: Timeouts;
  /** Session of calls that name none. Default: none, each command in a shell of its own. */
  session?: string;
  /** WebSockets to spread calls over (1). */
  pool?: number;
  /** Requests in flight on one WebSocket; more wait, by priority (10000). */
  maxPending?: number;
  /** Close a WebSocket that has been idle so long, ms; the next call opens one (0: never). */
  idleTimeout?: number;
  /** auto: the first pause before WebSockets are tried again, ms (1000, doubling to 30000). */
  retryAfter?: number;
  headers?: Record<string, string>;
  logger?: Logger;
  onState?(state: State): void;
  /** For HTTP, and in Workers for the upgrade: a binding's or a Durable Object's fetch. */
  fetch?: (input: string, init?: any) => Promise<Response>;
  /** fetch: open WebSockets by an upgrading fetch, as Workers do (there the default). */
  upgrade?: 'fetch';
  /** A constructor like the browser's, where there is none or another is wanted. */
  WebSocket?: new (url: string, protocols?: string | string[]) => any;
  /** Names of the Cloudflare SDK, with the same meaning. */
  useWebSocket?: boolean;
  transportMode?: 'websocket' | 'http';
  containerTimeouts?: { connect?: number; request?: number };
}

export interface SpawnOptions {
  enabled?: boolean;
  /** 127.0.0.1 */
  host?: string;
  /** A free one. */
  port?: number;
  /** 24 random bytes in hex. */
  token?: string;
  /** The program; else CONFLUX_BIN, the package for this platform, PATH. */
  binary?: string;
  /** Until it is healthy, ms (15000). */
  timeout?: number;
  log?: 'silent' | 'inherit' | ((line: string) => void);
  workspace?: string;
  /** Its state folder; default: one of its own, removed afterwards. */
  state?: string;
  /** More arguments of `conflux serve`. */
  args?: string[];
  env?: Record<string, string>;
  /** Between TERM and KILL when it is ended, ms (5000). */
  grace?: number;
}

export interface CallOptions {
  signal?: AbortSignal;
  /** 0..7, higher first (3). */
  priority?: number;
  deadlineMs?: number;
  onDisconnect?: 'continue' | 'kill';
  /** Instead of timeouts.request. */
  requestTimeout?: number;
}

export interface CommandOptions extends CallOptions {
  sessionId?: string;
  cwd?: string;
  env?: Record<string, string | null>;
  /** Ends the command, ms. */
  timeout?: number;
  stdin?: string | Bytes;
  /** Started at most once with this id; the result is there for whoever asks with it. */
  executionId?: string;
  user?: string | number;
  encoding?: 'utf-8' | 'base64';
  maxOutputBytes?: number;
  onCancel?: 'detach' | 'kill';
  limits?: { memoryMb?: number; cpuShares?: number; maxProcesses?: number; maxOutputBytes?: number };
  isolation?: object;
}
export interface ExecOptions extends CommandOptions {
  detachAfterMs?: number;
}
export interface StreamOptions extends CommandOptions {
  /** 'open': by write() and close(). */
  stdin?: string | Bytes;
  idleTimeout?: number;
}
export interface StartOptions extends CommandOptions {
  processId?: string;
}
export type Command = string | string[];

// ---- results ----

export type Outcome = 'exited' | 'signal' | 'timeout' | 'output_limit' | 'memory_limit' | 'cancelled' | 'lost';
/** Of a command of more than 64 KiB: `command` is its head then, and these tell of the whole. */
export interface LongCommand {
  commandTruncated?: true;
  /** Bytes, in UTF-8. */
  commandLength?: number;
  /** Hexadecimal. */
  commandSha256?: string;
}
export interface ExecResult extends LongCommand {
  success: boolean;
  exitCode: number;
  stdout: string;
  stderr: string;
  command: string;
  executionId?: string;
  sessionId?: string;
  outcome?: Outcome;
  signal?: string;
  timedOut?: boolean;
  stdoutBytes?: number;
  stderrBytes?: number;
  stdoutTruncated?: boolean;
  stderrTruncated?: boolean;
  lossy?: boolean;
  durationMs?: number;
  usage?: { maxRssBytes: number; cpuMs: number };
  /** With detachAfterMs: it goes on, and its result is to be had by its id. */
  detached?: boolean;
}
export interface OutputEvent {
  type: 'stdout' | 'stderr';
  data: string;
  output: string;
  offset?: number;
  timestamp?: string;
}
export interface DroppedEvent {
  type: 'dropped';
  stream: 'stdout' | 'stderr';
  bytes: number;
}
export interface StartEvent extends LongCommand {
  type: 'start';
  command: string;
  executionId?: string;
  processId?: string;
  timestamp: string;
}
export interface CompleteEvent {
  type: 'complete';
  exitCode?: number;
  outcome?: Outcome;
  signal?: string;
  timestamp: string;
}
export type ExecEvent = StartEvent | OutputEvent | DroppedEvent | CompleteEvent;
export type LogEvent = (OutputEvent & { processId?: string }) | (DroppedEvent & { output?: undefined });

/** One reader. It runs at once; leaving a `for await` cancels it on the server. */
export interface Stream<T> extends AsyncIterableIterator<T> {
  /** kill: ends what feeds it, too. */
  cancel(options?: { kill?: boolean }): void;
  /** Where it could be resumed, as far as has come. */
  readonly lastId: string | undefined;
  readonly over: boolean;
}
export interface CommandStream extends Stream<ExecEvent> {
  /** Resolves when the command has taken all but the last MiB or less; what is not awaited is held in memory. */
  write(data: string | Bytes): Promise<void>;
  /** Ends the input, after `data`. */
  close(data?: string | Bytes): Promise<void>;
}
export interface LogPiece {
  stream: 'stdout' | 'stderr';
  from: number;
  data: string;
  encoding: string;
  next: number;
  total: number;
  dropped: number;
  ended: boolean;
}
export interface LogQuery extends CallOptions {
  stream: 'stdout' | 'stderr';
  from?: number;
  limit?: number;
  encoding?: 'utf-8' | 'base64';
}

export interface FileContent {
  path: string;
  content: string;
  encoding: 'utf-8' | 'base64';
  isBinary: boolean;
  mimeType: string;
  size: number;
}
export interface FileEntry {
  name: string;
  absolutePath: string;
  relativePath: string;
  type: 'file' | 'directory' | 'symlink' | 'other';
  size: number;
  modifiedAt: string;
  mode: string;
  permissions: { readable: boolean; writable: boolean; executable: boolean };
}
export interface FileStat {
  path: string;
  type: string;
  size: number;
  mode: string;
  uid: number;
  gid: number;
  mtimeMs: number;
  ino: number;
  nlink: number;
  etag: string;
}
export type FileStreamEvent =
  | { type: 'metadata'; mimeType: string; size: number; isBinary: boolean; encoding: string }
  | { type: 'chunk'; data: string }
  | { type: 'complete'; bytesRead: number }
  | { type: 'error'; error: string };
export interface WatchEvent {
  type: 'watching' | 'event' | 'stopped' | 'error';
  path?: string;
  watchId?: string;
  eventType?: string;
  isDirectory?: boolean;
  reason?: string;
  error?: string;
  timestamp?: string;
}
export interface WatchOptions extends CallOptions {
  recursive?: boolean;
  include?: string[];
  exclude?: string[];
  events?: string[];
  sessionId?: string;
}
export interface FoundEvent extends Extra {
  type: string;
  path?: string;
}
export interface ServerEvent {
  id: number;
  type: string;
  timestamp: string;
  processId?: string;
  executionId?: string;
  sessionId?: string;
  pid?: number;
  exitCode?: number;
  signal?: string;
  outcome?: Outcome;
  stream?: string;
  bytes?: number;
}
export interface Port {
  port: number;
  address: string;
  protocol: string;
  pid?: number;
  name?: string;
  processId?: string;
}
/** Of the container; null: no limit. `percent` only in watchUsage(), from the second on. */
export interface Usage {
  cpu: { source: string; usageMs: number; cores: number; coreLimit: number | null; percent?: number };
  memory: { source: string; usedBytes: number; limitBytes: number | null; totalBytes: number };
  disk: { path: string; totalBytes: number; usedBytes: number; freeBytes: number };
}
export interface InSession extends CallOptions {
  sessionId?: string;
}

// ---- errors ----

export class ConfluxError extends Error {
  code: string;
  /** Sending the same call again cannot do its work twice. */
  retrySafe: boolean;
}
/** The server's answer; `code` is one of its codes. */
export class ApiError extends ConfluxError {
  status: number;
  context: Record<string, any>;
  suggestion?: string;
  operation?: string;
  request?: string;
}
/** No connection. The message has the word WebSocket when that was tried. */
export class ConnectionError extends ConfluxError {
  status?: number;
}
/** `WebSocket closed …`: with an executionId the result can still be had. */
export class ConnectionLostError extends ConfluxError {
  executionId?: string;
}
/** The message has the word timeout. */
export class TimeoutError extends ConfluxError {
  executionId?: string;
}
/** PROTOCOL_ERROR: what the server sent makes no sense; the message says what came. */
export class ProtocolError extends ConfluxError {
  executionId?: string;
}
export class SpawnError extends ConfluxError {}

// ---- the client ----

export class Transport {
  connect(): Promise<void>;
  /** Ends what is under way, over HTTP too; the next call connects again. */
  disconnect(): void;
  isConnected(): boolean;
  getMode(): 'websocket' | 'http';
  fetch(path: string, options?: RequestInit): Promise<Response>;
  /** The events as bytes of text/event-stream. */
  fetchStream(path: string, body?: unknown, method?: 'GET' | 'POST'): Promise<ByteStream>;
  request(
    call: {
      method: string;
      path: string;
      body?: object;
      headers?: Record<string, string>;
      timeout?: number;
    } & CallOptions,
  ): Promise<{ status: number; body: any }>;
  dispose(): void;
}

declare class Files {
  readFile(
    path: string,
    options?: InSession & { encoding?: 'utf-8' | 'utf8' | 'base64'; offset?: number; limit?: number },
  ): Promise<FileContent>;
  readBytes(path: string, options?: InSession & { pieceBytes?: number; offset?: number }): Promise<Uint8Array>;
  readPieces(path: string, options?: InSession & { pieceBytes?: number; offset?: number }): AsyncGenerator<Uint8Array>;
  readFileStream(path: string, options?: InSession): Stream<FileStreamEvent>;
  writeFile(
    path: string,
    content: string | Bytes | Blob,
    options?: InSession & { mode?: string; atomic?: boolean; append?: boolean; encoding?: 'base64'; uploadId?: string },
  ): Promise<{ path: string } & Extra>;
  uploadStatus(
    uploadId: string,
    options?: CallOptions,
  ): Promise<{ uploadId: string; path: string; size: number; complete: boolean }>;
  deleteFile(path: string, options?: InSession): Promise<{ path: string }>;
  renameFile(oldPath: string, newPath: string, options?: InSession): Promise<{ path: string; newPath: string }>;
  moveFile(
    sourcePath: string,
    destinationPath: string,
    options?: InSession,
  ): Promise<{ path: string; newPath: string }>;
  copyFile(
    source: string,
    destination: string,
    options?: InSession & { recursive?: boolean; overwrite?: boolean },
  ): Promise<Extra>;
  mkdir(path: string, options?: InSession & { recursive?: boolean }): Promise<{ path: string; recursive: boolean }>;
  stat(path: string, options?: InSession & { follow?: boolean }): Promise<FileStat>;
  chmod(path: string, mode: string, options?: InSession & { recursive?: boolean }): Promise<Extra>;
  chown(
    path: string,
    owner: { uid?: number; gid?: number },
    options?: InSession & { recursive?: boolean },
  ): Promise<Extra>;
  exists(path: string, options?: InSession): Promise<boolean>;
  listFiles(path: string, options?: InSession & { recursive?: boolean; includeHidden?: boolean }): Promise<FileEntry[]>;
  search(path: string, options?: InSession & { glob?: string; hidden?: boolean; limit?: number }): Stream<FoundEvent>;
  grep(
    path: string,
    pattern: string,
    options?: InSession & { regex?: boolean; glob?: string; hidden?: boolean; limit?: number },
  ): Stream<FoundEvent>;
  replace(
    path: string,
    edits: { old: string; new: string; all?: boolean }[],
    options?: InSession,
  ): Promise<{ path: string; replacements: number } & Extra>;
  batchFiles(
    operations: { path: string; body: object }[],
    options?: InSession,
  ): Promise<{ results: { status: number; body: any }[]; failed: number }>;
  getArchive(path: string, options?: RequestInit): Promise<Response>;
  putArchive(path: string, body: Body, options?: RequestInit): Promise<any>;
  getRaw(path: string, options?: RequestInit): Promise<Response>;
  putRaw(
    path: string,
    body: Body,
    options?: Omit<RequestInit, 'mode'> & { mode?: string; parents?: boolean },
  ): Promise<any>;
  watch(path: string, options?: WatchOptions): Stream<WatchEvent>;
  checkChanges(
    path: string,
    options?: WatchOptions & { since?: string },
  ): Promise<{ status: 'unchanged' | 'changed' | 'resync'; reason?: string; version: string }>;
}

declare class Operations extends Files {
  exec(command: Command, options?: ExecOptions): Promise<ExecResult>;
  execStream(command: Command, options?: StreamOptions): CommandStream;
  startProcess(command: Command, options?: StartOptions): Promise<Process>;
  startProcess(request: StartOptions & ({ command: Command } | { args: string[] })): Promise<Process>;
}

export class Session extends Operations {
  private constructor();
  readonly id: string;
  readonly sessionId: string;
  delete(options?: CallOptions & { keep?: boolean }): Promise<Extra>;
}

export interface WaitOptions extends CallOptions {
  timeout?: number;
}
export class Process {
  private constructor();
  readonly id: string;
  readonly pid?: number;
  readonly command: string;
  /** Of a command of more than 64 KiB: `command` is its head then, and these tell of the whole. */
  readonly commandTruncated?: true;
  readonly commandLength?: number;
  readonly commandSha256?: string;
  readonly status?: 'starting' | 'running' | 'completed' | 'failed' | 'killed' | 'error';
  readonly startTime?: string;
  readonly endTime?: string;
  readonly exitCode?: number;
  readonly outcome?: Outcome;
  readonly signal?: string;
  readonly sessionId?: string;
  readonly cwd?: string;
  readonly usage?: { maxRssBytes: number; cpuMs: number };
  readonly offsets?: { stdout: number; stderr: number };
  readonly dropped?: { stdout: number; stderr: number };
  refresh(options?: CallOptions): Promise<this>;
  logs(options?: CallOptions & { from?: number | string }): Stream<LogEvent>;
  output(options?: CallOptions): Promise<{ processId: string; stdout: string; stderr: string }>;
  output(options: LogQuery): Promise<LogPiece>;
  wait(options?: WaitOptions): Promise<this>;
  waitForLog(
    pattern: string,
    options?: WaitOptions & { regex?: boolean; stream?: 'stdout' | 'stderr'; from?: number },
  ): Promise<{ stream: string; offset: number; line: string; match: string } & Extra>;
  waitForPort(port: number, options?: WaitOptions): Promise<this>;
  kill(options?: KillOptions): Promise<{ killed?: number[]; survivors?: number[] } & Extra>;
  sendSignal(signal: string | number, options?: CallOptions & { tree?: boolean }): Promise<Extra>;
  write(data: string | Bytes, options?: CallOptions & { eof?: boolean }): Promise<Extra>;
  closeStdin(options?: CallOptions): Promise<Extra>;
}
export interface KillOptions extends Omit<CallOptions, 'signal'> {
  signal?: string | number | AbortSignal;
  graceMs?: number;
}

export class Execution {
  private constructor();
  readonly id: string;
  result(options: WaitOptions & { timeout: number }): Promise<ExecResult | null>;
  result(options?: WaitOptions): Promise<ExecResult>;
  stream(options?: CallOptions & { from?: number | string }): Stream<ExecEvent>;
  logs(options: LogQuery): Promise<LogPiece>;
  cancel(options?: CallOptions): Promise<Extra>;
}

export class Conflux extends Operations {
  /** Connects at the first call, or at transport.connect(). */
  constructor(options: ClientOptions);
  readonly baseUrl: string;
  readonly token: string | undefined;
  readonly transport: Transport;
  readonly client: this;
  /** Ends all that is under way: pending calls and streams reject, also the reading of a body. */
  dispose(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
  session(id: string): Session;
  createSession(
    options?: CallOptions & { id?: string; env?: Record<string, string>; cwd?: string; commandTimeoutMs?: number },
  ): Promise<Session>;
  listSessions(options?: CallOptions): Promise<string[]>;
  deleteSession(id: string, options?: CallOptions & { keep?: boolean }): Promise<Extra>;
  listProcesses(
    options?: CallOptions & { status?: string; sessionId?: string; limit?: number; after?: string },
  ): Promise<Process[]>;
  getProcess(id: string, options?: CallOptions): Promise<Process>;
  killProcess(id: string, options?: KillOptions): Promise<{ killed?: number[]; survivors?: number[] } & Extra>;
  killAllProcesses(options?: CallOptions): Promise<number>;
  execution(id: string): Execution;
  ping(options?: CallOptions): Promise<string>;
  version(options?: CallOptions): Promise<string>;
  ports(options?: CallOptions): Promise<Port[]>;
  usage(options?: CallOptions): Promise<Usage>;
  watchUsage(options?: CallOptions & { intervalMs?: number }): Stream<Usage & { type: 'usage' }>;
  pending(options?: CallOptions): Promise<any>;
  events(options?: CallOptions & { from?: number | string }): Stream<ServerEvent>;
  batch<T>(
    tasks: ((client: this) => T | Promise<T>)[],
    options: { concurrency?: number; settle: true },
  ): Promise<PromiseSettledResult<T>[]>;
  batch<T>(
    tasks: ((client: this) => T | Promise<T>)[],
    options?: { concurrency?: number; settle?: false },
  ): Promise<T[]>;
}

/** A server that is there. */
export function connect(options: ClientOptions & { spawn?: false | { enabled: false } }): Promise<Conflux>;
/** A server of one's own (Node and Bun): started, and ended on dispose() and when this program exits. */
export function connect(options?: Omit<ClientOptions, 'baseUrl'> & { spawn?: true | SpawnOptions }): Promise<Conflux>;
