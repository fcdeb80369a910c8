/* The client library when things go wrong: refusals, silence, lost connections. */
#include "component/client_fixture.h"

static const conflux_mode modes[] = {CONFLUX_WEBSOCKET, CONFLUX_HTTP, CONFLUX_AUTO};

/* ---- refusals ---- */

static void t_wrong_token(void **state) {
    (void)state;
    server guarded;
    char file[] = "/tmp/conflux-client-token-XXXXXX", *extra[] = {(char[]){"--token-file"}, file, NULL};
    int fd = mkstemp(file);
    assert_int_equal(write(fd, "right-token\n", 12), 12);
    close(fd);
    server_start(&guarded, extra);
    for (size_t i = 0; i < 3; i++) {
        conflux_options o = {.url = guarded.url, .mode = modes[i], .token = "wrong-token"};
        conflux_error err;
        conflux_response r;
        conflux_request rq = {.path = "/api/ping"};
        conflux_client *c = conflux_client_new(&o, &err);
        assert_int_equal(conflux_connect(c, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_UNAUTHORIZED);
        assert_int_equal(err.status, 401);
        assert_null(strstr(err.message, "wrong-token"));
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_UNAUTHORIZED);
        assert_int_equal(conflux_get_state(c), CONFLUX_DISCONNECTED);
        conflux_client_free(c);
        o.token = "right-token";
        c = conflux_client_new(&o, &err);
        assert_int_equal(conflux_connect(c, &err), 0);
        expect_output(c, "echo in", "in\\n");
        conflux_client_free(c);
    }
    server_stop(&guarded);
    unlink(file);
}

static void t_nobody_there(void **state) {
    (void)state;
    door d;
    door_open(&d, srv.port, DOOR_OPEN);
    door_close(&d); /* a port that was free a moment ago */
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(d.url, modes[i]);
        conflux_error err;
        conflux_response r;
        conflux_request rq = {.path = "/api/execute", .body = "{\"command\":\"true\"}"};
        assert_int_equal(conflux_connect(c, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_CONNECT);
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_CONNECT);
        assert_true(err.retry_safe);
        assert_int_equal(conflux_get_state(c), CONFLUX_DISCONNECTED);
        conflux_client_free(c);
    }
}

static void t_upgrade_refused(void **state) {
    (void)state;
    door d;
    conflux_error err;
    door_open(&d, srv.port, DOOR_NO_UPGRADE);
    conflux_client *c = client_of(d.url, CONFLUX_WEBSOCKET);
    assert_int_equal(conflux_connect(c, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_UPGRADE);
    assert_int_equal(err.status, 404);
    conflux_client_free(c);
    c = client_of(d.url, CONFLUX_AUTO);
    assert_int_equal(conflux_connect(c, &err), 0);
    assert_int_equal(conflux_get_mode(c), CONFLUX_HTTP);
    expect_output(c, "echo by http", "by http\\n");
    atomic_store(&d.mode, DOOR_OPEN); /* and back, by itself */
    wait_until(conflux_get_mode(c) == CONFLUX_WEBSOCKET);
    assert_true(conflux_is_connected(c));
    expect_output(c, "echo by websocket", "by websocket\\n");
    atomic_store(&d.mode, DOOR_NO_UPGRADE); /* and once more, in the middle of its life */
    door_cut(&d);
    wait_until(conflux_get_mode(c) == CONFLUX_HTTP);
    expect_output(c, "echo again", "again\\n");
    conflux_client_free(c);
    door_close(&d);
}

static void t_upgrade_swallowed(void **state) {
    (void)state;
    door d;
    conflux_error err;
    conflux_options o = {.connect_timeout_ms = 1000};
    door_open(&d, srv.port, DOOR_DEAF);
    o.url = d.url;
    conflux_client *c = conflux_client_new(&o, &err);
    assert_int_equal(conflux_connect(c, &err), 0);
    assert_int_equal(conflux_get_mode(c), CONFLUX_HTTP);
    expect_output(c, "echo by http", "by http\\n");
    conflux_client_free(c);
    o.mode = CONFLUX_WEBSOCKET;
    o.connect_timeout_ms = 100;
    c = conflux_client_new(&o, &err);
    assert_int_equal(conflux_connect(c, &err), -1);
    assert_int_equal(err.kind, CONFLUX_E_CONNECT_TIMEOUT);
    conflux_client_free(c);
    door_close(&d);
}

/* ---- silence ---- */

static void t_connect_deadline(void **state) {
    (void)state;
    door d;
    door_open(&d, srv.port, DOOR_SILENT);
    for (size_t i = 0; i < 3; i++) {
        conflux_options o = {.url = d.url, .mode = modes[i], .connect_timeout_ms = 100};
        conflux_error err;
        conflux_response r;
        conflux_request rq = {.path = "/api/execute", .body = "{\"command\":\"true\"}"};
        conflux_client *c = conflux_client_new(&o, &err);
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_CONNECT_TIMEOUT);
        assert_true(err.retry_safe);
        conflux_client_free(c);
    }
    door_close(&d);
}

