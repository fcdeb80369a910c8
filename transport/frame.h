#pragma once
/* RFC 6455 framing for both ends of a WebSocket. Pure: bytes in, events out; no fd, no clock, any thread (one at a
 * time per decoder). The role decides the direction of masking: a server takes masked frames only and sends bare
 * ones, a client the other way round (section 5.1). No extension is ever negotiated, so every RSV bit is an error. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/utf8.h"

typedef enum { CP_FRAME_SERVER, CP_FRAME_CLIENT } cp_frame_role;

enum {
    CP_OP_CONT = 0x0,
    CP_OP_TEXT = 0x1,
    CP_OP_BINARY = 0x2,
    CP_OP_CLOSE = 0x8,
    CP_OP_PING = 0x9,
    CP_OP_PONG = 0xA,
};

/* Close codes that we send (RFC 6455 section 7.4.1). */
enum {
    CP_CLOSE_NORMAL = 1000,
    CP_CLOSE_GOING_AWAY = 1001,
    CP_CLOSE_PROTOCOL = 1002,
    CP_CLOSE_UNSUPPORTED = 1003,
    CP_CLOSE_NO_STATUS = 1005, /* never on the wire: a close frame without a payload */
    CP_CLOSE_BAD_DATA = 1007,
    CP_CLOSE_POLICY = 1008,
    CP_CLOSE_TOO_BIG = 1009,
    CP_CLOSE_INTERNAL = 1011,
    CP_CLOSE_TRY_AGAIN = 1013,
};

enum {
    CP_FRAME_HEAD_MAX = 14,
    CP_FRAME_CONTROL_MAX = 125,
    CP_FRAME_CLOSE_MAX = 6 + CP_FRAME_CONTROL_MAX, /* a whole masked close frame */
};

typedef enum cp_frame_kind {
    CP_FRAME_NEED_MORE, /* all input was used */
    CP_FRAME_MESSAGE,   /* opcode TEXT (valid UTF-8) or BINARY; payload is the whole message */
    CP_FRAME_PING,      /* payload to be sent back */
    CP_FRAME_PONG,
    CP_FRAME_CLOSE, /* code (CP_CLOSE_NO_STATUS when the peer gave none); payload is the reason, valid UTF-8 */
    CP_FRAME_ERROR, /* code to close with; payload is the reason to give, static text */
} cp_frame_kind;

typedef struct cp_frame_event {
    cp_frame_kind kind;
    uint8_t opcode;
    uint16_t code;
    char *data;     /* MESSAGE: payload.p, writable; else NULL */
    cp_str payload; /* p is never NULL; borrowed from the input or the decoder until the next call of cp_frame_next */
} cp_frame_event;

/* Embed in the connection; the fields are the decoder's own. */
typedef struct cp_frame_in {
    size_t max_message;
    uint64_t left; /* payload bytes of the current frame still to come */
    uint64_t off;  /* payload bytes of the current frame already taken */
    cp_buf msg;    /* what has arrived of a message that is not whole within one input */
    cp_utf8 utf8;
    uint32_t key; /* masking key of the current frame, bytes in wire order */
    cp_frame_role role;
    uint8_t opcode;     /* of the current frame */
    uint8_t msg_opcode; /* TEXT or BINARY while a fragmented message is open, else 0 */
    bool fin;
    bool in_frame; /* the head is parsed, the payload is being taken */
    bool handed;   /* msg was lent out by the last event */
    bool over;     /* a close or an error was reported: the rest of the input is dropped */
    uint8_t head_n, ctl_n;
    uint8_t head[CP_FRAME_HEAD_MAX];
    char ctl[CP_FRAME_CONTROL_MAX];
} cp_frame_in;

/* Messages over max_message bytes are refused with 1009 as soon as a frame head says so. fini frees what is held;
 * the decoder may then be initialised again. */
void cp_frame_in_init(cp_frame_in *d, cp_frame_role role, size_t max_message);
void cp_frame_in_fini(cp_frame_in *d);

/* Decodes up to the next event. The input is data[0..n) and it is unmasked in place: never pass the same bytes twice.
 * *used is set to the number of bytes taken; call again with the rest until CP_FRAME_NEED_MORE, which takes all. A
 * message or control frame that lies whole in the input is neither copied nor allocated. After CLOSE or ERROR all
 * further input is dropped. Returns ev->kind. */
cp_frame_kind cp_frame_next(cp_frame_in *d, char *data, size_t n, size_t *used, cp_frame_event *ev);

/* Makes the payload of the last MESSAGE the caller's, in `out` (which must be empty; caller frees): moved when the
 * decoder had to collect it, copied when it lies in the input. For messages that outlive the read buffer. */
void cp_frame_take(cp_frame_in *d, const cp_frame_event *ev, cp_buf *out);

/* Bytes held for an unfinished message: what a memory budget counts. */
static inline size_t cp_frame_held(const cp_frame_in *d) { return d->msg.cap; }

/* Writes a frame head and returns its length. The first frame of a fragmented message carries the opcode and fin
 * false, the following ones CP_OP_CONT, the last of them fin true. mask: a client's 4 fresh random bytes, with which
 * the payload must then go through cp_frame_mask; NULL for a server. */
size_t cp_frame_head(char out[CP_FRAME_HEAD_MAX], unsigned opcode, bool fin, uint64_t len, const uint8_t mask[4]);

/* Appends a whole frame: head and (masked) payload. */
void cp_frame_put(cp_buf *out, unsigned opcode, bool fin, const void *p, size_t n, const uint8_t mask[4]);

/* Writes a whole close frame and returns its length. The reason is cut to 123 bytes on a character border; what is
 * not UTF-8 in it ends it. CP_CLOSE_NO_STATUS gives an empty payload. */
size_t cp_frame_close(char out[CP_FRAME_CLOSE_MAX], unsigned code, cp_str reason, const uint8_t mask[4]);

/* True for a code that may stand in a close frame: RFC 6455 section 7.4 and the IANA registry (1012 to 1014). */
bool cp_frame_close_code_ok(unsigned code);

/* dst = src XOR key, for payload bytes that begin `off` bytes into the frame. dst may be src. */
void cp_frame_mask(char *dst, const char *src, size_t n, const uint8_t key[4], size_t off);
