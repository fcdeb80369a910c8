#pragma once
/* Inside registry/ only: the connection, prepared statements by name, and the queued operations. */
#include <sqlite3.h>

#include "registry/registry.h"

typedef enum {
#define X(id, sql) CP_SQL_##id,
#include "registry/statements.def"
#undef X
    CP_SQL_COUNT
} cp_sql_id;

typedef struct cp_db {
    sqlite3 *sq;
    sqlite3_stmt *stmts[CP_SQL_COUNT]; /* prepared on first use */
} cp_db;

int cp_db_open(cp_db *db, const char *path, cp_err *err); /* WAL, pragmas, integrity of the header */
void cp_db_close(cp_db *db);
int cp_db_migrate(cp_db *db, cp_err *err);
int cp_db_exec(cp_db *db, const char *sql, cp_err *err);
/* A reset statement with cleared bindings; NULL on failure. Owned by db. */
sqlite3_stmt *cp_db_stmt(cp_db *db, cp_sql_id id, cp_err *err);
/* Steps once to the end and resets. */
int cp_db_run(cp_db *db, sqlite3_stmt *st, cp_err *err);
int cp_db_fail(cp_db *db, const char *what, cp_err *err);
bool cp_db_refused(const cp_db *db); /* the last error is the row's or the statement's fault, not the disk's */
bool cp_db_damaged(const cp_db *db); /* the last error says that the file is no database or is corrupt */

/* One function per transaction body (called inside the writer's transaction). */
int cp_store_put_exec(cp_db *db, const cp_exec_row *row, cp_err *err);
int cp_store_del_exec(cp_db *db, const char *id, cp_err *err);
int cp_store_each_exec(cp_db *db, void (*fn)(void *, const cp_exec_row *), void *arg, cp_err *err);
int cp_store_put_session(cp_db *db, const cp_session_row *row, cp_err *err);
int cp_store_del_session(cp_db *db, const char *id, cp_err *err);
int cp_store_each_session(cp_db *db, void (*fn)(void *, const cp_session_row *), void *arg, cp_err *err);
int cp_store_put_event(cp_db *db, const cp_event_row *row, cp_err *err);
int cp_store_del_events(cp_db *db, uint64_t before, cp_err *err);
int cp_store_first_event(cp_db *db, uint64_t *first, cp_err *err);
int cp_store_each_event(cp_db *db, void (*fn)(void *, const cp_event_row *), void *arg, cp_err *err);
