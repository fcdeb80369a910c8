#pragma once
/* Inside of the sessions: what session.c, session_shell.c, session_job.c and the like share. Nobody else includes
 * this. */
#include <pthread.h>

#include "base/budget.h"
#include "services/exec_impl.h"
#include "services/session.h"
#include "services/session_script.h"

enum {
    CP_SESSION_QUEUE = 10000,    /* commands that wait in one session */
    CP_SESSION_ID_MAX = 200,     /* the keeper's key holds it */
    CP_SESSION_BREAK_MS = 10,    /* between two interrupts of a busy shell */
    CP_SESSION_REPLACE_MS = 300, /* then it is replaced */
    CP_SESSION_REFRESH_MS = 20,  /* idle for so long: it tells what it exports */
    CP_SESSION_POLL_FIRST_MS = 100,
    CP_SESSION_POLL_MS = 500,
    CP_SESSION_PID_MS = 5000,       /* a subshell that has not reported by then never will */
    CP_SESSION_RECORD_KEEP = 65536, /* a record file that grew beyond is cut */
    CP_SESSION_EXPORTS_MAX = 4 << 20,
    SESSION_TOKEN = 12, /* hexadecimal digits */
};

struct cp_session;

/* A pair of named FIFOs, o<n> and e<n>, in the session's folder. It may be used again only when nobody holds either
 * end: `probe` are read ends that were open together with the writers of the last use, so a hang-up shows. */
struct session_pair {
    struct session_pair *next;
    unsigned n;
    int probe[2];
    bool quiet; /* the last writer has gone */
};

/* A foreground command that the next server can go on with (session_depot.c). */
enum { SESSION_DEPOSIT_FDS = 6, SESSION_DEPOT_MAX = 8, SESSION_DEPOSIT_ID = 132 };
enum { SESSION_IN_READ = 1 << 4, SESSION_IN_KEEP = 1 << 5 }; /* by their place */
enum { SESSION_REPORTS = -2 }; /* as status: no command, but the report FIFO that came in the place of the held one */
struct session_deposit {
    uint64_t seq, begin_ticks;
    int32_t last_pid, status; /* status: as reported; -1: it is at work; SESSION_REPORTS */
    uint32_t pair;
    uint16_t temp_cwd, interruptible;
    char id[SESSION_DEPOSIT_ID];  /* of the execution */
    int fds[SESSION_DEPOSIT_FDS]; /* read ends and placeholders of the output, both of the input; -1 */
};

typedef enum {
    JOB_QUEUED,
    JOB_TURN /* the session's current */,
    JOB_DETACHED /* on its own, or over */
} session_job_state;
typedef enum {
    JOB_FOREGROUND,
    JOB_BACKGROUND,
    JOB_SYNC /* ours: answered when the shell is ready */,
    JOB_EXPORTS
} session_job_kind;

struct session_job {
    cp_services *svc;
    cp_exec *exec;                   /* NULL: ours, or exec.c has let go of it */
    struct cp_session *s;            /* NULL once detached */
    struct session_job *prev, *next; /* in the queue of s */
    session_job_state state;
    session_job_kind kind;
    uint64_t seq;
    bool temp_cwd;          /* the command runs in a folder of its own: where the shell stands does not change */
    bool interruptible;     /* the shell can be made to leave it */
    bool deposited;         /* in the depot */
    bool inherited;         /* begun by a former server */
    bool has_pid, answered; /* background: "p" and "d" have come */
    bool failed;            /* background: exec.c has been told */
    bool unsure;            /* the folder was not whole in this turn: what was reported may be lost */
    uint64_t answered_ms;
    uint64_t begin_ticks; /* what started before, by start time and then pid, is not this command's */
    pid_t last_pid;
    struct session_pair *pair;
    int read_end[2];       /* until attached */
    int keep[2];           /* write ends of ours: without them a reader would see the end before the shell has opened */
    int in_read, in_keep;  /* likewise for stdin; in_keep until the shell has opened it */
    unsigned to_release;   /* of these, what the depot still has for want of descriptors to take it out */
    int go;                /* background: write end of the FIFO that it waits on */
    cp_exec_child kid;     /* background */
    bool booked;           /* the keeper's client knows `kid`: it must stay */
    bool adopted, started; /* the keeper has it; it has had its go-ahead */
};

typedef enum { SHELL_NONE, SHELL_SPAWNING, SHELL_READY, SHELL_DYING } session_shell_state;

