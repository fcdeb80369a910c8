#pragma once
/* Session shells on a real keeper. Bnnn in a test: shared field cases. */
#include "component/services_fixture.h"

#include <dirent.h>

#include "base/fd.h"
#include "services/session_impl.h"

static inline cp_exec_spec in_session(const char *session, const char *command) {
    return (cp_exec_spec){.kind = CP_EXEC_BUFFERED, .session = cp_str_of(session), .command = cp_str_of(command)};
}

static inline void expect(const char *session, const char *command, int code, const char *out, const char *err) {
    cp_exec_spec s = in_session(session, command);
    run_expect(&s, code, out, err);
}

/* Ends with the shell gone: SESSION_TERMINATED on the wire. */
static inline void expect_end(const char *session, const char *command, int code, const char *out) {
    struct run r;
    cp_exec_spec s = in_session(session, command);
    run_begin(&r, &s);
    run_wait(&r);
    cp_autofree char *o = run_output(&r, 0);
    assert_true(r.e->session_ended);
    assert_int_equal(r.e->exit_code, code);
    assert_string_equal(o, out);
    run_free(&r);
}

/* Begins, times out after `ms`, ends; the outcome says so. */
static inline void expect_timeout(const char *session, const char *command, uint64_t ms, bool replaced) {
    struct run r;
    cp_exec_spec s = in_session(session, command);
    s.timeout_ms = ms;
    run_begin(&r, &s);
    run_wait(&r);
    assert_int_equal(r.e->outcome, CP_OUTCOME_timeout);
    assert_true(r.e->timed_out);
    assert_false(r.e->session_ended);
    assert_int_equal(r.e->shell_replaced, replaced);
    run_free(&r);
}

static inline void expect_background(cp_exec_kind kind, const char *session, const char *command, int code,
                                     const char *out) {
    cp_exec_spec s = in_session(session, command);
    s.kind = kind;
    run_expect(&s, code, out, NULL);
}

struct answer {
    int calls;
    bool failed;
    cp_code code;
    char id[256];
};

static inline void answered(void *arg, const cp_err *err, const char *id) {
    struct answer *a = arg;
    a->calls++;
    a->failed = err != NULL;
    if (err) a->code = err->code;
    snprintf(a->id, sizeof a->id, "%s", id);
}

static inline void create(const cp_session_spec *spec, struct answer *a) {
    cp_err err = {0};
    *a = (struct answer){0};
    if (cp_session_create(&fx.s, spec, answered, a, &err) < 0) fail_msg("%s", err.msg);
    assert_int_equal(a->calls, 0);
    fx_until(a->calls);
    assert_false(a->failed);
}

static inline void delete_(const char *id, bool keep) {
    struct answer a = {0};
    cp_err err = {0};
    if (cp_session_delete(&fx.s, cp_str_of(id), keep, answered, &a, &err) < 0) fail_msg("%s", err.msg);
    fx_until(a.calls);
    assert_false(a.failed);
}

static inline struct cp_session *session(const char *id) {
    struct cp_session *s = session_find(&fx.s, cp_str_of(id));
    assert_non_null(s);
    return s;
}

static inline int folders(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/sessions", fx.dir);
    DIR *d = opendir(path);
    int n = -2;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* A server that ends and the next one, as the keeper would see it. */
static inline void restart(const char *id) {
    const struct cp_session *s = session(id);
    char key[64];
    snprintf(key, sizeof key, "s:%s:%s", s->token, id);
    cp_held h = {.tag = s->child.tag,
                 .key = key,
                 .pid = s->child.pid,
                 .start_time = s->child.start_time,
                 .mark = s->child.mark,
                 .fds = {dup(s->script), dup(s->status), dup(s->depot)}};
    cp_err err = {0};
    cp_services_close(&fx.s);
    cp_services_held(&fx.s, &h);
    if (cp_services_open(&fx.s, &err) < 0) fail_msg("%s", err.msg);
    assert_true(cp_session_exists(&fx.s, cp_str_of(id)));
}
