#include "handlers/exec_result.h"

#include "base/sha.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <string.h>

/* ---- pieces ---- */

void cp_jw_signal(cp_jw *w, const char *key, int sig) {
    const char *abbrev = sigabbrev_np(sig);
    char name[24];
    cp_jw_key(w, key);
    if (!abbrev) {
        cp_jw_i64(w, sig);
        return;
    }
    snprintf(name, sizeof name, "SIG%s", abbrev);
    cp_jw_z(w, name);
}

static void write_command(cp_jw *w, cp_str shown, uint64_t length, const uint8_t *sha256) {
    char hex[2 * CP_SHA256_SIZE + 1];
    cp_jw_kstr(w, "command", shown);
    if (!sha256) return;
    cp_sha256_hex(sha256, hex);
    cp_jw_ku64(w, "commandLength", length);
    cp_jw_kz(w, "commandSha256", hex);
    cp_jw_kbool(w, "commandTruncated", true);
}

void cp_jw_command(cp_jw *w, const cp_exec *e) {
    write_command(w, cp_str_of(e->command), e->command_length, e->command_truncated ? e->command_sha256 : NULL);
}

void cp_jw_command_text(cp_jw *w, cp_str text, const uint8_t *sha256) {
    uint8_t digest[CP_SHA256_SIZE];
    size_t head = cp_command_head(text);
    if (head < text.n && !sha256) cp_sha256_of(text.p, text.n, digest);
    write_command(w, (cp_str){text.p, head}, text.n, head == text.n ? NULL : sha256 ? sha256 : digest);
}

void cp_jw_usage(cp_jw *w, const cp_exec *e) {
    if (!e->max_rss && !e->cpu_us) return; /* not known: it ran inside its session's shell */
    cp_jw_key(w, "usage");
    cp_jw_obj(w);
    cp_jw_ku64(w, "maxRssBytes", e->max_rss);
    cp_jw_ku64(w, "cpuMs", e->cpu_us / 1000);
    cp_jw_end_obj(w);
}

/* ---- the result ---- */

static void write_additions(cp_jw *w, const cp_gathered *g) {
    const cp_exec *e = g->exec;
    cp_jw_kz(w, "executionId", e->id);
    cp_jw_kz(w, "outcome", cp_outcome_name(e->outcome));
    if (e->signal) cp_jw_signal(w, "signal", e->signal);
    cp_jw_kbool(w, "timedOut", e->timed_out);
    if (e->shell_replaced) cp_jw_kbool(w, "shellReplaced", true);
    if (g->view.base64) cp_jw_kz(w, "encoding", "base64");
    cp_jw_ku64(w, "stdoutBytes", g->total[0]);
    cp_jw_ku64(w, "stderrBytes", g->total[1]);
    cp_jw_kbool(w, "stdoutTruncated", g->truncated[0]);
    cp_jw_kbool(w, "stderrTruncated", g->truncated[1]);
    cp_jw_kbool(w, "lossy", g->lossy);
    cp_jw_ku64(w, "durationMs", e->ended_ms - e->started_ms);
    cp_jw_usage(w, e);
}

static void begin_success(const cp_gathered *g, cp_result *res, cp_jw *w) {
    res->status = 200;
    cp_jw_obj(w);
    cp_jw_kbool(w, "success", g->exec->exit_code == 0);
    cp_jw_ki64(w, "exitCode", g->exec->exit_code);
}

static void end_success(const cp_gathered *g, cp_jw *w) {
    const cp_exec *e = g->exec;
    cp_jw_command(w, e);
    cp_jw_ku64(w, "duration", 0); /* always 0 in the reference; ours is durationMs */
    cp_jw_know(w);
    if (g->view.session_given) cp_jw_kz(w, "sessionId", e->session ? e->session : "__DISABLE_SESSION__");
    write_additions(w, g);
    cp_jw_end_obj(w);
}

void cp_jw_start_error(cp_jw *w, const cp_exec *e) {
    cp_jw_kz(w, "error", e->start_err->msg);
    if (e->start_err->sys) cp_jw_kz(w, "errno", cp_errno_name(e->start_err->sys));
}

/* ---- the errors that an execution may end with ---- */

/* How much there is, where the context does not hold all of it. */
static void write_cuts(cp_jw *w, const cp_gathered *g) {
    static const char *const bytes[] = {"stdoutBytes", "stderrBytes"}, *const cut[] = {"stdoutTruncated",
                                                                                       "stderrTruncated"};
    for (int k = 0; k < 2; k++) {
        if (!g->truncated[k]) continue;
        cp_jw_ku64(w, bytes[k], g->total[k]);
        cp_jw_kbool(w, cut[k], true);
    }
}

