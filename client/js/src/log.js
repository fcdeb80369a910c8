// What the client tells a logger: which message went where. Never a body, a header, a query or a token, so that no
// command, environment, file or secret can end up in a log.
import { pathOf } from './errors.js';

const LEVELS = ['debug', 'info', 'warn', 'error'];

export function createLogger({ level = 'info', component = 'conflux', sink = console } = {}) {
  const least = LEVELS.indexOf(level);
  const logger = {};
  LEVELS.forEach((name, i) => {
    logger[name] = (message, fields) => {
      if (i >= least) sink[name](`[${component}] ${message}`, ...(fields ? [fields] : []));
    };
  });
  return logger;
}

// A logger that is missing methods, or is a function, will do.
export function asLogger(given) {
  const log = {};
  for (const name of LEVELS) {
    log[name] =
      typeof given === 'function'
        ? (message, fields) => given({ level: name, message, ...fields })
        : typeof given?.[name] === 'function'
          ? (message, fields) => given[name](message, fields)
          : () => {};
  }
  log.enabled = !!given;
  return log;
}

export const callFields = (id, call) => ({ id, method: call.method, path: pathOf(call.path) });
