#include "registry/db.h"

int cp_store_put_event(cp_db *db, const cp_event_row *r, bool again, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, again ? CP_SQL_PUT_EVENT_AGAIN : CP_SQL_PUT_EVENT, err);
    if (!st) return -1;
    sqlite3_bind_int64(st, 1, (sqlite3_int64)r->id);
    cp_db_bind(st, 2, r->type);
    sqlite3_bind_int64(st, 3, r->at_ms);
    cp_db_bind(st, 4, r->process_id);
    cp_db_bind(st, 5, r->exec_id);
    cp_db_bind(st, 6, r->session);
    sqlite3_bind_int64(st, 7, r->pid);
    if (r->has_exit) sqlite3_bind_int(st, 8, r->exit_code); /* else NULL */
    sqlite3_bind_int(st, 9, r->signal);
    cp_db_bind(st, 10, r->outcome);
    cp_db_bind(st, 11, r->stream);
    sqlite3_bind_int64(st, 12, (sqlite3_int64)r->bytes);
    return cp_db_run(db, st, err);
}

int cp_store_del_events(cp_db *db, uint64_t before, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_DEL_EVENTS, err);
    if (!st) return -1;
    sqlite3_bind_int64(st, 1, (sqlite3_int64)before);
    return cp_db_run(db, st, err);
}

static cp_event_row event_row_of(sqlite3_stmt *st) {
    return (cp_event_row){
        .id = (uint64_t)sqlite3_column_int64(st, 0),
        .type = cp_db_text(st, 1),
        .at_ms = sqlite3_column_int64(st, 2),
        .process_id = cp_db_text(st, 3),
        .exec_id = cp_db_text(st, 4),
        .session = cp_db_text(st, 5),
        .pid = sqlite3_column_int64(st, 6),
        .has_exit = sqlite3_column_type(st, 7) != SQLITE_NULL,
        .exit_code = sqlite3_column_int(st, 7),
        .signal = sqlite3_column_int(st, 8),
        .outcome = cp_db_text(st, 9),
        .stream = cp_db_text(st, 10),
        .bytes = (uint64_t)sqlite3_column_int64(st, 11),
    };
}

int cp_store_first_event(cp_db *db, uint64_t *first, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_FIRST_EVENT, err);
    if (!st) return -1;
    int rc = sqlite3_step(st);
    sqlite3_int64 value = rc == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
    if (rc == SQLITE_ROW && (value < 1 || value > INT64_MAX / 2)) {
        sqlite3_reset(st);
        return cp_fail(err, CP_E_INTERNAL_ERROR, "registry: the beginning of the events is no number of ours");
    }
    if (rc == SQLITE_ROW) *first = (uint64_t)value;
    else cp_db_fail(db, "read the beginning of the events", err);
    sqlite3_reset(st);
    return rc == SQLITE_ROW ? 0 : -1;
}

int cp_store_set_first_event(cp_db *db, uint64_t first, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, CP_SQL_SET_FIRST_EVENT, err);
    if (!st) return -1;
    sqlite3_bind_int64(st, 1, (sqlite3_int64)first);
    return cp_db_run(db, st, err);
}

int cp_store_each_event(cp_db *db, cp_sql_id which, void (*fn)(void *, const cp_event_row *), void *arg, cp_err *err) {
    sqlite3_stmt *st = cp_db_stmt(db, which, err);
    if (!st) return -1;
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        cp_event_row r = event_row_of(st);
        if (r.type && *r.type && r.id && r.id <= INT64_MAX / 2) fn(arg, &r);
    }
    if (rc != SQLITE_DONE) cp_db_fail(db, "read events", err);
    sqlite3_reset(st);
    return rc == SQLITE_DONE ? 0 : -1;
}
