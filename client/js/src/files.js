// File operations. Relative paths are the session's, or the workspace's where there is none.
import { asBytes, concat, fromBase64, isBytes, toBase64 } from './bytes.js';
import { ApiError, ProtocolError } from './errors.js';
import { checked, query, segment, split } from './calls.js';
import { parse } from './shape.js';

// Bytes of one message when a file goes in pieces: far under the limit of a message, base64 included.
const PIECE = 4 << 20;
// Unique, not secret: `crypto` is missing in Node 18 and on pages without TLS.
const uniqueId = () =>
  `up-${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}${Math.random().toString(36).slice(2)}`;
const LIST_PART = 10000; // entries
const bytesOf = content => {
  try {
    return fromBase64(content);
  } catch (e) {
    throw new ProtocolError('The server sent content that is not base64', { cause: e });
  }
};
const QUIET = { idle: 0 }; // silence is no fault of these streams

export class Files {
  #calls;
  constructor(calls) {
    this.#calls = calls;
  }
  get calls() {
    return this.#calls;
  }
  // Where it runs; a request that says so itself is left alone. Session and client differ here.
  scoped(body) {
    return body;
  }

  #post(path, body, options, fields) {
    const [control, rest] = split(options);
    return this.#calls.post(path, this.scoped({ ...body, ...rest }), control, { fields });
  }

  // ---- content ----

  // {content, encoding, isBinary, mimeType, size}; options: encoding, offset, limit.
  readFile(path, options) {
    return this.#post('/api/read', { path }, options, { content: 'text', encoding: 'text' });
  }

  // Exact bytes of a file of any size, read in pieces.
  async readBytes(path, options) {
    const parts = [];
    for await (const part of this.readPieces(path, options)) parts.push(part);
    return concat(parts);
  }

  // The same, a piece at a time.
  async *readPieces(path, { pieceBytes = PIECE, offset = 0, ...options } = {}) {
    for (;;) {
      const { content } = await this.readFile(path, { ...options, encoding: 'base64', offset, limit: pieceBytes });
      const part = bytesOf(content);
      if (part.length) yield part;
      if (part.length < pieceBytes) return;
      offset += part.length;
    }
  }

  // The server's own stream of a file: {type: metadata | chunk | complete, …}.
  readFileStream(path, options) {
    const [control, rest] = split(options);
    return this.#calls.stream('POST', '/api/read/stream', this.scoped({ path, ...rest }), control);
  }

  // Text as it is, bytes exactly. What is too long for one message goes in pieces, and appears under its name complete
  // or not at all. Options: mode, atomic, append.
  async writeFile(path, content, options = {}) {
    if (content instanceof Blob) content = new Uint8Array(await content.arrayBuffer());
    const long = (typeof content === 'string' ? content.length * 3 : content.byteLength) > PIECE;
    if (long && !options.append) {
      const bytes = asBytes(content);
      if (bytes.length > PIECE) return this.#upload(path, bytes, options);
    }
    const body = isBytes(content) ? { content: toBase64(asBytes(content)), encoding: 'base64' } : { content };
    return this.#post('/api/write', { path, ...body }, options);
  }

  async #upload(path, bytes, { uploadId = uniqueId(), ...options }) {
    for (let offset = 0; ;) {
      const part = bytes.subarray(offset, offset + PIECE);
      const final = offset + part.length >= bytes.length;
      const answer = await this.#post(
        '/api/write',
        { path, content: toBase64(part), encoding: 'base64', uploadId, offset, ...(final && { final }) },
        options,
      );
      if (final) return answer;
      offset += part.length;
    }
  }

  // What has come of an upload in pieces: {uploadId, path, size, complete}.
  uploadStatus(uploadId, options) {
    return this.#calls.get(`/api/files/upload/${segment(uploadId)}`, split(options)[0]);
  }

  // ---- the tree ----

  deleteFile(path, options) {
    return this.#post('/api/delete', { path }, options);
  }
  renameFile(oldPath, newPath, options) {
    return this.#post('/api/rename', { oldPath, newPath }, options);
  }
  moveFile(sourcePath, destinationPath, options) {
    return this.#post('/api/move', { sourcePath, destinationPath }, options);
  }
  copyFile(source, destination, options) {
    return this.#post('/api/files/copy', { source, destination }, options);
  }
  mkdir(path, options) {
    return this.#post('/api/mkdir', { path }, options);
  }
  stat(path, options) {
    return this.#post('/api/files/stat', { path }, options, { type: 'text', size: 'number' });
  }
  chmod(path, mode, options) {
    return this.#post('/api/files/chmod', { path, mode }, options);
  }
  chown(path, owner, options) {
    return this.#post('/api/files/chown', { path, ...owner }, options);
  }

  async exists(path, options) {
    return (await this.#post('/api/exists', { path }, options, { exists: 'boolean' })).exists;
  }

  async listFiles(path, options) {
    const [control, { recursive, includeHidden, ...rest }] = split(options);
    const files = [];
    // In parts: as one message a long list would be refused.
    for (let after; ; ) {
      const asked = { recursive, includeHidden, limit: LIST_PART, after };
      const part = await this.#calls.post('/api/list-files', this.scoped({ path, options: asked, ...rest }), control, {
        fields: ({ truncated }) => ({ files: ['object'], ...(truncated && { next: 'text' }) }),
      });
      for (const file of part.files) files.push(file);
      if (!part.truncated) return files;
      if (!part.files.length || part.next === after) throw new ProtocolError('The server sent a list that does not go on');
      after = part.next;
    }
  }

  // ---- many at once ----

  // Streams of what is found. search: glob, hidden, limit; grep: regex, glob, limit.
  search(path, options) {
    return this.#found('/api/files/search', { path }, options);
  }
  grep(path, pattern, options) {
    return this.#found('/api/files/grep', { path, pattern }, options);
  }
  #found(route, body, options) {
    const [control, rest] = split(options);
    return this.#calls.stream('POST', route, this.scoped({ ...body, ...rest }), control);
  }

  // edits: [{old, new, all?}]
  replace(path, edits, options) {
    return this.#post('/api/files/replace', { path, edits }, options);
  }
  // One request with many operations, each {path: '/api/…', body}: {results: [{status, body}], failed}.
  batchFiles(operations, options) {
    const scoped = operations.map(({ body, ...rest }) => ({ ...rest, body: this.scoped(body) }));
    return this.#post('/api/files/batch', { operations: scoped }, options, { results: ['object'] });
  }

  // ---- bodies of any size: HTTP, whatever the transport is ----

  // A folder as a tar: the Response, whose body streams.
  getArchive(path, { headers, ...options } = {}) {
    return this.#raw(query('/api/files/archive', { ...this.scoped({}), path }), { headers, ...options });
  }
  putArchive(path, body, options) {
    return this.#put(query('/api/files/archive', { ...this.scoped({}), path }), body, options);
  }
  // A file, with Range and ETag; options.headers for these.
  getRaw(path, options) {
    return this.#raw(query('/api/files/raw', { ...this.scoped({}), path }), options);
  }
  putRaw(path, body, { mode, parents, ...options } = {}) {
    const target = query('/api/files/raw', { ...this.scoped({}), path, mode, parents: parents && 1 });
    return this.#put(target, body, options);
  }
  async #put(path, body, options) {
    const call = { method: 'PUT', path };
    const response = await this.#raw(path, { method: 'PUT', body, ...options });
    return checked(parse(await response.text()), {}, call);
  }
  async #raw(path, init = {}) {
    if (init.body instanceof ReadableStream) init = { duplex: 'half', ...init };
    const response = await this.#calls.transport.fetchRaw(path, init);
    if (response.status < 400) return response;
    throw new ApiError(response.status, parse(await response.text()));
  }

  // ---- changes ----

  // {type: watching | event | stopped | error, …}, until it is left. Options: recursive, include, exclude, events.
  watch(path, options) {
    const [control, rest] = split(options);
    return this.#calls.stream('POST', '/api/watch', this.scoped({ path, ...rest }), control, QUIET);
  }
  checkChanges(path, options) {
    return this.#post('/api/watch/check', { path }, options, { status: 'text' });
  }
}