static void t_request_deadline(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        door d;
        door_open(&d, srv.port, DOOR_OPEN);
        conflux_client *c = client_of(d.url, modes[i]);
        conflux_error err;
        conflux_response r;
        assert_int_equal(conflux_connect(c, &err), 0);
        atomic_store(&d.mode, DOOR_ONE_WAY);
        conflux_request rq = {.path = "/api/execute", .body = "{\"command\":\"true\"}", .timeout_ms = 1000};
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_REQUEST_TIMEOUT);
        assert_false(err.retry_safe); /* it has left by then, and may well have run */
        rq = (conflux_request){.path = "/api/ping", .timeout_ms = 100};
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_REQUEST_TIMEOUT);
        assert_true(err.retry_safe);
        conflux_client_free(c);
        door_close(&d);
    }
}

static pid_t pid_in(const char *name) {
    int pid = 0;
    FILE *f = fopen(in_dir(&srv, name), "re");
    if (!f || fscanf(f, "%d", &pid) != 1) pid = 0;
    if (f) fclose(f);
    return pid;
}

/* The server is told of the deadline: what nobody waits for does not run on. */
static void t_deadline_ends_the_command(void **state) {
    (void)state;
    conflux_client *c = client_of(srv.url, CONFLUX_WEBSOCKET);
    conflux_error err;
    conflux_response r;
    char body[300];
    snprintf(body, sizeof body, "{\"command\":\"echo $$ > %s; exec sleep 1000\",\"sessionId\":\"__DISABLE_SESSION__\"}",
             in_dir(&srv, "late"));
    conflux_request rq = {.path = "/api/execute", .body = body, .timeout_ms = 500};
    do { /* until it runs by then */
        rq.timeout_ms *= 2;
        assert_true(rq.timeout_ms < 60000);
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_REQUEST_TIMEOUT);
    } while (pid_in("late") == 0);
    wait_until(kill(pid_in("late"), 0) < 0);
    conflux_client_free(c);
}

/* With an execution id it does: whoever has the id may still want its result. */
static void t_deadline_leaves_what_can_be_resumed(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        conflux_error err;
        conflux_response r;
        char body[300], id[32];
        snprintf(id, sizeof id, "patient-%zu", i);
        snprintf(
            body, sizeof body,
            "{\"command\":\"while [ ! -e %s ]; do sleep 0.01; done; echo late\",\"sessionId\":\"__DISABLE_SESSION__\"}",
            in_dir(&srv, id));
        conflux_request rq = {.path = "/api/execute", .body = body, .execution_id = id, .timeout_ms = 1000};
        assert_int_equal(conflux_fetch(c, &rq, &r, &err), -1);
        assert_int_equal(err.kind, CONFLUX_E_REQUEST_TIMEOUT);
        assert_true(err.resumable);
        make_file(&srv, id);
        assert_int_equal(conflux_resume(c, id, 0, &r, &err), 0);
        if (!strstr(r.body, "\"stdout\":\"late\\n\"")) fail_msg("%s", r.body);
        conflux_response_free(&r);
        conflux_client_free(c);
    }
}

static void t_idle_stream(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        conflux_error err;
        conflux_event ev;
        int rc;
        conflux_request rq = {.path = "/api/execute/stream",
                              .body = "{\"command\":\"echo a; sleep 1000\"}",
                              .idle_timeout_ms = 200,
                              .kill_on_disconnect = 1};
        conflux_stream *s = conflux_fetch_stream(c, &rq, &err);
        while ((rc = conflux_stream_next(s, &ev, &err)) == 1) continue;
        assert_int_equal(rc, -1);
        assert_int_equal(err.kind, CONFLUX_E_IDLE_TIMEOUT);
        conflux_stream_free(s);
        conflux_client_free(c);
    }
}

