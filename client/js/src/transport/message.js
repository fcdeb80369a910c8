// A message of the WebSocket as it comes in. What it must look like is said, and checked, here and nowhere else.
import { misfit } from '../shape.js';

// Those of a call, by type. Other types are left to later versions of the server.
const CALLS = {
  response: { status: 'status' },
  stream: { data: 'text', 'event?': 'text', 'eventId?': 'id' },
  stdin: { bytes: 'count' },
  error: { status: 'failure', 'code?': 'text', 'message?': 'text', 'of?': 'text' },
};
const HELLO = { 'limits?': { 'maxMessageBytes?': 'limit', 'maxPending?': 'limit' } };

// {message, fault?, whole?}: fault says what is wrong with it; whole: with no call alone, but with the connection.
export function readMessage(text) {
  let message;
  try {
    message = JSON.parse(text);
  } catch {
    return { fault: 'what is no message: it is not JSON', whole: true };
  }
  const wrong = misfit(message, { type: 'text' });
  if (wrong) return { message: Object(message), fault: `what is no message: ${wrong}`, whole: true };
  const known = Object.hasOwn(CALLS, message.type);
  const fault = misfit(message, known ? CALLS[message.type] : message.type === 'hello' ? HELLO : {});
  return { message, whole: !known, ...(fault && { fault: `a malformed message of type ${message.type}: ${fault}` }) };
}
