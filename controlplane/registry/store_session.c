#include "registry/db.h"

int cp_store_put_session(cp_db *db, const cp_session_row *r, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_PUT_SESSION, err);
    if (!st) return -1;
    cp_db_bind(st, 1, r->id);
    cp_db_bind(st, 2, r->cwd);
    cp_db_bind(st, 3, r->state);
    sqlite3_bind_int64(st, 4, r->created_ms);
    sqlite3_bind_int64(st, 5, r->ended_ms);
    sqlite3_bind_int64(st, 6, r->pid);
    sqlite3_bind_int64(st, 7, (sqlite3_int64)r->pid_start);
    return cp_db_run(db, st, err);
}

int cp_store_del_session(cp_db *db, const char *id, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_DEL_SESSION, err);
    if (!st) return -1;
    cp_db_bind(st, 1, id);
    return cp_db_run(db, st, err);
}

int cp_store_each_session(cp_db *db, cp_sql_id which, void (*fn)(void *, const cp_session_row *), void *arg,
                          cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, which, err);
    if (!st) return -1;
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        cp_session_row r = {
            .id = cp_db_text(st, 0),
            .cwd = cp_db_text(st, 1),
            .state = cp_db_text(st, 2),
            .created_ms = sqlite3_column_int64(st, 3),
            .ended_ms = sqlite3_column_int64(st, 4),
            .pid = sqlite3_column_int64(st, 5),
            .pid_start = (uint64_t)sqlite3_column_int64(st, 6),
        };
        if (r.id && *r.id && r.state && r.created_ms >= 0) fn(arg, &r);
    }
    if (rc != SQLITE_DONE) cp_db_fail(db, "read sessions", err);
    sqlite3_reset(st);
    return rc == SQLITE_DONE ? 0 : -1;
}
