#pragma once
/* Inside registry/ only: the connection, prepared statements by name, and the queued operations. */
#include <sqlite3.h>
#include <sys/types.h>

#include "registry/registry.h"

typedef enum {
#define X(id, sql) CP_SQL_##id,
#include "registry/statements.def"
#undef X
    CP_SQL_COUNT
} cp_sql_id;

enum { CP_DB_FILES = 3 }; /* the database, -wal, -shm */

typedef struct cp_db {
    sqlite3 *sq;                       /* NULL: not open */
    sqlite3_stmt *stmts[CP_SQL_COUNT]; /* prepared on first use */
    struct cp_db_file {
        dev_t dev;
        ino_t ino; /* 0: not known */
        off_t size;
        struct timespec changed;
    } files[CP_DB_FILES]; /* as they were opened; size and time as of the last cp_db_note */
    bool fresh;           /* it was empty when it was opened */
} cp_db;

/* What an error says of the next try. */
typedef enum {
    CP_DB_REFUSED,  /* the row is at fault */
    CP_DB_BLOCKED,  /* the disk is full, somebody holds a lock, memory or descriptors are lacking */
    CP_DB_DOUBTFUL, /* it cannot be read or written, which may be the disk's fault */
    CP_DB_BROKEN,   /* it is damaged, or no database */
    CP_DB_NEWER,    /* written by a newer program */
} cp_db_fault;

int cp_db_open(cp_db *db, const char *path, cp_err *err); /* WAL, pragmas */
void cp_db_close(cp_db *db);                              /* not open is fine */
void cp_db_abandon(cp_db *db);                            /* the same, but its files stay as they are */
int cp_db_version(cp_db *db, int *out, cp_err *err);
int cp_db_newest(void); /* the version of the schema that this program knows */
int cp_db_migrate(cp_db *db, cp_err *err);
int cp_db_exec(cp_db *db, const char *sql, cp_err *err);
/* A reset statement with cleared bindings; NULL on failure. Owned by db. */
sqlite3_stmt *cp_db_stmt(cp_db *db, cp_sql_id id, cp_err *err);
/* v, which may be NULL, lives until the statement is run. */
static inline void cp_db_bind(sqlite3_stmt *st, int i, const char *v) {
    sqlite3_bind_text(st, i, v, -1, SQLITE_STATIC);
}
/* NULL where the column is NULL. Lives until the next step. */
static inline const char *cp_db_text(sqlite3_stmt *st, int i) { return (const char *)sqlite3_column_text(st, i); }
/* Steps once to the end and resets. */
int cp_db_run(cp_db *db, sqlite3_stmt *st, cp_err *err);
int cp_db_fail(cp_db *db, const char *what, cp_err *err);
cp_db_fault cp_db_fault_of(const cp_db *db); /* of the last error */

/* renew.c. Opens or creates the database, migrates it, and looks whether it is whole. On failure it is not open, and
 * *fault says why. */
int cp_db_begin(cp_db *db, const char *path, cp_db_fault *fault, cp_err *err);
bool cp_db_in_place(const cp_db *db, const char *path); /* the files that are open are those with the names */
/* Nobody else writes to its files. After own writes they are noted; when they have changed since, what they hold is
 * read anew, from the files and not from memory, and judged: -1, it is damaged. */
void cp_db_note(cp_db *db, const char *path);
int cp_db_judge(cp_db *db, const char *path, cp_err *err);
/* For reading alone, where it cannot be written: the rows of this program's schema, or -1 and not open. */
int cp_db_view(cp_db *db, const char *path, cp_err *err);
/* Moves what is there aside and begins anew. With `salvage`, what can still be read of the former rows is taken over.
 * Nothing is moved before the new one is complete on disk, nor, without `force`, where the former takes a write after
 * all: then that is opened. On failure all is as it was, and db is not open. */
typedef struct cp_db_renewal {
    bool salvage, force;
} cp_db_renewal;
int cp_db_renew(cp_db *db, const char *path, cp_db_renewal how, cp_err *err);

/* One function per transaction body (called inside the writer's transaction). */
int cp_store_put_exec(cp_db *db, const cp_exec_row *row, cp_err *err);
int cp_store_del_exec(cp_db *db, const char *id, cp_err *err);
/* In an order of `which`, a statement that selects the columns of a row. What cannot be a row of ours is passed over.
 */
int cp_store_each_exec(cp_db *db, cp_sql_id which, void (*fn)(void *, const cp_exec_row *), void *arg, cp_err *err);
int cp_store_put_session(cp_db *db, const cp_session_row *row, cp_err *err);
int cp_store_del_session(cp_db *db, const char *id, cp_err *err);
int cp_store_each_session(cp_db *db, cp_sql_id which, void (*fn)(void *, const cp_session_row *), void *arg,
                          cp_err *err);
int cp_store_put_event(cp_db *db, const cp_event_row *row, bool again,
                       cp_err *err); /* again: one that is there stays */
int cp_store_del_events(cp_db *db, uint64_t before, cp_err *err);
int cp_store_first_event(cp_db *db, uint64_t *first, cp_err *err);
int cp_store_set_first_event(cp_db *db, uint64_t first, cp_err *err);
int cp_store_each_event(cp_db *db, cp_sql_id which, void (*fn)(void *, const cp_event_row *), void *arg, cp_err *err);
