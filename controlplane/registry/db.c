#include "registry/db.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/aside.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/proc_stat.h"

static const char *const statements[CP_SQL_COUNT] = {
#define X(id, sql) [CP_SQL_##id] = sql,
#include "registry/statements.def"
#undef X
};

static const struct migration {
    const char *name, *sql;
} migrations[] = {
#include "migrations.inc"
};

int cp_db_fail(cp_db *db, const char *what, cp_err *err) {
    int code = db->sq ? sqlite3_errcode(db->sq) : SQLITE_NOMEM;
    cp_code kind = code == SQLITE_FULL ? CP_E_NO_SPACE : CP_E_INTERNAL_ERROR;
    return cp_fail(err, kind, "registry: %s: %s", what, db->sq ? sqlite3_errmsg(db->sq) : "out of memory");
}

/* Statements are ours: an error of SQL in one says that the tables are not. What stands behind an I/O error is not
 * known: the errno is gone by the time that it is told. */
cp_db_fault cp_db_fault_of(const cp_db *db) {
    switch (db->sq ? sqlite3_errcode(db->sq) & 0xff : SQLITE_CANTOPEN) {
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_RANGE:
    case SQLITE_MISUSE: return CP_DB_REFUSED;
    case SQLITE_FULL:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_NOMEM:
    case SQLITE_INTERRUPT:
    case SQLITE_PROTOCOL: return CP_DB_BLOCKED;
    case SQLITE_IOERR:
        if (sqlite3_extended_errcode(db->sq) == SQLITE_IOERR_NOMEM) return CP_DB_BLOCKED;
        return CP_DB_DOUBTFUL;
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH: return CP_DB_DOUBTFUL;
    default: return CP_DB_BROKEN;
    }
}

int cp_db_exec(cp_db *db, const char *sql, cp_err *err) {
    return sqlite3_exec(db->sq, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : cp_db_fail(db, "statement", err);
}

/* Commands, folders and names of clients are in it: for our own user alone, whoever may enter its folder. SQLite gives
 * the files beside it the same mode. Made before SQLite opens it, and never opened twice: closing it would drop the
 * locks that this process has on it. */
static void keep_private(const char *path) {
    struct stat st;
    cp_autobuf cp_buf wal = {0};
    cp_buf_addf(&wal, "%s-wal", path); /* left behind by a version that gave it another mode, or closed to us */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    cp_close(&fd);
    const char *there[] = {path, cp_buf_z(&wal)};
    for (int i = 0; i < 2; i++) /* what this cannot do, the opening will say */
        if (lstat(there[i], &st) == 0 && cp_is_plain(&st)) (void)chmod(there[i], 0600);
}

/* A server that was killed while one of its threads hangs in the kernel keeps its locks until that one has gone, and
 * writes no more. */
static bool is_locked_by_dead(const char *path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0x40000000, .l_len = 512}; /* SQLite's */
    cp_autofd int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    cp_proc_stat holder;
    return fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0 &&
           cp_proc_stat_read(lock.l_pid, &holder) && holder.state == 'Z';
}

/* NORMAL: a killed server loses nothing that was committed; a power cut may lose the last commits, never consistency.
 *
 * EXCLUSIVE: the index of the -wal lies in our memory, not in a file (-shm) that SQLite maps: whoever cut that short
 * would end the server with SIGBUS. Nobody else opens the database: a server is started when the one before it has
 * ended, or has nothing left but a thread that hangs. It must come first: the mode is chosen when the -wal is opened.
 */
static const char settings[] = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"
                               "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;"
                               "PRAGMA cache_size=-512; PRAGMA wal_autocheckpoint=256;"
                               "PRAGMA journal_size_limit=1048576;";

int cp_db_open(cp_db *db, const char *path, cp_err *err) {
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
    keep_private(path);
    const char *locks = is_locked_by_dead(path) ? "unix-none" : NULL;
    if (sqlite3_open_v2(path, &db->sq, flags, locks) != SQLITE_OK) return cp_db_fail(db, path, err);
    sqlite3_busy_timeout(db->sq, 10000); /* somebody else may look at the file for a while */
    if (locks)
        cp_log(CP_LOG_WARN, "registry.lock",
               "a former server that hangs still locks the database; opened without locks", CP_KVZ("path", path));
    return cp_db_exec(db, settings, err);
}

static void close_db(cp_db *db, bool keep_wal) {
    for (int i = 0; i < CP_SQL_COUNT; i++) sqlite3_finalize(db->stmts[i]);
    if (db->sq) sqlite3_db_config(db->sq, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep_wal, NULL);
    sqlite3_close(db->sq);
    *db = (cp_db){0};
}

void cp_db_close(cp_db *db) { close_db(db, false); }
void cp_db_abandon(cp_db *db) { close_db(db, true); }

int cp_db_newest(void) { return (int)CP_COUNT(migrations); }

int cp_db_version(cp_db *db, int *out, cp_err *err) {
    sqlite3_stmt *st = NULL;
    int rc = -1;
    if (sqlite3_prepare_v2(db->sq, "PRAGMA user_version", -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW) {
        *out = sqlite3_column_int(st, 0);
        rc = 0;
    } else {
        cp_db_fail(db, "schema version", err);
    }
    sqlite3_finalize(st);
    return rc;
}

static int migrate_one(cp_db *db, int number, cp_err *err) {
    char version[48];
    snprintf(version, sizeof version, "PRAGMA user_version=%d; COMMIT", number + 1);
    if (cp_db_exec(db, "BEGIN IMMEDIATE", err) < 0) return -1;
    if (cp_db_exec(db, migrations[number].sql, err) == 0 && cp_db_exec(db, version, err) == 0) return 0;
    cp_wrap(err, "migration %s", migrations[number].name);
    sqlite3_exec(db->sq, "ROLLBACK", NULL, NULL, NULL);
    return -1;
}

int cp_db_migrate(cp_db *db, cp_err *err) {
    int have = 0, want = cp_db_newest();
    if (cp_db_version(db, &have, err) < 0) return -1;
    if (have > want)
        return cp_fail(err, CP_E_NOT_SUPPORTED,
                       "registry: the database has schema %d, this program knows %d: it was written by a newer one",
                       have, want);
    db->fresh = have == 0;
    for (; have < want; have++)
        if (migrate_one(db, have, err) < 0) return -1;
    return 0;
}

sqlite3_stmt *cp_db_stmt(cp_db *db, cp_sql_id id, cp_err *err) {
    if (!db->stmts[id] &&
        sqlite3_prepare_v3(db->sq, statements[id], -1, SQLITE_PREPARE_PERSISTENT, &db->stmts[id], NULL) != SQLITE_OK) {
        cp_db_fail(db, "prepare", err);
        return NULL;
    }
    sqlite3_reset(db->stmts[id]);
    sqlite3_clear_bindings(db->stmts[id]);
    return db->stmts[id];
}

int cp_db_run(cp_db *db, sqlite3_stmt *st, cp_err *err) {
    int rc = sqlite3_step(st) == SQLITE_DONE ? 0 : cp_db_fail(db, "write", err);
    sqlite3_reset(st);
    return rc;
}
