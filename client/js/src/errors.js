// Every error that the client throws. `code` is for programs; `retrySafe` says whether sending the same call again
// cannot do its work twice. Handlers written for the Cloudflare SDK look into messages: what concerns the connection
// says "WebSocket", a lost one "WebSocket closed", and whatever took too long "timeout".

export class ConfluxError extends Error {
  constructor(message, { code = 'CLIENT_ERROR', retrySafe = false, cause, ...more } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.retrySafe = retrySafe;
    Object.assign(this, more);
  }
}

// The server answered, with an error. `code` is the server's (schema/errors.def), `context` what it says about the
// case.
export class ApiError extends ConfluxError {
  constructor(status, body, call) {
    const b = body && typeof body === 'object' ? body : {};
    const told = [b.message, b.error, typeof body === 'string' ? body.slice(0, 500) : ''];
    const text = name => (typeof b[name] === 'string' && b[name]) || undefined;
    const message = told.find((text) => typeof text === 'string' && text) ?? `HTTP status ${status}`;
    // Refused before anything was begun.
    const retrySafe = status === 429 || status === 503;
    super(message, { code: text('code') ?? 'INTERNAL_ERROR', retrySafe });
    this.status = Number.isInteger(b.httpStatus) ? b.httpStatus : status;
    this.context = b.context && typeof b.context === 'object' ? b.context : {};
    if (text('suggestion')) this.suggestion = b.suggestion;
    if (text('operation')) this.operation = b.operation;
    if (call) this.request = `${call.method} ${pathOf(call.path)}`;
  }
}

// No connection could be made: nothing was sent.
export class ConnectionError extends ConfluxError {
  constructor(message, more) {
    super(message, { code: 'CONNECTION_FAILED', retrySafe: true, ...more });
  }
}

// The connection ended while the call was under way: it may have been carried out, unless `retrySafe`. With an
// `executionId` the result can still be had: client.execution(error.executionId).
export class ConnectionLostError extends ConfluxError {
  constructor(message, more) {
    super(message, { code: 'CONNECTION_LOST', ...more });
  }
}

export class TimeoutError extends ConfluxError {
  constructor(message, more) {
    super(message, { code: 'TIMEOUT', ...more });
  }
}

// What the server sent is not the protocol: no answer can be made of it. The call may have been carried out, unless
// `retrySafe`.
export class ProtocolError extends ConfluxError {
  constructor(message, more) {
    super(message, { code: 'PROTOCOL_ERROR', ...more });
  }
}

// connect({}) could not start a server.
export class SpawnError extends ConfluxError {
  constructor(message, more) {
    super(message, { code: 'SPAWN_FAILED', retrySafe: true, ...more });
  }
}

// What changes nothing may be sent twice.
const READS = /^\/api\/(read|exists|list-files|files\/(stat|search|grep)|watch\/check|read\/stream|watch)$/;
export const pathOf = path => path.split('?', 1)[0];
// An execution id makes a start happen at most once.
export const isRepeatable = call => call.method === 'GET' || !!call.body?.executionId || READS.test(pathOf(call.path));

// What is known of a call that ended without an answer.
const fate = (call, sent = true) => ({
  retrySafe: !sent || isRepeatable(call),
  ...(call.body?.executionId && { executionId: call.body.executionId }),
});
export const lostCall = (why, call, sent) => new ConnectionLostError(why, fate(call, sent));
export const brokenCall = (why, call, sent) => new ProtocolError(why, fate(call, sent));
export const disposed = () =>
  new ConfluxError('This client has been disposed of', { code: 'DISPOSED', retrySafe: true });
export const timedOut = (call, ms) =>
  new TimeoutError(`Request timeout after ${ms} ms: ${call.method} ${pathOf(call.path)}`, fate(call));
export const abortReason = signal => signal.reason ?? new DOMException('This operation was aborted', 'AbortError');

// A command with an id is not ended by the impatience of one caller, nor by an answer that nobody can read: whoever has
// the id may ask for its result. One that is aborted is not wanted any more.
export const outlives = (call, error) =>
  (error instanceof TimeoutError || error instanceof ProtocolError) && !!call.body?.executionId;
