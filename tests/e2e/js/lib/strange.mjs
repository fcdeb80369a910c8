// A server that says what a test wants it to: by message(m, ws) on the WebSocket, by answer(request, response) over HTTP.
import http from 'node:http';
import { WebSocketServer } from 'ws';

export async function strange({ message = () => {}, answer = (_, response) => response.writeHead(404).end(), hello = {} } = {}) {
  const s = { connections: 0, message, answer, hello };
  const server = http.createServer((request, response) => request.resume().on('end', () => s.answer(request, response)));
  const sockets = new WebSocketServer({ server });
  sockets.on('connection', ws => {
    s.connections++;
    ws.on('error', () => {});
    ws.on('message', text => {
      const m = JSON.parse(text);
      if (m.type === 'hello') ws.send(JSON.stringify({ type: 'hello', ...s.hello }));
      else if (m.type === 'request') s.message(m, ws);
    });
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  s.base = `http://127.0.0.1:${server.address().port}`;
  s.close = () => {
    for (const ws of sockets.clients) ws.terminate();
    server.closeAllConnections();
    return new Promise(resolve => server.close(resolve));
  };
  return s;
}

export const send = (ws, m) => ws.send(typeof m === 'string' ? m : JSON.stringify(m));
