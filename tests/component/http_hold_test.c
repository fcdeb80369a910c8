/* What clients can make the server hold, and for how long; what it does when it cannot get what it needs. */
#include "http_fixture.h"

#include <semaphore.h>
#include <sys/resource.h>

#include "base/budget.h"

/* ---- time ---- */

static int impatient_up(void **state) {
    fixture *f = *state = fx_prepare();
    f->cfg.stall_timeout = 1500;
    fx_start(f);
    return 0;
}

/* It says something now and then, and reads nothing: only reading would give it time. */
static void input_does_not_buy_time_for_a_reader(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(clients_in(f, CP_CLIENT_SEND) == 1);
    uint64_t until = cp_now_ms() + PATIENCE_MS;
    while (atomic_load(&f->t.server->open) && cp_now_ms() < until) {
        put(fd, "G");
        poll(NULL, 0, 20);
    }
    assert_int_equal(atomic_load(&f->t.server->open), 0);
    close(fd);
}

/* ---- memory ---- */

enum { BUDGET = 4 << 20, PART = 12000, RAW = 200 * 1024 };

static int budget_up(void **state) {
    cp_budget_open(BUDGET);
    return fx_up(state);
}

static int budget_down(void **state) {
    int rc = fx_down(state);
    cp_budget_open(SIZE_MAX / 2);
    return rc;
}

static int freed(void **state) {
    fx_again(state);
    WAIT_FOR(cp_budget_held(CP_MEM_COUNT) == 0);
    return 0;
}

static char *filler(size_t n) {
    char *p = cp_alloc(n + 1);
    memset(p, 'x', n);
    return p;
}

static bool answered(int fd) { return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1; }

static void wait_for_go(void *go) { (void)sem_wait(go); }

/* Each sends the same beginning of a request, until one is told that there is no room for it. Meanwhile the loop stands
 * still, and with it the sweep, that ends who is quiet while memory is short. */
static void crowd_is_refused(const fixture *f, const char *head, const char *part) {
    enum { MOST = 2 * BUDGET / PART };
    int fds[MOST], n = 0;
    sem_t go;
    on_loop held = {.fn = wait_for_go, .arg = &go};
    sem_init(&go, 0, 0);
    cp_loop_post(f->t.loop, &held.task, on_loop_run);
    do {
        fds[n] = dial(f);
        put(fds[n], head);
        put(fds[n], part);
        WAIT_FOR(answered(fds[n]) || cp_budget_held(CP_MEM_BODIES) > (size_t)n * PART);
        n++;
    } while (!answered(fds[n - 1]) && n < MOST);
    response r = get(fds[n - 1]);
    assert_true(r.status == 429 && r.closes && body_has(&r, "--memory-budget"));
    free_response(&r);
    assert_in_range(cp_budget_held(CP_MEM_BODIES), 0, BUDGET);
    sem_post(&go);
    WAIT_FOR(held.done);
    close(fds[--n]);
    close(fds[--n]); /* makes room for the next */
    WAIT_FOR(atomic_load(&f->t.server->open) <= (unsigned)n);
    assert_int_equal(ask(f, "GET /api/ping HTTP/1.1\r\n" H "\r\n", NULL), 200);
    while (n) close(fds[--n]);
    WAIT_FOR(cp_budget_held(CP_MEM_BODIES) == 0);
}

