#pragma once
/* Inside of the executions: what exec.c, exec_kill.c, exec_stdin.c and exec_store.c share. Nobody else includes this.
 */
#include "base/budget.h"
#include "services/exec_impl.h"

enum {
    CP_STDIN_QUEUE = 16 << 20, /* bytes that wait for a child to read them */
    CP_STDIN_ACKS = 16384,     /* receipts that wait with them */
    CP_HISTORY_PLAIN = 256,    /* ended buffered calls without an id of their own that are kept */
    CP_HISTORY_PLAIN_BYTES = 64 << 20,
};

struct cp_kill;

struct cp_exec_impl {
    cp_exec *self;
    cp_exec_job job;
    cp_charge job_charge; /* for its strings */
    bool argv_form;
    bool borrowed; /* a pool thread has the job */
    bool oneshot;  /* counted in cp_execs.oneshots */
    bool called;   /* counted in cp_execs.calls */
    const cp_exec_backend *backend;
    void *data;
    cp_exec_child *child;    /* a durable child: acknowledged once its end is on disk */
    bool recorded, reported; /* its end is on disk; the backend has told how it ended, maybe after a forced end */
    bool acked, released;

    bool listed;                 /* in the tables, which hold a reference */
    cp_exec *prev, *next;        /* all, in order of start */
    cp_exec *older, *newer;      /* in the history that it is in */
    uint64_t end_number;         /* the order of end over both */
    cp_exec *id_next, *pid_next; /* hash chains */

    struct cp_exec_watches {
        cp_link untold, begun, ended;
    } watches; /* by what they have been told of */
    cp_deferred tell;

    cp_timer timeout, drain;
    bool has_exit; /* the backend has reported, or will no longer be listened to */
    bool out_ended[2];
    cp_exit exit;
    cp_outcome why; /* what a kill makes of it */
    bool forced;    /* ended without the backend */
    uint64_t sent;  /* bit n - 1: signal n was sent by cp_exec_signal */
    struct cp_kill *kill;

    int in_fd;
    cp_io in_io;
    cp_buf in;
    cp_charge in_charge;
    size_t in_off;                        /* of what has been written */
    uint64_t in_fed;                      /* bytes that were ever put into `in` */
    cp_stdin_ack *in_acks, *in_acks_tail; /* in order; the tail only while there are some */
    size_t nin_acks;
    bool in_open, in_eof; /* more may come; the end has been asked for */
    bool in_closing;      /* the keeper is asked to close its copy */

    bool told_start, told_end; /* as events */
    uint64_t told_dropped[2];

    uint64_t text_bytes; /* of the file with its command's text; 0: there is none */
    bool row_due;        /* what the registry has of it is of a former kind */
    uint64_t log_bytes;  /* what the history counts for it: logs, and that file */
};

/* A row that somebody waits for. Freed by whoever is called back; holds a reference. */
struct cp_row_wait {
    cp_reg_done done;
    cp_exec *e;
};

/* A child that the keeper had when this server started, until cp_services_open. */
struct cp_held_child {
    struct cp_held_child *next;
    cp_held h;
    char *key;
};

/* Ended ones of a sort, in order of end. */
struct cp_exec_history {
    cp_exec *oldest, *newest;
    size_t n;
    uint64_t bytes; /* of their logs */
};

struct cp_execs {
    cp_services *svc;
    char *bash; /* its path */
    cp_exec **by_id, **by_pid;
    size_t mask;
    cp_exec *first, *last;
    struct cp_exec_history ended, ended_plain; /* with logs on disk; without (not durable) */
    uint64_t ends;                             /* so many have ended */
    size_t running;
    uint64_t running_bytes; /* logs of what runs, as of the last look */
    size_t oneshots;        /* running buffered calls without a session: what the pool serves */
    size_t calls;           /* buffered calls that have been handed to a backend and not ended */
    struct cp_exec_short *short_head, **short_tail; /* those that wait for descriptors: exec_short.c */
    size_t nshort;
    cp_timer short_timer;
    cp_timer age;
    struct cp_held_child *held;
    bool strange_logs;         /* there may be logs that no row names; each goes when an execution takes its name */
    struct cp_orphan *orphans; /* children of former servers that nobody wants, until they are gone */
    struct cp_kill *kills;     /* under way, also of executions that are not listed any more */
    cp_tree procs;             /* /proc as of procs_at, for kills of one round: see exec_kill.c */
    uint64_t procs_at;
    bool procs_part; /* for lack of descriptors or memory not all could be read */
    bool set_user;   /* config->child_user, resolved */
    uid_t uid;
    gid_t gid;
    char *user;
    gid_t *groups;
    size_t ngroups;
    void (*drained)(void *arg);
    void *drain_arg;
    uint64_t drain_until;
    cp_timer drain;
};

