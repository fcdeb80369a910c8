#pragma once
/* The client's end of the multiplexed WebSocket (RFC 6455; the messages are those of the sandbox API). */
#include <stdbool.h>

#include "base/buf.h"
#include "transport/frame.h"

/* Connects to /ws and waits until that is open; the socket blocks. */
int ws_dial(void);
/* Appends a whole text message. */
void ws_put(cp_buf *out, const char *p, size_t n);
void ws_put_pong(cp_buf *out, cp_str payload);
/* Appends a request with this id; body: JSON or NULL. credit: of a stream; 0: it needs none. */
void ws_put_request(cp_buf *out, const char *id, const char *method, const char *path, const cp_buf *body,
                    int64_t credit);
/* Reads a blocking socket until take says true of a message. Dies when it ends before. */
void ws_until(int fd, cp_frame_in *d, bool (*take)(void *ctx, cp_str message), void *ctx);
/* The id of a response, as the text after "id":", up to its quote; dies unless its status is 200. */
cp_str ws_response_id(cp_str message);
static inline bool ws_is_stream(cp_str m) { return m.n > 16 && memcmp(m.p, "{\"type\":\"stream\"", 16) == 0; }
/* What a stream message costs of the stream's credit: the length of its data as a string. */
uint64_t ws_stream_cost(cp_str message);
/* Bytes of the child's stdout in a stream message; 0 for other events. */
uint64_t ws_stdout_bytes(cp_str message);
