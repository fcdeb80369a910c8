export { connect, Conflux } from './connect.js';
export { Session } from './session.js';
export { Process } from './process.js';
export { Execution } from './execution.js';
export { Transport } from './transport/transport.js';
export { createLogger } from './log.js';
export {
  ConfluxError,
  ApiError,
  ConnectionError,
  ConnectionLostError,
  ProtocolError,
  TimeoutError,
  SpawnError,
} from './errors.js';
