// Server-sent events out of a body, as {id, event, data}: lines may end in any way and chunks may be cut anywhere.
export async function* readSse(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '',
    item = {};
  try {
    for (;;) {
      const { value, done } = await reader.read();
      text += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A lone \r at the end may be half of \r\n.
      const whole = done || !text.endsWith('\r') ? text : text.slice(0, -1);
      const lines = whole.split(/\r\n|\n|\r/);
      text = lines.pop() + text.slice(whole.length);
      for (const line of lines) {
        if (line === '') {
          if (item.data !== undefined) yield item;
          item = {};
        } else {
          addField(item, line);
        }
      }
      if (done) return;
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