/* Neither an end nor an error of the socket says that this peer is gone. */
static void t_dead_peer(void **state) {
    (void)state;
    door d;
    outcome s;
    conflux_error err;
    door_open(&d, srv.port, DOOR_OPEN);
    conflux_options o = {.url = d.url, .mode = CONFLUX_WEBSOCKET, .ping_interval_ms = 500};
    conflux_client *c = conflux_client_new(&o, &err);
    assert_int_equal(conflux_connect(c, &err), 0);
    atomic_store(&d.mode, DOOR_ONE_WAY);
    conflux_request rq = {.path = "/api/ping"};
    finish(begin(c, &rq, &s), &s);
    assert_int_equal(s.err.kind, CONFLUX_E_CONNECTION_LOST);
    assert_true(s.err.retry_safe);
    conflux_client_free(c);
    door_close(&d);
}

/* ---- lost connections ---- */

static void t_what_is_safe(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        door d;
        outcome get, post, with_id, said;
        conflux_error err;
        door_open(&d, srv.port, DOOR_OPEN);
        conflux_client *c = client_of(d.url, modes[i]);
        assert_int_equal(conflux_connect(c, &err), 0);
        atomic_store(&d.mode, DOOR_ONE_WAY);
        char body[200], id[32];
        snprintf(body, sizeof body, "{\"command\":\"echo x >> %s\",\"sessionId\":\"__DISABLE_SESSION__\"}",
                 in_dir(&srv, i ? "safe1" : "safe0"));
        snprintf(id, sizeof id, "safe-%zu", i);
        conflux_request rq[] = {{.path = "/api/ping"},
                                {.path = "/api/execute", .body = body},
                                {.path = "/api/execute", .body = body, .execution_id = id},
                                {.path = "/api/execute", .body = body, .idempotent = 1}};
        conflux_call *calls[] = {begin(c, &rq[0], &get), begin(c, &rq[1], &post), begin(c, &rq[2], &with_id),
                                 begin(c, &rq[3], &said)};
        wait_until(file_size(&srv, i ? "safe1" : "safe0") == 6); /* three have run; no answer comes */
        atomic_store(&d.mode, DOOR_SHUT);
        door_cut(&d);
        finish(calls[0], &get), finish(calls[1], &post), finish(calls[2], &with_id), finish(calls[3], &said);
        assert_int_equal(get.err.kind, CONFLUX_E_CONNECTION_LOST);
        assert_int_equal(post.err.kind, CONFLUX_E_CONNECTION_LOST);
        assert_int_equal(with_id.err.kind, CONFLUX_E_CONNECTION_LOST);
        assert_true(get.err.retry_safe && with_id.err.retry_safe && said.err.retry_safe);
        assert_false(post.err.retry_safe || get.err.resumable || post.err.resumable);
        assert_true(with_id.err.resumable);
        assert_string_equal(with_id.err.execution_id, id);
        atomic_store(&d.mode, DOOR_OPEN);
        conflux_response r;
        assert_int_equal(conflux_resume(c, id, 0, &r, &err), 0);
        assert_non_null(strstr(r.body, "\"exitCode\":0"));
        conflux_response_free(&r);
        assert_int_equal(file_size(&srv, i ? "safe1" : "safe0"), 6);
        conflux_client_free(c);
        door_close(&d);
    }
}

typedef struct states {
    pthread_mutex_t mu;
    int n;
    conflux_state state[64];
    uint32_t retry[64];
} states;

static void note_state(void *arg, conflux_client *c, const conflux_status *st) {
    states *s = arg;
    (void)c;
    pthread_mutex_lock(&s->mu);
    if (s->n < 64) {
        s->state[s->n] = st->state;
        s->retry[s->n++] = st->cause ? st->retry_in_ms : UINT32_MAX;
    }
    pthread_mutex_unlock(&s->mu);
}

static int count(states *s) {
    pthread_mutex_lock(&s->mu);
    int n = s->n;
    pthread_mutex_unlock(&s->mu);
    return n;
}

