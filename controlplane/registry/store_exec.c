#include "registry/db.h"

enum { FLAG_STOPPED = 1, FLAG_TIMED_OUT = 2, FLAG_TRUNC_OUT = 4, FLAG_TRUNC_ERR = 8 };

static int flags_of(const cp_exec_row *r) {
    return (r->stopped_by_us ? FLAG_STOPPED : 0) | (r->timed_out ? FLAG_TIMED_OUT : 0) |
           (r->truncated[0] ? FLAG_TRUNC_OUT : 0) | (r->truncated[1] ? FLAG_TRUNC_ERR : 0);
}

static bool shortened(const cp_exec_row *r) { return r->command && r->command_length > strlen(r->command); }

int cp_store_put_exec(cp_db *db, const cp_exec_row *r, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_PUT_EXEC, err);
    if (!st) return -1;
    cp_db_bind(st, 1, r->id);
    cp_db_bind(st, 2, r->process_id);
    sqlite3_bind_int(st, 3, (int)r->kind);
    cp_db_bind(st, 4, r->session);
    cp_db_bind(st, 5, r->command);
    cp_db_bind(st, 6, r->cwd);
    sqlite3_bind_blob(st, 7, r->fingerprint, sizeof r->fingerprint, SQLITE_STATIC);
    cp_db_bind(st, 8, r->state);
    sqlite3_bind_int64(st, 9, r->pid);
    sqlite3_bind_int64(st, 10, (sqlite3_int64)r->pid_start);
    sqlite3_bind_int64(st, 11, r->started_ms);
    sqlite3_bind_int64(st, 12, r->ended_ms);
    cp_db_bind(st, 13, r->outcome);
    sqlite3_bind_int(st, 14, r->exit_code);
    sqlite3_bind_int(st, 15, r->signal);
    for (int i = 0; i < 2; i++) {
        sqlite3_bind_int64(st, 16 + i, (sqlite3_int64)r->total[i]);
        sqlite3_bind_int64(st, 18 + i, (sqlite3_int64)r->dropped[i]);
    }
    sqlite3_bind_int64(st, 20, (sqlite3_int64)r->max_rss);
    sqlite3_bind_int64(st, 21, (sqlite3_int64)r->cpu_us);
    cp_db_bind(st, 22, r->error);
    sqlite3_bind_int(st, 23, r->error_errno);
    sqlite3_bind_int(st, 24, flags_of(r));
    sqlite3_bind_int64(st, 25, (sqlite3_int64)r->timeout_ms);
    sqlite3_bind_int64(st, 26, (sqlite3_int64)r->max_output);
    sqlite3_bind_int64(st, 27, (sqlite3_int64)r->command_length);
    if (shortened(r))
        sqlite3_bind_blob(st, 28, r->command_sha256, sizeof r->command_sha256, SQLITE_STATIC); /* else NULL */
    return cp_db_run(db, st, err);
}

int cp_store_del_exec(cp_db *db, const char *id, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_DEL_EXEC, err);
    if (!st) return -1;
    cp_db_bind(st, 1, id);
    return cp_db_run(db, st, err);
}

static void digest(sqlite3_stmt *st, int i, uint8_t out[32]) {
    if (sqlite3_column_bytes(st, i) == 32) memcpy(out, sqlite3_column_blob(st, i), 32);
}

static cp_exec_row exec_row_of(sqlite3_stmt *st) {
    int flags = sqlite3_column_int(st, 23);
    cp_exec_row r = {
        .id = cp_db_text(st, 0),
        .process_id = cp_db_text(st, 1),
        .kind = (cp_row_kind)sqlite3_column_int(st, 2),
        .session = cp_db_text(st, 3),
        .command = cp_db_text(st, 4),
        .cwd = cp_db_text(st, 5),
        .state = cp_db_text(st, 7),
        .pid = sqlite3_column_int64(st, 8),
        .pid_start = (uint64_t)sqlite3_column_int64(st, 9),
        .started_ms = sqlite3_column_int64(st, 10),
        .ended_ms = sqlite3_column_int64(st, 11),
        .outcome = cp_db_text(st, 12),
        .exit_code = sqlite3_column_int(st, 13),
        .signal = sqlite3_column_int(st, 14),
        .max_rss = (uint64_t)sqlite3_column_int64(st, 19),
        .cpu_us = (uint64_t)sqlite3_column_int64(st, 20),
        .error = cp_db_text(st, 21),
        .error_errno = sqlite3_column_int(st, 22),
        .stopped_by_us = flags & FLAG_STOPPED,
        .timed_out = flags & FLAG_TIMED_OUT,
        .truncated = {flags & FLAG_TRUNC_OUT, flags & FLAG_TRUNC_ERR},
        .timeout_ms = (uint64_t)sqlite3_column_int64(st, 24),
        .max_output = (uint64_t)sqlite3_column_int64(st, 25),
        .command_length = (uint64_t)sqlite3_column_int64(st, 26),
    };
    digest(st, 6, r.fingerprint);
    digest(st, 27, r.command_sha256);
    for (int i = 0; i < 2; i++) {
        r.total[i] = (uint64_t)sqlite3_column_int64(st, 15 + i);
        r.dropped[i] = (uint64_t)sqlite3_column_int64(st, 17 + i);
    }
    return r;
}

/* ---- is it one of ours ---- */

/* Ids become names of files. */
static bool id_ok(const char *id) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-";
    size_t n = id ? strlen(id) : 0;
    return n >= 1 && n <= CP_EXEC_ID_MAX && strspn(id, letters) == n;
}

static bool process_id_ok(const cp_exec_row *r) {
    if (!r->process_id) return r->kind == CP_ROW_BUFFERED;
    return *r->process_id && strlen(r->process_id) <= CP_PROCESS_ID_MAX && !strchr(r->process_id, '/');
}

static bool state_ok(const char *state) {
    return state && (strcmp(state, "intent") == 0 || strcmp(state, "running") == 0 || strcmp(state, "ended") == 0);
}

static bool numbers_ok(const cp_exec_row *r) {
    static const int64_t max = (int64_t)1 << 53;
    if (r->pid < 0 || r->pid > INT32_MAX || r->signal < 0 || r->signal > 64 || r->exit_code < -1) return false;
    if (r->started_ms < 0 || r->started_ms > max || r->ended_ms < 0 || r->ended_ms > max) return false;
    for (int i = 0; i < 2; i++)
        if (r->total[i] > (uint64_t)max || r->dropped[i] > r->total[i]) return false;
    return r->timeout_ms <= (uint64_t)max && r->command_length <= (uint64_t)max;
}

static bool row_ok(const cp_exec_row *r) {
    return id_ok(r->id) && (unsigned)r->kind <= CP_ROW_PROCESS && process_id_ok(r) && state_ok(r->state) &&
           r->command && numbers_ok(r);
}

int cp_store_each_exec(cp_db *db, cp_sql_id which, void (*fn)(void *, const cp_exec_row *), void *arg, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, which, err);
    if (!st) return -1;
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        cp_exec_row r = exec_row_of(st);
        if (row_ok(&r)) fn(arg, &r);
    }
    if (rc != SQLITE_DONE) cp_db_fail(db, "read executions", err);
    sqlite3_reset(st);
    return rc == SQLITE_DONE ? 0 : -1;
}