struct cp_session {
    cp_services *svc;
    char *id;
    char token[SESSION_TOKEN + 1]; /* its folder */
    struct cp_session *prev, *next, *hash_next;
    bool listed;
    bool announced; /* session.created has been recorded, with its row */
    int64_t created_wall;

    /* given at creation */
    char *start_cwd;
    char **env; /* whole, NULL-terminated */
    cp_charge env_charge;
    uint64_t command_timeout_ms;

    /* the folder */
    char *path;
    int dir, record, status;
    uint64_t reports_seq; /* of the report FIFO in the depot; 0: the held one is used */
    size_t record_size;
    const char *record_dir; /* where the shell finds it; NULL: it is c in the folder */
    char record_name[32];
    struct session_pair *pairs;
    unsigned pair_next, pair_first; /* those below are of a former server */
    int stale[8];                   /* ends of FIFOs that the shell of a former server may wait to open */
    size_t nstale;

    /* the shell */
    session_shell_state shell;
    cp_child child;
    uint64_t mark; /* the spawn in the marks of all its shells, one after the other; 0: they have none */
    int script;    /* write end of its program */
    int depot;     /* -1: none could be made */
    const struct session_held *held; /* while it is taken over */
    char *shell_cwd;                 /* where this one is started */
    unsigned cwd_try;
    cp_io status_io;
    cp_buf inbox;
    int last_status;
    bool broken; /* killed by us because it reads its program but does not run it */

    /* commands */
    struct session_job *head, *tail, *current;
    size_t waiting;
    uint64_t seq;
    cp_deferred more; /* the next turn, after one that could not begin */
    cp_timer poll;
    unsigned silent_polls;

    /* a busy shell */
    cp_timer unwedge;
    uint64_t unwedge_since;
    bool replacing;
    int exports_fd; /* FIFO x; -1 until needed */
    cp_io exports_io;
    cp_script_dump exports_new; /* being received */
    cp_buf exports;             /* the last whole dump */
    cp_charge exports_charge;   /* for both */
    bool exports_fresh;         /* nothing has run since it was asked for */
    cp_timer refresh;

    char *cwd; /* as of the last completed command; under cp_sessions.lock */

    /* creation and deletion */
    cp_session_done *on_created, *on_deleted;
    void *created_arg, *deleted_arg;
    cp_err create_err;
    bool deleted, keep;
    cp_deferred later;
};

struct session_held {
    struct session_held *next;
    cp_held h;
    char *key;
    struct session_deposit v[SESSION_DEPOT_MAX];
    size_t n;
};

struct cp_sessions {
    pthread_mutex_t lock; /* the table and each session's cwd, for cp_session_cwd: other threads only read */
    struct cp_session **table;
    size_t mask, count;
    struct cp_session *first, *last;
    struct cp_session *gone; /* deleted, their shell has not ended yet; by next */
    char *base;              /* the folder of the folders */
    int loadavg;
    bool set_user;
    uid_t uid;
    gid_t gid;
    const gid_t *groups; /* live as long as the services */
    size_t ngroups;
    struct session_held *held;
    bool held_cut; /* there was no room for all of what they hold */
};

/* session.c */
struct cp_session *session_find(cp_services *svc, cp_str id);
struct cp_session *session_implicit(cp_exec *e, cp_err *err);
void session_store(struct cp_session *s, const char *state);
void session_set_cwd(struct cp_session *s, const char *cwd);
void session_created(struct cp_session *s, const cp_err *err); /* tells on_created, deferred */
void session_gone(struct cp_session *s);                       /* a deleted one whose shell has ended: done, free */

/* session_folder.c */
int session_base_make(struct cp_sessions *t, cp_err *err); /* the folder of the folders, where it is not there */
int session_folder_open(struct cp_session *s, bool existing, cp_err *err);
/* What the shell goes by is there under its name. 1: something was not, and has been made (again); 0; -1: it cannot. */
int session_folder_mend(struct cp_session *s, cp_err *err);
int session_folder_fail(struct cp_session *s, cp_err *err); /* -1, by errno */
void session_folder_close(struct cp_session *s, bool remove);
/* What we have made in a folder of ours, and the folder if that is empty then. A link is not followed. Any thread. */
void session_folder_remove(const char *path);
/* The folders below `base` that no session has, by their names: others are not ours. */
void session_folders_sweep(const struct cp_sessions *t, const char *base);
void session_name_clear(struct cp_session *s, const char *name);
int session_fifo(struct cp_session *s, const char *name, int flags,
                 cp_err *err); /* makes it if needed, opens; fd or -1 */