/* At once, then 10, 20, 40 … up to the cap; from the beginning again after a connection that has worked. */
static void t_backoff(void **state) {
    (void)state;
    static const uint32_t want[] = {0, 10, 20, 40, 50, 50};
    door d;
    conflux_error err;
    states s = {.mu = PTHREAD_MUTEX_INITIALIZER};
    door_open(&d, srv.port, DOOR_OPEN);
    conflux_options o = {.url = d.url,
                         .mode = CONFLUX_WEBSOCKET,
                         .backoff_ms = 10,
                         .backoff_max_ms = 50,
                         .on_state = note_state,
                         .arg = &s};
    conflux_client *c = conflux_client_new(&o, &err);
    for (int round = 0; round < 2; round++) {
        expect_output(c, "echo up", "up\\n");
        atomic_store(&d.mode, DOOR_SHUT);
        int before = count(&s);
        door_cut(&d);
        wait_until(count(&s) >= before + 6);
        pthread_mutex_lock(&s.mu);
        int at = 0;
        for (int i = before; i < s.n && at < 6; i++) {
            if (s.retry[i] == UINT32_MAX) continue; /* a change without a cause */
            assert_int_equal(s.state[i], CONFLUX_RECONNECTING);
            assert_int_equal(s.retry[i], want[at++]);
        }
        pthread_mutex_unlock(&s.mu);
        assert_true(at >= 5);
        atomic_store(&d.mode, DOOR_OPEN);
        wait_until(conflux_is_connected(c));
    }
    conflux_client_free(c);
    door_close(&d);
}

static void t_connect_while_reconnecting(void **state) {
    (void)state;
    door d;
    conflux_error err;
    door_open(&d, srv.port, DOOR_OPEN);
    for (size_t i = 0; i < 3; i++) {
        conflux_options o = {.url = d.url, .mode = modes[i], .connect_timeout_ms = 1500, .backoff_ms = 10};
        conflux_client *c = conflux_client_new(&o, &err);
        atomic_store(&d.mode, DOOR_OPEN);
        assert_int_equal(conflux_connect(c, &err), 0);
        atomic_store(&d.mode, DOOR_SHUT);
        door_cut(&d);
        if (modes[i] != CONFLUX_HTTP) {
            wait_until(!conflux_is_connected(c));
            assert_int_equal(conflux_connect(c, &err), -1);
            assert_int_equal(err.kind, CONFLUX_E_CONNECT_TIMEOUT);
            assert_int_equal(conflux_get_state(c), CONFLUX_RECONNECTING); /* that goes on */
        }
        atomic_store(&d.mode, DOOR_OPEN);
        wait_up(c);
        conflux_client_free(c);
    }
    door_close(&d);
}

typedef struct order {
    atomic_int *next;
    int place;
    atomic_bool done;
} order;

static void note_order(void *arg, conflux_call *call, conflux_response *r, const conflux_error *err) {
    order *o = arg;
    (void)call, (void)r, (void)err;
    o->place = atomic_fetch_add(o->next, 1);
    atomic_store(&o->done, true);
}

/* Calls made while there is no connection wait for the next one; those with a higher priority go first. */
static void t_waiting_calls(void **state) {
    (void)state;
    door d;
    conflux_error err;
    atomic_int next = 0;
    order o[8];
    door_open(&d, srv.port, DOOR_OPEN);
    conflux_client *c = client_of(d.url, CONFLUX_WEBSOCKET);
    assert_int_equal(conflux_connect(c, &err), 0);
    atomic_store(&d.mode, DOOR_SHUT);
    door_cut(&d);
    wait_until(conflux_get_state(c) == CONFLUX_RECONNECTING);
    for (int i = 0; i < 8; i++) {
        conflux_request rq = {.path = "/api/ping", .priority = i - 3};
        conflux_handlers h = {.on_done = note_order, .arg = &o[i]};
        o[i] = (order){.next = &next};
        conflux_call_free(conflux_start(c, &rq, &h, &err));
    }
    atomic_store(&d.mode, DOOR_OPEN);
    for (int i = 0; i < 8; i++) wait_until(atomic_load(&o[i].done));
    for (int i = 0; i < 8; i++) assert_int_equal(o[i].place, 7 - i);
    conflux_client_free(c);
    door_close(&d);
}

