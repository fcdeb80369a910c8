/* The echo endpoint of --debug-echo: every message comes back with its type. For tests of the codec. */
#include "transport/ws.h"

static void echo(cp_ws *ws, bool binary, char *p, size_t n) {
    cp_ws_send(ws, binary ? CP_OP_BINARY : CP_OP_TEXT, p, n);
}

const cp_ws_endpoint cp_ws_echo = {.name = "echo", .message = echo};