/* exec_start.c: to its backend, unless it has ended */
void cp_exec_dispatch(cp_exec *e);
/* exec_short.c: the same once there are descriptors for it, or fails it. admitted: the caller's caller has just looked;
 * where nothing is to be waited for it is tried all the same. */
void cp_exec_begin_with_room(cp_exec *e, bool admitted);
void cp_exec_short_close(cp_services *s);
/* exec.c */
void cp_exec_job_free(cp_exec *e); /* its strings, and what they are counted with */
cp_exec *cp_exec_make(cp_services *s, const char *id, cp_exec_kind kind);
void cp_exec_list(cp_exec *e);       /* into the tables */
void cp_exec_unlist(cp_exec *e);     /* out of them; may free e */
void cp_exec_finish_end(cp_exec *e); /* the one way to ENDED and FAILED */
void cp_exec_force_end(cp_exec *e);  /* ends it though the backend has not reported: the client is owed its reply */
void cp_exec_tell(cp_exec *e);

/* exec_start.c */
bool cp_exec_made_id(cp_str id); /* of the form that we give to those without one of the client's. Pure */
/* reopen: as this row has them; NULL: new ones. */
int cp_exec_outputs(cp_exec *e, const cp_exec_row *reopen, cp_err *err);
/* Name or uid to ids; blocks. *name is the account's name or NULL, owner frees. */
int cp_user_resolve(const char *user, uid_t *uid, gid_t *gid, char **name, cp_err *err);
/* The groups of the account (name NULL: none), gid among them; blocks. Owner frees. */
int cp_user_groups(const char *name, gid_t gid, gid_t **groups, size_t *n, cp_err *err);

/* exec_text.c */
#define CP_COMMAND_SUFFIX ".cmd"
/* Keeps what is to be kept of the text. sha256: of the text, or NULL. */
void cp_exec_text_set(cp_exec *e, cp_str text, const uint8_t *sha256);
/* Writes the job's text to its file, on a thread, and then goes on; or fails the execution. */
void cp_exec_text_save(cp_exec *e, void (*then)(cp_exec *e));
void cp_exec_text_remove(cp_exec *e); /* the file, if there is one */
/* Start-up, blocking: what a row says of it (the registry's, or one of a former kind with a long text in it), or its
 * file where there is no row; false: there is no such file. */
void cp_exec_text_of_row(cp_exec *e, const cp_exec_row *row);
bool cp_exec_text_load(cp_exec *e);

/* exec_events.c */
void cp_exec_publish(cp_exec *e); /* what has not been told; with the row that says so, in one transaction */
void cp_exec_publish_told(cp_exec *e, const cp_exec_row *row); /* what a former server has told */

/* exec_kill.c */
void cp_exec_kills_close(cp_services *s);
cp_tree *cp_exec_procs(cp_services *s); /* a snapshot, shared by all kills of this moment; valid until the next call */

/* exec_stdin.c */
void cp_exec_stdin_stop(cp_exec *e);

/* exec_adopt.c */
#define CP_EXEC_KINDS "bsp" /* by cp_exec_kind */
/* A child of a former server whose row is not there any more goes on as what its key says it is; NULL: it says nothing.
 * Listed; the caller resumes it. */
cp_exec *cp_exec_adopt(cp_services *s, const struct cp_held_child *h);
/* The same for the command that a session's shell is at. */
cp_exec *cp_exec_adopt_foreground(cp_services *s, const char *id, const char *session);
cp_str cp_exec_id_of_key(const char *key); /* "x:…" */

/* exec_store.c */
void cp_exec_put_all(cp_services *s); /* the rows of all durable ones, into a registry that has been begun anew */
/* done: NULL, or called on the loop with a struct cp_row_wait. */
void cp_exec_put_row(cp_exec *e, const char *state, void (*done)(cp_reg_done *));
void cp_exec_retain(cp_exec *e); /* an ended one enters the history, which may push others out */
void cp_exec_evict(cp_exec *e);  /* out of history, logs and registry */
void cp_exec_age_start(cp_services *s);
void cp_exec_orphans_close(cp_services *s);
int cp_exec_restore(cp_services *s, cp_err *err);
void cp_exec_lose(cp_exec *e); /* one of a former server that nothing is left of */
