// Server-sent events out of a body, as {id, event, data}: lines may end in any way and chunks may be cut anywhere.
import { ProtocolError } from './errors.js';

const MAX_EVENT = 64 << 20; // characters: far beyond what a server puts into one

export async function* readSse(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let parts = [], // of lines that are not whole
    size = 0,
    half = false, // they end with a \r, which may be half of \r\n
    item = {};
  try {
    for (;;) {
      const { value, done } = await reader.read();
      const piece = done ? decoder.decode() : decoder.decode(value, { stream: true });
      parts.push(piece);
      if ((size += piece.length) > MAX_EVENT) throw new ProtocolError('The server sent an event without end');
      if (!done && !half && !/[\r\n]/.test(piece)) continue;
      const text = parts.join('');
      half = !done && text.endsWith('\r');
      const lines = (half ? text.slice(0, -1) : text).split(/\r\n|\n|\r/);
      parts = [lines.pop() + (half ? '\r' : '')];
      for (const line of lines) {
        if (line === '') {
          if (item.data !== undefined) yield item;
          item = {};
        } else {
          addField(item, line);
        }
      }
      if (done) return;
      size = parts[0].length + (item.data?.length ?? 0);
    }
  } finally {
    await reader.cancel().catch(() => {}); // it may be the very failure that is being thrown
  }
}

function addField(item, line) {
  const colon = line.indexOf(':');
  if (colon === 0) return;
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
  if (name === 'data') item.data = item.data === undefined ? value : `${item.data}\n${value}`;
  else if (name === 'id' || name === 'event') item[name] = value;
}