/* session_fifo.c */
void session_folder_drain(struct cp_session *s); /* of a former server */
void session_folder_drained(struct cp_session *s);
void session_stale_close(struct cp_session *s);
int session_pair_take(struct cp_session *s, struct session_job *j, cp_err *err);
/* Did all that was written go elsewhere, or was the command, which ended with this status, perhaps not even begun? */
bool session_pair_missed(struct cp_session *s, const struct session_job *j, int status);
bool session_input_lost(struct cp_session *s,
                        const struct session_job *j);                 /* nobody can open it by its name any more */
void session_pair_drop(struct cp_session *s, struct session_pair *p); /* unlinks: nobody else will open it */
void session_pair_free(struct session_pair *p); /* the names stay: the shell may be about to open them */
int session_stdin_open(struct cp_session *s, struct session_job *j, cp_err *err);
void session_job_close(struct session_job *j);

/* session_depot.c */
int session_depot_open(void);                                       /* fd or -1 */
bool session_depot_put(int depot, const struct session_deposit *d); /* copies its descriptors */
/* Takes out the one with this seq: of a command at work, or of its end. */
bool session_depot_drop(int depot, const struct session_deposit *which);
/* Lets go of some descriptors (1 << place) of a command at work; false: not for now. */
bool session_depot_release(int depot, uint64_t seq, unsigned which);
/* What is in it, oldest first; it stays there. The caller owns the descriptors. errno is EMFILE when there may be more
 * that could not be taken for want of them, else 0. */
size_t session_depot_list(int depot, struct session_deposit out[SESSION_DEPOT_MAX]);
void session_deposit_close(struct session_deposit *d);

/* session_inherit.c */
void session_deposit(struct cp_session *s, struct session_job *j);
void session_deposit_status(struct cp_session *s, struct session_job *j, int status);
void session_deposit_reports(struct cp_session *s);                            /* when they have moved */
bool session_inherit_reports(struct cp_session *s, struct session_held *held); /* they had moved */
void session_inherit(struct cp_session *s, struct session_held *held); /* goes on with what the former server left */

/* session_shell.c */
void session_shell_start(struct cp_session *s);
void session_shell_attach(struct cp_session *s, const cp_held *h); /* of a former server */
void session_shell_kill(struct cp_session *s);
void session_kill_all(struct cp_session *s); /* all that its shells, also former ones, have ever started */
void session_shell_forget(struct cp_session *s);
int session_type(struct cp_session *s, cp_str text);
int session_record(struct cp_session *s, cp_str text, cp_err *err);
void session_reports_move(struct cp_session *s, int fd); /* takes fd: where they come from now */
bool session_exports_open(struct cp_session *s);
void session_exports_close(struct cp_session *s);
void session_exports_refresh(struct cp_session *s); /* asks for them when the shell stays idle */
/* The command at turn is being killed: the shell leaves it when what it waits for has ended, or is replaced at once. */
void session_interrupt(struct cp_session *s, bool interruptible);
void session_unwedge(
    struct cp_session *s); /* it waits for nothing and still does not report: interrupted until it does */
void session_record_trim(struct cp_session *s); /* the shell has read it: a long one is not kept */
void session_watch_turn(struct cp_session *s);  /* starts the check that a command is answered at all */

/* session_job.c */
void session_pump(struct cp_session *s);
void session_report(struct cp_session *s, const cp_report *r);
void session_shell_ended(struct cp_session *s, const cp_exit *x);
void session_abandon(struct cp_session *s); /* without a word: the services are being closed */
void session_fail_waiting(struct cp_session *s, const cp_err *err);
struct session_job *session_job_new(struct cp_session *s, session_job_kind kind); /* exec NULL: one of our own */
void session_job_unref(struct session_job *j);
void session_job_leave(struct session_job *j);  /* the queue that it waits in */
void session_job_settle(struct session_job *j); /* ends its turn when nothing is awaited any more */
cp_mark session_mark_of(const struct session_job *j);
void session_job_push(struct cp_session *s, struct session_job *j, bool front);
void session_turn_over(struct cp_session *s);
void session_release(struct session_job *j, unsigned which); /* of the command at turn, from the depot */
void session_unanswered(struct cp_session *s);               /* what is at turn will not be reported */
void session_unsure(struct cp_session *s);                   /* the folder was not whole while it was at turn */
void session_no_pid(struct cp_session *s); /* the background command at turn will not report its pid */

/* session_backend.c */
extern const cp_exec_backend session_backend;
/* From a snapshot, what belongs to the command at turn. */
void session_collect_owned(struct session_job *j, cp_tree *all, cp_tree *out);
