/* The client library with many calls at once, from many threads. */
#include "component/client_fixture.h"

enum { THREADS = 8, EACH = 125, ALL = THREADS * EACH };

typedef struct tally {
    atomic_int ok, failed;
} tally;

static void count_done(void *arg, conflux_call *call, conflux_response *r, const conflux_error *err) {
    tally *t = arg;
    (void)call;
    bool good = !err && r->status == 200 && strstr(r->body, "\"stdout\":\"open\\n\"");
    atomic_fetch_add(good ? &t->ok : &t->failed, 1);
}

typedef struct job {
    conflux_client *c;
    tally *t;
    const char *path;
} job;

static void *start_many(void *arg) {
    const job *j = arg;
    conflux_handlers h = {.on_done = count_done, .arg = j->t};
    for (int i = 0; i < EACH; i++) {
        conflux_request rq = {.path = j->path, .priority = i % 8 - 3};
        conflux_call_free(conflux_start(j->c, &rq, &h, NULL));
    }
    return NULL;
}

static int pending(void) {
    conflux_client *c = client_of(srv.url, CONFLUX_HTTP);
    conflux_request rq = {.path = "/api/pending"};
    char *body = body_of(c, &rq, 200);
    int n = 0;
    for (const char *at = body; (at = strstr(at, "\"route\"")); at++) n++;
    free(body);
    conflux_client_free(c);
    return n;
}

/* One command that waits for a file, and ALL calls that wait for its end. */
static void many_in_flight(conflux_mode mode, const char *name, uint32_t http_connections, uint32_t connections) {
    char body[300], path[200];
    conflux_error err;
    tally t = {0};
    conflux_options o = {
        .url = srv.url, .mode = mode, .http_connections = http_connections, .connections = connections};
    conflux_client *c = conflux_client_new(&o, &err);
    snprintf(
        body, sizeof body,
        "{\"sessionId\":\"__DISABLE_SESSION__\",\"command\":\"while [ ! -e %s ]; do sleep 0.01; done; echo open\"}",
        in_dir(&srv, name));
    conflux_request rq = {.path = "/api/execute", .body = body, .execution_id = name};
    conflux_handlers h = {.on_done = count_done, .arg = &t};
    conflux_call_free(conflux_start(c, &rq, &h, &err));
    snprintf(path, sizeof path, "/api/execution/%s", name);
    conflux_request known = {.path = path};
    wait_until(({
        conflux_response r;
        int status = conflux_fetch(c, &known, &r, &err) == 0 ? r.status : 0;
        conflux_response_free(&r);
        status == 202;
    }));
    snprintf(path, sizeof path, "/api/execution/%s?waitMs=100000", name);
    job j = {.c = c, .t = &t, .path = path};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, start_many, &j), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (mode == CONFLUX_WEBSOCKET) wait_until(pending() >= ALL);
    make_file(&srv, name);
    wait_until(atomic_load(&t.ok) + atomic_load(&t.failed) == ALL + 1);
    assert_int_equal(atomic_load(&t.failed), 0);
    conflux_client_free(c);
}

static void t_websocket(void **state) {
    (void)state;
    many_in_flight(CONFLUX_WEBSOCKET, "ws-gate", 0, 1);
}

static void t_websocket_pool(void **state) {
    (void)state;
    many_in_flight(CONFLUX_WEBSOCKET, "pool-gate", 0, 4);
}

static void t_http(void **state) {
    (void)state;
    many_in_flight(CONFLUX_HTTP, "http-gate", 200, 1);
}

/* ---- everything at once, and in disorder ---- */

static void *fetch_many(void *arg) {
    const job *j = arg;
    for (int i = 0; i < 100; i++) {
        conflux_request rq = {.path = "/api/ping"};
        conflux_response r;
        conflux_error err;
        bool good = conflux_fetch(j->c, &rq, &r, &err) == 0 && r.status == 200;
        atomic_fetch_add(good ? &j->t->ok : &j->t->failed, 1);
        conflux_response_free(&r);
    }
    return NULL;
}

static void *stream_many(void *arg) {
    const job *j = arg;
    for (int i = 0; i < 10; i++) {
        conflux_request rq = {.path = "/api/execute/stream",
                              .body = "{\"sessionId\":\"__DISABLE_SESSION__\",\"command\":\"seq 1 1000\"}"};
        conflux_event ev;
        conflux_error err;
        conflux_stream *s = conflux_fetch_stream(j->c, &rq, &err);
        int rc = 1;
        for (int k = 0; rc == 1 && (i % 2 || k < 2); k++) rc = conflux_stream_next(s, &ev, &err); /* half are left */
        atomic_fetch_add(rc >= 0 ? &j->t->ok : &j->t->failed, 1);
        conflux_stream_free(s);
    }
    return NULL;
}

static void t_mixed(void **state) {
    (void)state;
    static const conflux_mode modes[] = {CONFLUX_WEBSOCKET, CONFLUX_HTTP, CONFLUX_AUTO};
    for (size_t m = 0; m < 3; m++) {
        tally t = {0};
        job j = {.c = client_of(srv.url, modes[m]), .t = &t};
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, i % 2 ? fetch_many : stream_many, &j), 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&t.failed), 0);
        assert_int_equal(atomic_load(&t.ok), THREADS / 2 * 110);
        conflux_client_free(j.c);
    }
}

/* Clients that share come and go while others use the same connection. */
static void *come_and_go(void *arg) {
    const job *j = arg;
    for (int i = 0; i < 20; i++) {
        conflux_error err;
        conflux_options o = {.url = srv.url, .mode = CONFLUX_WEBSOCKET, .share = 1};
        conflux_client *c = conflux_client_new(&o, &err);
        conflux_request rq = {.path = "/api/ping"};
        conflux_response r = {0};
        bool good = c && conflux_fetch(c, &rq, &r, &err) == 0 && r.status == 200;
        atomic_fetch_add(good ? &j->t->ok : &j->t->failed, 1);
        conflux_response_free(&r);
        conflux_client_free(c);
    }
    return NULL;
}

static void t_sharers(void **state) {
    (void)state;
    tally t = {0};
    job j = {.t = &t};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &j), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&t.failed), 0);
    assert_int_equal(atomic_load(&t.ok), THREADS * 20);
}

int main(void) {
    unsetenv("CONFLUX_PEER"); /* the load is on a server of this build, too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_websocket), cmocka_unit_test(t_websocket_pool), cmocka_unit_test(t_http),
        cmocka_unit_test(t_mixed),     cmocka_unit_test(t_sharers),
    };
    return cmocka_run_group_tests(tests, srv_start, srv_stop);
}