static void t_http_priority(void **state) {
    (void)state;
    conflux_error err;
    atomic_int next = 0;
    order o[8];
    outcome first;
    conflux_options opts = {.url = srv.url, .mode = CONFLUX_HTTP, .http_connections = 1};
    conflux_client *c = conflux_client_new(&opts, &err);
    assert_int_equal(conflux_connect(c, &err), 0);
    char body[300];
    snprintf(body, sizeof body, "{\"command\":\"while [ ! -e %s ]; do sleep 0.01; done\"}",
             in_dir(&srv, "go-priority"));
    conflux_request block = {.path = "/api/execute", .body = body};
    conflux_call *call = begin(c, &block, &first);
    for (int i = 0; i < 8; i++) {
        conflux_request rq = {.path = "/api/ping", .priority = i - 3};
        conflux_handlers h = {.on_done = note_order, .arg = &o[i]};
        o[i] = (order){.next = &next};
        conflux_call_free(conflux_start(c, &rq, &h, &err));
    }
    make_file(&srv, "go-priority");
    for (int i = 0; i < 8; i++) wait_until(atomic_load(&o[i].done));
    for (int i = 0; i < 8; i++) assert_int_equal(o[i].place, 7 - i);
    finish(call, &first);
    conflux_client_free(c);
}

/* ---- ends of our own ---- */

static void t_disconnect_ends_calls(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        conflux_client *c = client_of(srv.url, modes[i]);
        outcome s;
        conflux_error err;
        conflux_request rq = {
            .path = "/api/execute/stream", .body = "{\"command\":\"sleep 1000\"}", .kill_on_disconnect = 1};
        conflux_handlers h = {.on_event = see_event, .on_done = see_done, .arg = &s};
        s = (outcome){0};
        wait_up(c);
        conflux_call *call = conflux_start(c, &rq, &h, &err);
        wait_until(atomic_load(&s.events) > 0);
        assert_int_equal(conflux_disconnect(c, &err), 0);
        assert_true(atomic_load(&s.done));
        assert_int_equal(s.err.kind, CONFLUX_E_CANCELLED);
        conflux_call_free(call);
        call = begin(
            c,
            &(conflux_request){.path = "/api/execute", .body = "{\"command\":\"sleep 1000\"}", .kill_on_disconnect = 1},
            &s);
        conflux_client_free(c);
        assert_true(atomic_load(&s.done));
        assert_int_equal(s.err.kind, CONFLUX_E_CANCELLED);
        conflux_call_cancel(call, 0);
        conflux_call_free(call);
    }
}

/* A stream of a sharer that leaves ends at the server too: the others' connection must not carry it on. */
static void t_sharer_leaves(void **state) {
    (void)state;
    conflux_error err;
    outcome s = {0};
    conflux_options o = {.url = srv.url, .mode = CONFLUX_WEBSOCKET, .share = 1};
    conflux_client *a = conflux_client_new(&o, &err), *b = conflux_client_new(&o, &err);
    wait_up(b);
    conflux_request rq = {
        .path = "/api/execute/stream", .body = "{\"command\":\"sleep 1000\"}", .kill_on_disconnect = 1};
    conflux_handlers h = {.on_event = see_event, .on_done = see_done, .arg = &s};
    conflux_call *call = conflux_start(a, &rq, &h, &err);
    wait_until(atomic_load(&s.events) > 0);
    conflux_client_free(a);
    assert_true(atomic_load(&s.done));
    conflux_request ask = {.path = "/api/pending"};
    wait_until(({
        char *body = body_of(b, &ask, 200);
        bool there = strstr(body, "/api/execute/stream") != NULL;
        free(body);
        !there;
    }));
    conflux_call_free(call);
    conflux_client_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_wrong_token),
        cmocka_unit_test(t_nobody_there),
        cmocka_unit_test(t_upgrade_refused),
        cmocka_unit_test(t_upgrade_swallowed),
        cmocka_unit_test(t_connect_deadline),
        cmocka_unit_test(t_request_deadline),
        cmocka_unit_test(t_deadline_ends_the_command),
        cmocka_unit_test(t_deadline_leaves_what_can_be_resumed),
        cmocka_unit_test(t_idle_stream),
        cmocka_unit_test(t_dead_peer),
        cmocka_unit_test(t_what_is_safe),
        cmocka_unit_test(t_backoff),
        cmocka_unit_test(t_connect_while_reconnecting),
        cmocka_unit_test(t_waiting_calls),
        cmocka_unit_test(t_http_priority),
        cmocka_unit_test(t_disconnect_ends_calls),
        cmocka_unit_test(t_sharer_leaves),
    };
    return cmocka_run_group_tests(tests, srv_start, srv_stop);
}
