/* libcurl says which sockets it waits for and until when; the loop tells it what happened. Ends of transfers are looked
 * for when the round's events have been handled: a callback must not remove the handle that libcurl is working on. */
#include "transport/client/client_impl.h"

#include <stdlib.h>
#include <sys/epoll.h>

typedef struct pump_watch {
    cp_io io;
    pump *p;
    struct pump_watch *prev, *next;
} watch;

static void watch_free(watch *w) {
    cp_io_del(w->p->loop, &w->io);
    if (w->prev) w->prev->next = w->next;
    else w->p->watches = w->next;
    if (w->next) w->next->prev = w->prev;
    free(w);
}

static void reap(cp_deferred *d) {
    pump *p = CP_CONTAINER(d, pump, reap);
    int left;
    CURLMsg *msg;
    while ((msg = curl_multi_info_read(p->multi, &left))) {
        if (msg->msg != CURLMSG_DONE) continue;
        CURLM *multi = p->multi;
        p->done(p, msg->easy_handle, msg->data.result);
        if (p->multi != multi) return; /* finished with */
    }
}

static void act(pump *p, curl_socket_t fd, int bits) {
    int running;
    curl_multi_socket_action(p->multi, fd, bits, &running);
    cp_loop_defer(p->loop, &p->reap, reap);
}

static void on_socket(cp_io *io, uint32_t events) {
    watch *w = CP_CONTAINER(io, watch, io);
    int bits = 0;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP)) bits |= CURL_CSELECT_IN;
    if (events & EPOLLOUT) bits |= CURL_CSELECT_OUT;
    if (events & EPOLLERR) bits |= CURL_CSELECT_ERR;
    act(w->p, io->fd, bits);
}

static void on_timer(cp_timer *t) { act(CP_CONTAINER(t, pump, timer), CURL_SOCKET_TIMEOUT, 0); }

static int watch_timer(CURLM *multi, long ms, void *arg) {
    pump *p = arg;
    (void)multi;
    if (ms < 0) cp_timer_stop(p->loop, &p->timer);
    else cp_timer_start(p->loop, &p->timer, (uint64_t)ms, on_timer);
    return 0;
}

static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg) {
    pump *p = arg;
    watch *w = socket_arg;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (!w) return 0;
        watch_free(w);
        curl_multi_assign(p->multi, fd, NULL);
        return 0;
    }
    uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
    if (w) return cp_io_mod(p->loop, &w->io, events) < 0 ? -1 : 0;
    w = cp_new(watch);
    w->p = p;
    if (cp_io_add(p->loop, &w->io, fd, events, on_socket) < 0) {
        free(w);
        return -1; /* the transfer fails */
    }
    w->next = p->watches;
    if (w->next) w->next->prev = w;
    p->watches = w;
    curl_multi_assign(p->multi, fd, w);
    return 0;
}

int pump_init(pump *p, cp_loop *loop, void (*done)(pump *, CURL *, CURLcode), conflux_error *err) {
    *p = (pump){.loop = loop, .done = done, .multi = curl_multi_init()};
    if (!p->multi) return fail(err, CONFLUX_E_SYSTEM, "libcurl cannot be set up");
    curl_multi_setopt(p->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(p->multi, CURLMOPT_SOCKETDATA, p);
    curl_multi_setopt(p->multi, CURLMOPT_TIMERFUNCTION, watch_timer);
    curl_multi_setopt(p->multi, CURLMOPT_TIMERDATA, p);
    return 0;
}

void pump_fini(pump *p) {
    CURLM *multi = cp_take(p->multi);
    if (!multi) return;
    curl_multi_cleanup(multi);
    while (p->watches) watch_free(p->watches); /* libcurl 8.14 does not tell of the connections that it closes then */
    cp_timer_stop(p->loop, &p->timer);
    cp_loop_undefer(p->loop, &p->reap);
}

int pump_add(pump *p, CURL *easy, conflux_error *err) {
    CURLMcode rc = curl_multi_add_handle(p->multi, easy);
    if (rc) return fail(err, CONFLUX_E_SYSTEM, "%s", curl_multi_strerror(rc));
    return 0;
}

void pump_remove(pump *p, CURL *easy) { curl_multi_remove_handle(p->multi, easy); }
