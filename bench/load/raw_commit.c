/* SQLite transactions of one row each, with the settings of the registry (WAL, synchronous NORMAL), in a new database
 * at --file: the raw limit for what must be recorded before it is done. */
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "load/load.h"
#include "load/raw.h"

static void run(sqlite3 *db, const char *sql) {
    char *message = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK) die(message ? message : "sqlite");
}

int raw_commit(void) {
    sqlite3 *db;
    sqlite3_stmt *insert;
    unlink(opt.file);
    if (sqlite3_open(opt.file, &db) != SQLITE_OK) die("cannot open the database");
    run(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=256;"
            "CREATE TABLE t(id INTEGER PRIMARY KEY, command TEXT, at INTEGER)");
    if (sqlite3_prepare_v2(db, "INSERT INTO t(command, at) VALUES('true', ?)", -1, &insert, NULL) != SQLITE_OK)
        die("cannot prepare");
    window_open();
    for (uint64_t now = cp_now_ns(), began; now < win.end; window_note(began, now)) {
        began = now;
        sqlite3_bind_int64(insert, 1, (sqlite3_int64)now);
        if (sqlite3_step(insert) != SQLITE_DONE || sqlite3_reset(insert) != SQLITE_OK) die("cannot insert");
        now = cp_now_ns();
    }
    sqlite3_finalize(insert);
    sqlite3_close(db);
    window_report("commit", "");
    return 0;
}
