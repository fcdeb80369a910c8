// Loads the unmodified npm package @cloudflare/sandbox in plain Node: modules that exist only inside Workers are given
// as empty ones, imports without an ending get theirs, and what is a module without saying so (Node 18 goes by that) is one.
import { register } from 'node:module';
import WebSocket from 'ws';

const hooks = `
const empty = \`
export class DurableObject {} export class WorkerEntrypoint {} export class RpcTarget {} export class RpcStub {} export class WorkflowEntrypoint {}
export class EmailMessage {}
export const env = {}, exports = {}, tracing = {};
export function waitUntil() {}
export function connect() { throw new Error('not available outside Workers'); }
\`;
export async function resolve(name, context, next) {
  if (name.startsWith('cloudflare:')) return { url: 'worker-only:' + name, shortCircuit: true };
  try { return await next(name, context); } catch (e) {
    if (e.code === 'ERR_MODULE_NOT_FOUND' && name.startsWith('.')) return next(name + '.js', context);
    throw e;
  }
}
export async function load(url, context, next) {
  if (url.startsWith('worker-only:')) return { format: 'module', source: empty, shortCircuit: true };
  return next(url, url.includes('/node_modules/@cloudflare/') ? { ...context, format: 'module' } : context);
}`;
register('data:text/javascript,' + encodeURIComponent(hooks));
globalThis.WebSocket ??= WebSocket;
globalThis.WebSocketPair ??= class {};

export const sdk = await import('@cloudflare/sandbox');
export const client = (s, transport) => new sdk.SandboxClient(
  transport === 'websocket' ? { baseUrl: s.base, transportMode: 'websocket', wsUrl: s.ws + '/ws', retryTimeoutMs: 0 } : { baseUrl: s.base, retryTimeoutMs: 0 });

export async function events(stream) {
  const all = [];
  for await (const e of sdk.parseSSEStream(stream)) all.push(e);
  return all;
}
export const text = (evs, type) => evs.filter(e => e.type === type).map(e => e.data).join('');
