// A TCP proxy before the server that can refuse WebSockets, keep silent, cut and count.
import net from 'node:net';
import tls from 'node:tls';

// With {key, cert} it speaks TLS.
export async function proxy(target, secure) {
  const p = { upgrades: 0, connections: 0, requests: 0, refuse: null, silent: false, sockets: new Set() };
  const listen = secure ? handler => tls.createServer(secure, handler) : net.createServer;
  const server = listen(client => {
    p.connections++;
    p.sockets.add(client);
    client.on('close', () => p.sockets.delete(client));
    client.on('error', () => {});
    client.once('data', head => {
      const upgrade = /^upgrade: *websocket/im.test(head.toString('latin1'));
      if (upgrade) p.upgrades++; else p.requests++;
      if (p.silent) return;
      if (upgrade && p.refuse) return client.end(`HTTP/1.1 ${p.refuse}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
      const upstream = net.connect(Number(target().port), target().host);
      p.sockets.add(upstream);
      upstream.on('error', () => client.destroy());
      upstream.on('close', () => p.sockets.delete(upstream));
      upstream.write(head);
      client.pipe(upstream).pipe(client);
      client.on('close', () => upstream.destroy());
    });
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  p.base = `http${secure ? 's' : ''}://127.0.0.1:${server.address().port}`;
  p.cut = () => { for (const socket of p.sockets) socket.destroy(); };
  p.close = () => { p.cut(); return new Promise(resolve => server.close(resolve)); };
  return p;
}
