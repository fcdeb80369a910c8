/* Design notes. Whatever is found at the name of the database, a start must come of it: what is damaged, gone, of no
 * use or replaced is moved aside under a dated name, and a fresh one takes its place. The fresh one is made complete
 * under a name of its own first, so that a disk that takes nothing costs nothing of what there is.
 *
 * Damage that SQLite has not come by yet is looked for at the opening (quick_check); a damage of contents alone shows
 * in no check, so each row that is read is judged as well (the stores). SQLite goes on quietly with files that have
 * lost their names, and what it writes then is seen by nobody: so the writer compares names and files before each
 * transaction. */
#include "base/aside.h"
#include "base/log.h"
#include "base/metrics.h"
#include "registry/db.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const parts[] = {"", "-wal", "-shm"};
static const char *const suffixes[] = {"-wal", "-shm", NULL};

static void part_name(cp_buf *out, const char *path, int i) {
    cp_buf_clear(out);
    cp_buf_addf(out, "%s%s", path, parts[i]);
}

static struct cp_db_file file_at(const char *path, int i) {
    struct stat st;
    cp_autobuf cp_buf name = {0};
    part_name(&name, path, i);
    if (lstat(cp_buf_z(&name), &st) < 0) return (struct cp_db_file){0};
    return (struct cp_db_file){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
}

/* A pipe or a device would be waited for, and SQLite follows links. To be written to, a file has no other name either.
 */
static bool only_files(const char *path, bool to_write) {
    struct stat st;
    cp_autobuf cp_buf name = {0};
    for (int i = 0; i < CP_DB_FILES; i++) {
        part_name(&name, path, i);
        if (lstat(cp_buf_z(&name), &st) < 0) continue;
        if (to_write ? !cp_is_plain(&st) : !S_ISREG(st.st_mode)) return false;
    }
    return true;
}

/* Beside the database, which is as good without: the -shm is not looked at, and of what is no file at all nothing could
 * be read. A -wal with another name has rows; it goes with the database when these have been read. */
static void clear_parts(const char *path) {
    struct stat st;
    cp_autobuf cp_buf name = {0};
    for (int i = 1; i < CP_DB_FILES; i++) {
        part_name(&name, path, i);
        if (lstat(cp_buf_z(&name), &st) == 0 && (i == 2 || !S_ISREG(st.st_mode))) (void)cp_file_clear(cp_buf_z(&name));
    }
}

bool cp_db_in_place(const cp_db *db, const char *path) {
    for (int i = 0; i < CP_DB_FILES; i++) {
        const struct cp_db_file *was = &db->files[i], now = file_at(path, i);
        if (was->ino && (now.ino != was->ino || now.dev != was->dev)) return false;
    }
    return db->sq != NULL;
}

/* ---- opening ---- */

static int damaged(const char *what, cp_err *err) {
    return cp_fail(err, CP_E_INTERNAL_ERROR, "registry: the database is damaged: %s", what);
}

static int check(cp_db *db, cp_err *err) {
    sqlite3_stmt *st = NULL;
    int rc = -1;
    if (sqlite3_prepare_v2(db->sq, "PRAGMA quick_check(1)", -1, &st, NULL) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW) {
        cp_db_fail(db, "quick_check", err);
    } else {
        const char *said = (const char *)sqlite3_column_text(st, 0);
        rc = said && strcmp(said, "ok") == 0 ? 0 : damaged(said ? said : "quick_check", err);
    }
    sqlite3_finalize(st);
    return rc;
}

void cp_db_note(cp_db *db, const char *path) {
    for (int i = 0; i < CP_DB_FILES; i++) {
        struct cp_db_file *was = &db->files[i], now = file_at(path, i);
        if (!was->ino || (now.ino == was->ino && now.dev == was->dev)) *was = now;
    }
}

static bool same_content(const struct cp_db_file *a, const struct cp_db_file *b) {
    return a->size == b->size && a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

int cp_db_judge(cp_db *db, const char *path, cp_err *err) {
    bool same = true;
    for (int i = 0; i < CP_DB_FILES; i++) {
        struct cp_db_file now = file_at(path, i);
        same &= same_content(&now, &db->files[i]);
    }
    if (same) return 0;
    sqlite3_db_release_memory(db->sq); /* the pages that it has in memory */
    if (check(db, err) < 0) return -1;
    cp_db_note(db, path);
    return 0;
}

static int prepare_all(cp_db *db, cp_err *err) {
    uint64_t first;
    for (int i = 0; i < CP_SQL_COUNT; i++)
        if (!cp_db_stmt(db, (cp_sql_id)i, err)) return -1;
    return cp_store_first_event(db, &first, err);
}

/* Of a server that still had one. Nobody has it open: the database is locked by us alone. */
static void remove_shm(const char *path) {
    cp_autobuf cp_buf name = {0};
    part_name(&name, path, 2);
    (void)unlink(cp_buf_z(&name)); /* it is not looked at */
}

static int begin(cp_db *db, const char *path, cp_err *err) {
    if (!only_files(path, true)) return damaged("something else stands in the place of its files", err);
    if (cp_db_open(db, path, err) < 0 || cp_db_migrate(db, err) < 0) return -1;
    remove_shm(path);
    return check(db, err) < 0 || prepare_all(db, err) < 0 ? -1 : 0;
}

/* SQLite would delete it. */
static void save_wal_alone(const char *path) {
    if (!file_at(path, 0).ino && file_at(path, 1).ino) (void)cp_move_aside(path, suffixes, NULL);
}

int cp_db_begin(cp_db *db, const char *path, cp_db_fault *fault, cp_err *err) {
    cp_err why = {0};
    clear_parts(path);
    save_wal_alone(path);
    if (begin(db, path, &why) == 0) {
        for (int i = 0; i < CP_DB_FILES; i++) db->files[i] = file_at(path, i);
        return 0;
    }
    *fault = why.code == CP_E_NOT_SUPPORTED ? CP_DB_NEWER : cp_db_fault_of(db);
    if (*fault == CP_DB_REFUSED) *fault = CP_DB_BROKEN; /* what it held did not fit the present schema */
    cp_db_abandon(db);
    if (err) *err = why;
    return -1;
}

/* ---- what can still be read ---- */

int cp_db_view(cp_db *db, const char *path, cp_err *err) {
    clear_parts(path); /* SQLite would make a -shm, or write into it */
    if (!only_files(path, false)) return damaged("something else stands in the place of its files", err);
    static const char *const how[] = {"", "?immutable=1"}; /* the second where there is no -wal and none can be made */
    for (size_t i = 0; i < CP_COUNT(how); i++) {
        cp_autobuf cp_buf uri = {0};
        int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, have;
        cp_buf_addz(&uri, "file:");
        for (const char *p = path; *p; p++) cp_buf_addf(&uri, strchr("%?#", *p) ? "%%%02x" : "%c", (unsigned char)*p);
        cp_buf_addz(&uri, how[i]);
        if (sqlite3_open_v2(cp_buf_z(&uri), &db->sq, flags, NULL) != SQLITE_OK) (void)cp_db_fail(db, path, err);
        else if (cp_db_version(db, &have, err) == 0 && have == cp_db_newest()) return 0;
        cp_db_abandon(db);
    }
    return -1;
}

struct salvage {
    cp_db *to;
    size_t rows;
};

static void save_exec(void *arg, const cp_exec_row *row) {
    struct salvage *s = arg;
    s->rows += cp_store_put_exec(s->to, row, NULL) == 0;
}
static void save_session(void *arg, const cp_session_row *row) {
    struct salvage *s = arg;
    s->rows += cp_store_put_session(s->to, row, NULL) == 0;
}
static void save_event(void *arg, const cp_event_row *row) {
    struct salvage *s = arg;
    s->rows += cp_store_put_event(s->to, row, true, NULL) == 0;
}

/* Each table from the front up to the first damage, then from the back. The statements have a limit: the links of a
 * damaged table may lead in circles. */
static void copy_rows(struct salvage *s, cp_db *from) {
    uint64_t first;
    (void)cp_store_each_exec(from, CP_SQL_UP_EXEC, save_exec, s, NULL);
    (void)cp_store_each_exec(from, CP_SQL_DOWN_EXEC, save_exec, s, NULL);
    (void)cp_store_each_session(from, CP_SQL_ALL_SESSION, save_session, s, NULL);
    (void)cp_store_each_event(from, CP_SQL_ALL_EVENT, save_event, s, NULL);
    (void)cp_store_each_event(from, CP_SQL_DOWN_EVENT, save_event, s, NULL);
    if (cp_store_first_event(from, &first, NULL) == 0) (void)cp_store_set_first_event(s->to, first, NULL);
}

static void salvage(cp_db *to, const char *path) {
    struct salvage s = {.to = to};
    cp_db from = {0};
    if (cp_db_view(&from, path, NULL) < 0) return;
    if (cp_db_exec(to, "BEGIN IMMEDIATE", NULL) == 0) {
        copy_rows(&s, &from);
        if (cp_db_exec(to, "COMMIT", NULL) < 0) sqlite3_exec(to->sq, "ROLLBACK", NULL, NULL, NULL);
    }
    cp_db_abandon(&from);
    cp_log(CP_LOG_INFO, "registry.salvaged", "rows of the damaged registry were taken over", CP_KVI("rows", s.rows));
}

/* ---- beginning anew ---- */

static void remove_all(const char *path) {
    cp_autobuf cp_buf name = {0};
    for (int i = 0; i < CP_DB_FILES; i++) {
        part_name(&name, path, i);
        (void)cp_file_clear(cp_buf_z(&name));
        (void)unlink(cp_buf_z(&name));
    }
}

static int make_new(const char *path, const char *old, bool with_rows, cp_err *err) {
    cp_db db = {0};
    cp_db_fault fault;
    remove_all(path);
    if (cp_db_begin(&db, path, &fault, err) < 0) return -1;
    if (with_rows) salvage(&db, old);
    cp_db_close(&db);
    return 0;
}

static int replace(const char *path, const char *new, cp_err *err) {
    cp_autofree char *moved = NULL;
    if (cp_move_aside(path, suffixes, &moved) < 0 || rename(new, path) < 0)
        return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "registry: %s cannot be replaced", path);
    cp_log(CP_LOG_ERROR, "registry.damaged", "the registry was damaged or gone; it was moved aside and begun anew",
           CP_KVZ("moved_to", moved));
    return 0;
}

static bool takes_a_write(cp_db *db, const char *path) {
    cp_db_fault fault;
    if (cp_db_begin(db, path, &fault, NULL) < 0) return false;
    if (cp_db_exec(db, "BEGIN IMMEDIATE; UPDATE event_log SET first=first; COMMIT", NULL) == 0) return true;
    cp_db_abandon(db);
    return false;
}

int cp_db_renew(cp_db *db, const char *path, cp_db_renewal how, cp_err *err) {
    cp_autobuf cp_buf new = {0};
    cp_db_fault fault;
    cp_buf_addf(&new, "%s.new", path);
    int rc = make_new(cp_buf_z(&new), path, how.salvage, err);
    if (rc == 0) cp_db_abandon(db);
    bool well = rc == 0 && !how.force && takes_a_write(db, path);
    if (rc == 0 && !well) rc = replace(path, cp_buf_z(&new), err);
    remove_all(cp_buf_z(&new));
    if (rc < 0 || well) return rc;
    cp_metric_add(CP_M_REGISTRY_RENEWED, 1);
    return cp_db_begin(db, path, &fault, err);
}
