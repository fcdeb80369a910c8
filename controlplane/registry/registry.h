#pragma once
/* The registry: SQLite in WAL mode behind one writer thread with group commit. The only place with SQL.
 *
 * Writes are queued from the loop thread and committed in order; a done callback (on the loop) says that the row is on
 * disk. What the disk does not take waits, and is written when it does: an event, what is in one transaction with an
 * event, and what has no done callback. Only a row alone with a done callback fails at once. Reads happen at start-up
 * only, before the loop runs: the living truth is in the services. Environment values and file bodies are never stored.
 */
#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"

typedef struct cp_registry cp_registry;

enum { CP_EXEC_ID_MAX = 128, CP_PROCESS_ID_MAX = 255 };

typedef enum { CP_ROW_BUFFERED, CP_ROW_STREAM, CP_ROW_PROCESS } cp_row_kind;

/* One execution: a buffered call with an id, a stream, or a background process. Strings are borrowed; NULL = absent. */
typedef struct cp_exec_row {
    const char *id;         /* execution id, primary key */
    const char *process_id; /* NULL unless it is listed as a process */
    cp_row_kind kind;
    const char *session;        /* NULL: sessionless */
    const char *command;        /* shell text or the joined argv, or the head of a long one */
    uint64_t command_length;    /* of the whole */
    uint8_t command_sha256[32]; /* of the whole, where `command` is its head */
    const char *cwd;
    uint8_t fingerprint[32]; /* SHA-256 of the request: the same id with another request is a conflict */
    const char *state;       /* "intent" | "running" | "ended" */
    int64_t pid;             /* 0 unknown */
    uint64_t pid_start;
    int64_t started_ms, ended_ms; /* wall clock; 0 not yet */
    const char *outcome;          /* see services/exec.h */
    int exit_code;                /* -1 none */
    int signal;
    uint64_t total[2], dropped[2]; /* bytes of stdout, stderr */
    uint64_t max_rss, cpu_us;
    const char *error; /* why it could not start */
    int error_errno;
    bool stopped_by_us;
    bool timed_out;
    bool truncated[2];
    uint64_t timeout_ms; /* 0: none */
    uint64_t max_output; /* of the result, per stream; 0: not known */
} cp_exec_row;

typedef struct cp_session_row {
    const char *id;
    const char *cwd;
    const char *state; /* "live" | "ended" */
    int64_t created_ms, ended_ms;
    int64_t pid;
    uint64_t pid_start;
} cp_session_row;

/* One event (services/events.h). */
typedef struct cp_event_row {
    uint64_t id;
    const char *type;
    int64_t at_ms; /* wall clock */
    const char *process_id, *exec_id, *session;
    const char *outcome, *stream;
    int64_t pid;   /* 0: none */
    bool has_exit; /* exit_code means something */
    int exit_code;
    int signal;     /* 0: none */
    uint64_t bytes; /* 0: none */
} cp_event_row;

enum { CP_REGISTRY_WAITING = 10000 }; /* transactions that wait for the disk; beyond, the oldest fails */

/* Completion of a write. Embed in the owner; called on the loop; `failed`, and err says why, when it never will be
 * committed. */
typedef struct cp_reg_done {
    cp_task task;
    struct cp_reg_done *next;
    bool failed;
    cp_err err;
    void (*fn)(struct cp_reg_done *d);
} cp_reg_done;

/* Opens or creates DIR/registry.db, migrates it (schema/sql/NNN_*.sql, numbered), starts the writer thread. A database
 * of a newer schema is refused, and so is one that somebody else holds locked. One that is damaged, or is no file, is
 * moved aside (registry.db.damaged-<time>, at most CP_ASIDE_KEPT of them), logged, and made anew with the rows that can
 * still be read. Where nothing can be written (no room, no permission) the registry opens all the same, not healthy:
 * what can be read is there, and what is written waits for the disk.
 *
 * While it is open the same holds for what is found damaged, gone or replaced, within CHECK_MS also when nothing is
 * written: it is begun anew, and `renewed` asks for what is in memory. */
cp_registry *cp_registry_open(cp_loop *loop, const char *dir, cp_err *err);
/* renewed(arg) on the loop: rows may be missing from the database; put all that should be there. */
void cp_registry_on_renewed(cp_registry *r, void (*renewed)(void *arg), void *arg);
/* Commits what is queued, then closes. What the disk does not take now fails. */
void cp_registry_close(cp_registry *r);

/* Insert or replace. done may be NULL. Never blocks. */
void cp_registry_put_exec(cp_registry *r, const cp_exec_row *row, cp_reg_done *done);
void cp_registry_del_exec(cp_registry *r, const char *id);
void cp_registry_put_session(cp_registry *r, const cp_session_row *row, cp_reg_done *done);
void cp_registry_del_session(cp_registry *r, const char *id);

/* An id that exists fails. Events with an id below `before` go. */
void cp_registry_put_event(cp_registry *r, const cp_event_row *row, cp_reg_done *done);
void cp_registry_del_events(cp_registry *r, uint64_t before);
/* After a renewal: one that is there stays as it is. / The least id that an event of this database can have. */
void cp_registry_keep_event(cp_registry *r, const cp_event_row *row);
void cp_registry_first_event(cp_registry *r, uint64_t first);

/* What is queued between the two is one transaction: all of it is committed, or none. Loop thread; nests. */
void cp_registry_begin(cp_registry *r);
void cp_registry_end(cp_registry *r);

/* Start-up: each row in order of start, once, also when fn writes rows (these are applied afterwards; fn does not
 * flush); the row is borrowed for the call. */
int cp_registry_each_exec(cp_registry *r, void (*fn)(void *arg, const cp_exec_row *row), void *arg, cp_err *err);
int cp_registry_each_session(cp_registry *r, void (*fn)(void *arg, const cp_session_row *row), void *arg, cp_err *err);
/* *first: the least id that an event of this database can have. */
int cp_registry_each_event(cp_registry *r, uint64_t *first, void (*fn)(void *arg, const cp_event_row *row), void *arg,
                           cp_err *err);
/* Waits until all that is queued or waits has been tried once more; -1 when not all was committed. Shutdown and tests.
 */
int cp_registry_flush(cp_registry *r, cp_err *err);
/* It was begun anew when it was opened, or could not be read: rows of former servers may be missing. */
bool cp_registry_lost(const cp_registry *r);
/* Can it still be written? For /readyz. Any thread. */
bool cp_registry_healthy(const cp_registry *r);