static void unfinished_requests_are_within_the_budget(void **state) {
    cp_autofree char *part = filler(PART);
    crowd_is_refused(*state, "POST /echo HTTP/1.1\r\n" H "Content-Length: 13000\r\n\r\n", part);
    crowd_is_refused(*state, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n4000\r\n", part);
    crowd_is_refused(*state, "GET /api/ping HTTP/1.1\r\n" H "X: ", part);
}

static int patient_budget_up(void **state) {
    cp_budget_open(BUDGET);
    fixture *f = *state = fx_prepare();
    f->cfg.header_timeout = 3600 * 1000;
    fx_start(f);
    return 0;
}

/* Who has begun a body and sends nothing has an hour, unless others have no room. */
static void who_is_quiet_makes_room(void **state) {
    fixture *f = *state;
    cp_budget_force(CP_MEM_BODIES, BUDGET / 2); /* their share */
    int fd = dial(f);
    put(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\nx");
    response r = get(fd);
    assert_true(r.status == 408 && r.closes);
    free_response(&r);
    close(fd);
    cp_budget_release(CP_MEM_BODIES, BUDGET / 2);
}

/* Up to a size a raw body is collected before its handler runs, in memory that is asked for; else the handler reads it
 * as it comes. */
static void raw_bodies_are_within_the_budget(void **state) {
    fixture *f = *state;
    cp_autofree char *half = filler(RAW / 2);
    for (int full = 0; full < 2; full++) {
        if (full) cp_budget_force(CP_MEM_BODIES, BUDGET / 2); /* the share: the rest is for small ones */
        int fd = dial(f);
        putf(fd, "PUT /raw HTTP/1.1\r\n" H "Content-Length: %d\r\n\r\n", RAW);
        put(fd, half);
        WAIT_FOR(clients_in(f, full ? CP_CLIENT_SIDE : CP_CLIENT_BODY) == 1);
        size_t held = cp_budget_held(CP_MEM_BODIES);
        if (!full) assert_true(held >= RAW && held < RAW + 1024);
        put(fd, half);
        response r = get(fd);
        assert_true(r.status == 200 && !r.closes);
        assert_int_equal(seen_bytes, RAW);
        free_response(&r);
        if (full) cp_budget_release(CP_MEM_BODIES, BUDGET / 2);
        WAIT_FOR(cp_budget_held(CP_MEM_BODIES) == 0);
        close(fd);
    }
}

/* It looks at what others own, again and again until it stays as it should be: no order is needed for that. */
__attribute__((no_sanitize("thread"))) static void measure_input(cp_client *c, void *arg) {
    *(size_t *)arg += c->in.cap + c->body.text.cap;
}

static size_t input_held(fixture *f) {
    size_t held = 0;
    cp_clients_each(f->t.server->clients, measure_input, &held);
    return held;
}

/* A call may wait for long, and so may a reply for its reader: their requests are not kept meanwhile. */
static void answered_requests_are_not_held(void **state) {
    fixture *f = *state;
    cp_autofree char *blanks = filler(PART);
    memset(blanks, ' ', PART - 2);
    memcpy(blanks + PART - 2, "{}", 2);
    int call = dial(f), reader = dial(f);
    putf(call, "POST /later HTTP/1.1\r\n" H "Content-Length: %d\r\n\r\n%sGET /api/ping", PART, blanks);
    WAIT_FOR(held_reply);
    WAIT_FOR(input_held(f) >= 13 && input_held(f) <= 1024); /* of the next request */
    put(call, " HTTP/1.1\r\n" H "\r\n");
    answer_held(f, "{}");
    WAIT_FOR(seen_calls == 2);
    putf(reader, "GET /big HTTP/1.1\r\n" H "Content-Length: %d\r\n\r\n%s", PART, blanks);
    WAIT_FOR(clients_in(f, CP_CLIENT_SEND) == 1);
    WAIT_FOR(input_held(f) == 0);
    close(call), close(reader);
}

/* A reply of 8 MB is twice the budget. */
static void a_reader_is_sent_away_when_memory_is_short(void **state) {
    fixture *f = *state;
    int fd = dial(f);
    put(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    WAIT_FOR(clients_in(f, CP_CLIENT_SEND) == 1);
    WAIT_FOR(atomic_load(&f->t.server->open) == 0); /* --stall-timeout is five minutes */
    close(fd);
}

/* ---- descriptors ---- */

/* An end of a connection between CivetWeb and us, both in this process. */
static bool is_resident(int fd) {
    struct sockaddr_storage addr;
    struct ucred peer;
    int domain;
    socklen_t n = sizeof domain, m = sizeof peer, k = sizeof addr;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 && domain == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &m) == 0 && peer.pid == getpid() &&
           getpeername(fd, (struct sockaddr *)&addr, &k) == 0;
}

static int residents(bool cut) {
    int n = 0;
    for (int fd = 3; fd < 1024; fd++) {
        if (!is_resident(fd)) continue;
        if (cut) shutdown(fd, SHUT_RDWR);
        n++;
    }
    return n;
}

/* All of CivetWeb's connections break when there is no descriptor for a new one: a request waits until there is. */
static void workers_come_back_with_the_descriptors(void **state) {
    fixture *f = *state;
    struct rlimit was, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int fd = dial(f), all = 2 * (int)f->t.server->workers;
    for (int round = 0; round < 3; round++) {
        put(fd, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
        response r = get(fd);
        assert_int_equal(r.status, 200);
        free_response(&r);
        WAIT_FOR(residents(false) == all);
        none = (struct rlimit){3, was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        residents(true);
        put(fd, "GET /api/ping HTTP/1.1\r\n" H "\r\n");
        WAIT_FOR(residents(false) == 0);
        assert_int_equal(seen_calls, 2 * round + 1);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
        r = get(fd);
        assert_int_equal(r.status, 200);
        free_response(&r);
    }
    WAIT_FOR(residents(false) == all);
    close(fd);
}

#define T(fn) cmocka_unit_test_setup(fn, fx_again)
#define M(fn) cmocka_unit_test_setup(fn, freed)
int main(void) {
    const struct CMUnitTest time[] = {T(input_does_not_buy_time_for_a_reader)};
    const struct CMUnitTest memory[] = {
        M(unfinished_requests_are_within_the_budget),
        M(raw_bodies_are_within_the_budget),
        M(answered_requests_are_not_held),
        M(a_reader_is_sent_away_when_memory_is_short),
    };
    const struct CMUnitTest patient[] = {M(who_is_quiet_makes_room)};
    const struct CMUnitTest descriptors[] = {T(workers_come_back_with_the_descriptors)};
    return cmocka_run_group_tests(time, impatient_up, fx_down) +
           cmocka_run_group_tests(memory, budget_up, budget_down) +
           cmocka_run_group_tests(patient, patient_budget_up, budget_down) +
           cmocka_run_group_tests(descriptors, fx_up, fx_down);
}