int cp_exec_how_it_failed(const cp_exec *e, cp_err *err) {
    if (e->start_err) {
        *err = *e->start_err;
        return -1;
    }
    if (e->session_destroyed)
        return cp_fail(err, CP_E_SESSION_DESTROYED, "Session '%s' was destroyed during the command", e->session);
    if (e->session_ended)
        return cp_fail(err, CP_E_SESSION_TERMINATED, "Session '%s' shell exited (exit code: %d)", e->session,
                       e->exit_code);
    if (e->cancelled || e->outcome == CP_OUTCOME_cancelled)
        return cp_fail(err, CP_E_CANCELLED, "The execution was cancelled");
    if (e->outcome == CP_OUTCOME_lost)
        return cp_fail(err, CP_E_EXECUTION_LOST, "The execution was lost: how it ended is not known");
    if (e->timed_out && e->session)
        return cp_fail(err, CP_E_COMMAND_EXECUTION_ERROR,
                       "Failed to execute command in session '%s': Command timeout after %llums", e->session,
                       (unsigned long long)e->timeout_ms);
    return 0;
}

/* Returns whether it has texts: what could not be started has none. */
static bool begin_error(const cp_gathered *g, cp_result *res, cp_jw *w) {
    const cp_exec *e = g->exec;
    const cp_err *err = &g->failed;
    res->status = cp_code_http(err->code);
    cp_error_begin(w, err);
    cp_jw_obj(w);
    if (e->session) cp_jw_kz(w, "sessionId", e->session);
    if (err->code == CP_E_SESSION_TERMINATED) cp_jw_ki64(w, "exitCode", e->exit_code);
    if (e->timed_out) cp_jw_kbool(w, "timedOut", true);
    if (e->shell_replaced) cp_jw_kbool(w, "shellReplaced", true);
    if (e->state != CP_STATE_FAILED) {
        cp_jw_kz(w, "outcome", cp_outcome_name(e->outcome));
        return true;
    }
    cp_jw_command(w, e);
    cp_jw_kz(w, "stderr", err->msg);
    if (err->sys) cp_jw_kz(w, "errno", cp_errno_name(err->sys));
    return false;
}

static void end_error(const cp_gathered *g, const cp_result *res, cp_jw *w) {
    if (g->exec->state != CP_STATE_FAILED) write_cuts(w, g);
    cp_jw_kz(w, "executionId", g->exec->id);
    cp_jw_end_obj(w);
    cp_error_end(w, &g->failed, NULL, res->status);
}

static bool begin_exec(cp_gathered *g, cp_result *res, cp_jw *w) {
    if (cp_exec_how_it_failed(g->exec, &g->failed) < 0) return begin_error(g, res, w);
    begin_success(g, res, w);
    return true;
}

static void end_exec(cp_gathered *g, cp_result *res, cp_jw *w) {
    if (g->failed.code) end_error(g, res, w);
    else end_success(g, w);
}

const cp_gather_form cp_gather_exec = {.begin = begin_exec, .end = end_exec};

/* ---- the logs of a process ---- */

static bool begin_logs(cp_gathered *g, cp_result *res, cp_jw *w) {
    res->status = 200;
    cp_jw_obj(w);
    cp_jw_kbool(w, "success", true);
    cp_jw_kz(w, "processId", g->exec->process_id);
    return true;
}

/* Whoever asks for the whole log reads no other answer that says what is missing in it. */
static void end_logs(cp_gathered *g, cp_result *res, cp_jw *w) {
    (void)res;
    if (g->missing[0] || g->missing[1]) {
        cp_jw_key(w, "dropped");
        cp_jw_obj(w);
        cp_jw_ku64(w, "stdout", g->missing[0]);
        cp_jw_ku64(w, "stderr", g->missing[1]);
        cp_jw_end_obj(w);
    }
    cp_success_end(w);
}

static bool refuse_logs(const cp_gathered *g, cp_result *res) {
    if (!g->unread.code) return false;
    cp_autobuf cp_buf context = {0};
    cp_jw w = cp_jw_on(&context);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "processId", g->exec->process_id);
    cp_jw_end_obj(&w);
    res->status = 0;
    cp_error_result(res, &g->unread, NULL, cp_buf_str(&context));
    return true;
}

const cp_gather_form cp_gather_logs = {.begin = begin_logs, .end = end_logs, .exact = true, .refuse = refuse_logs};
