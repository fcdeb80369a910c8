#include "transport/client/client_impl.h"

enum { ROUNDS = 16 /* then the other sockets' turn */ };

static int on_frame(link_conn *l, const cp_frame_event *ev, conflux_error *err) {
    switch (ev->kind) {
    case CP_FRAME_MESSAGE: return link_receive(l, ev->payload, err);
    case CP_FRAME_PING:
        link_put_control(l, CP_OP_PONG, ev->payload);
        link_wake(l);
        return 0;
    case CP_FRAME_CLOSE:
        return fail(err, CONFLUX_E_CONNECTION_LOST, "the server closed the connection (%u%s%.*s)", ev->code,
                    ev->payload.n ? " " : "", (int)ev->payload.n, ev->payload.p);
    case CP_FRAME_ERROR:
        return fail(err, ev->code == CP_CLOSE_TOO_BIG ? CONFLUX_E_TOO_LARGE : CONFLUX_E_PROTOCOL,
                    "the server's frames are wrong: %.*s", (int)ev->payload.n, ev->payload.p);
    case CP_FRAME_PONG:
    case CP_FRAME_NEED_MORE: break;
    }
    return 0;
}

int link_feed(link_conn *l, char *data, size_t n, conflux_error *err) {
    while (n && l->state == LINK_UP) {
        size_t used = 0;
        cp_frame_event ev;
        cp_frame_next(&l->in, data, n, &used, &ev);
        if (on_frame(l, &ev, err) < 0) return -1;
        data += used;
        n -= used;
    }
    return 0;
}

int link_read(link_conn *l, conflux_error *err) {
    for (int i = 0; l->state == LINK_UP; i++) {
        /* What TLS has decrypted already shows in no epoll: with it, reading goes on until there is none. */
        if (i >= ROUNDS && !l->easy) return 0;
        ssize_t n = link_recv(l, l->input, LINK_INPUT, err);
        if (n <= 0) return (int)n;
        l->heard = true;
        if (link_feed(l, l->input, (size_t)n, err) < 0) return -1;
        if ((size_t)n < LINK_INPUT && !l->easy) return 0;
    }
    return 0;
}
