// The same few steps wherever the package runs: with BASE a server that is there, without it one of its own.
import { connect } from 'conflux-client';

const { BASE: baseUrl, TOKEN: token } = process.env;
const c = await connect(baseUrl ? { baseUrl, token } : {});
const mode = c.transport.getMode();
const { stdout } = await c.exec('cat', { stdin: 'hello' });
let streamed = '';
for await (const e of c.execStream('seq 3')) if (e.type === 'stdout') streamed += e.data;
await c.writeFile('/tmp/conflux-smoke', new Uint8Array([0, 255]));
const bytes = [...await c.readBytes('/tmp/conflux-smoke')];
await c.deleteFile('/tmp/conflux-smoke');
await c.dispose();
console.log(JSON.stringify({ mode, stdout, streamed, bytes }));
