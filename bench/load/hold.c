/* Scenario "hold": opens --conns WebSockets, has --inflight requests that stay open on each, says so, and holds them
 * until its standard input ends: what they cost the server can be read meanwhile. */
#include "load/hold.h"

#include <stdio.h>
#include <unistd.h>

#include "load/load.h"
#include "load/sock.h"
#include "load/ws.h"

enum { GROUP = 250 };

typedef struct awaited {
    bool answered;
    int64_t streams;
} awaited;

/* Messages of a socket are taken in order: when the ping behind them is answered, all requests are held. With streams,
 * each has sent an event that holds --event too. */
static bool held(void *ctx, cp_str m) {
    awaited *a = ctx;
    if (ws_is_stream(m)) a->streams -= memmem(m.p, m.n, opt.event, strlen(opt.event)) != NULL;
    else if (!cp_str_is(ws_response_id(m), "ping")) die("a held request has ended");
    else a->answered = true;
    return a->answered && a->streams <= 0;
}

/* In groups: the server stops reading from a peer that does not take its answers, and we cannot send and take at once.
 */
static void hold_requests(int fd) {
    cp_frame_in dec;
    cp_frame_in_init(&dec, CP_FRAME_CLIENT, (size_t)1 << 30);
    cp_autobuf cp_buf out = {0};
    cp_buf body = {.p = (char *)(uintptr_t)opt.body, .n = opt.body ? strlen(opt.body) : 0};
    for (int64_t done = 0, group; done < opt.inflight; done += group) {
        group = opt.inflight - done < GROUP ? opt.inflight - done : GROUP;
        cp_buf_clear(&out);
        for (int64_t i = done; i < done + group; i++) {
            char id[16];
            snprintf(id, sizeof id, "%d", (int)i);
            ws_put_request(&out, id, opt.method, opt.path, opt.body ? &body : NULL, 0);
        }
        ws_put_request(&out, "ping", "GET", "/api/ping", NULL, 0);
        sock_send(fd, out.p, out.n);
        ws_until(fd, &dec, held, &(awaited){.streams = opt.event ? group : 0});
    }
    cp_frame_in_fini(&dec);
}

int hold(void) {
    sock_raise_limit();
    for (int64_t i = 0; i < opt.conns; i++) {
        int fd = ws_dial();
        if (opt.inflight) hold_requests(fd);
    }
    puts("held");
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
