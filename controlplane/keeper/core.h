#pragma once
/* Inside the keeper only: the one struct that its parts share. One thread; nothing here blocks except the sweep at
 * start-up (and a spawn, until its execve; and reading /proc, when a server has died and at the end). */
#include <sys/queue.h>
#include <sys/types.h>

#include "base/loop.h"
#include "base/mark.h"
#include "keeper/exit.h"
#include "keeper/keeper.h"
#include "keeper/spawn.h"
#include "keeper/wire_chan.h"

enum {
    BUCKETS = 1024,
    CHILDREN_MAX = 8192,
    QUEUE_PAUSE = 64,       /* records queued for the server: while there are more, its requests are not read */
    RECORDS_PER_ROUND = 16, /* read from the server before exits and timers have their turn */
    ADOPT_POLL_MS = 5,
    ADOPT_LIMIT_MS = 5000,
    DRAIN_LIMIT_MS = 10000,
    HANDOVER_LIMIT_MS = 5000,
    LEAVE_LIMIT_MS = 5000, /* the server closed its socket, or reported that it cannot start, and has not exited */
    GRACE_MS = 2000,
    KILL_POLL_MS = 50,
    KILL_LIMIT_MS = 5000,   /* what has survived KILL for that long sits in the kernel: leave it */
    START_LIMIT_MS = 30000, /* from the start of a server to its READY */
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 5000,
    HEALTHY_MS = 1000, /* it has served for so long: the next start is not delayed; starting costs 20 ms */
};

/* In the books from the spawn until its exit has been reported (durable: acknowledged). */
typedef struct child {
    LIST_ENTRY(child) by_tag, by_pid, by_key, by_mark;
    TAILQ_ENTRY(child) all;
    uint64_t tag;
    pid_t pid;
    uint64_t start_time;
    cp_mark mark; /* spawn 0: none could be set */
    char *key;    /* NULL: dies with its server */
    int hold[3];
    uint32_t generation; /* of the server that asked for it */
    bool told;           /* the present server knows it: it spawned it, or HELD has been sent */
    bool adopted;        /* its group is not its own */
    bool exited;         /* then it is not in by_pid: the number may be somebody else's by now */
    uint64_t adopt_by;   /* not ours yet: the deadline (cp_now_ms); 0: ours */
    cp_exit exit;
} child;
LIST_HEAD(child_list, child);
TAILQ_HEAD(child_queue, child);

typedef struct books {
    struct child_list by_tag[BUCKETS], by_pid[BUCKETS], by_key[BUCKETS], by_mark[BUCKETS];
    struct child_queue all;
    child *telling; /* handover: the next one the present server has to hear of */
    unsigned count, adopting;
} books;

typedef enum { ATTACHED, DOWN, STARTING, UP, LEAVING, DRAINING, ENDING, KILLING, OVER, STATES } keeper_state;
typedef enum { EV_READY, EV_FAILED, EV_EXIT, EV_EOF, EV_TIMER, EV_STOP, EV_HUP, EV_EMPTY, EVENTS } keeper_event;

typedef struct keeper {
    const cp_keeper_opts *opts;
    cp_loop *loop;
    spawner spawner;
    books books;
    unsigned children_max;
    uint64_t mark;   /* its number: what the marks of all its spawns share; 0: none can be set */
    uint64_t spawns; /* that have a mark */
    int lock;        /* of the state folder */
    int sigfd;
    cp_io sig_io;

    cp_chan chan; /* to the present server */
    cp_io chan_io;
    bool paused;  /* its requests are not read: our queue to it is long */
    bool telling; /* HELD records are still to come */
    cp_timer flush_timer, adopt_timer;

    keeper_state state;
    pid_t server, cmd;
    int server_status; /* wait status of the last one */
    uint32_t generation;
    uint16_t port;
    bool announced;         /* the first start is behind us */
    bool hup;               /* came while the server was starting */
    bool stopping, hurried; /* TERM has come; has come again */
    unsigned backoff;
    uint64_t ready_at, kill_until;
    cp_timer timer; /* EV_TIMER of the present state */
    int exit_status;
} keeper;

/* books.c */
void books_init(books *b);
void books_free(books *b);
/* A child in the books, indexed by tag, mark and key; key may be empty. Its pid is set by books_set_pid. */
child *books_add(books *b, uint64_t tag, const cp_mark *mark, cp_str key);
void books_set_pid(books *b, child *c, pid_t pid);
void books_exited(books *b, child *c, const cp_exit *x); /* takes it out of by_pid */
void books_remove(books *b, child *c);                   /* closes what is held, frees */
child *books_by_tag(books *b, uint64_t tag);
child *books_by_pid(books *b, pid_t pid);
child *books_by_key(books *b, cp_str key);
/* Whose a process with this mark is: an adopted command of a session before the session's shell. */
child *books_by_mark(books *b, const cp_mark *m);

/* mark.c */
/* Draws the keeper's number, and finds out whether marks can be set here: says so once when not. */
void mark_init(keeper *k);
uint64_t mark_next(keeper *k);                    /* of one more spawn; 0: none */
bool mark_is_of(uint64_t number, uint64_t spawn); /* of the keeper with this number; 0: nobody's */

/* peer.c: the socket to the server */
void peer_open(keeper *k, int fd); /* takes fd; says hello and begins the handover */
/* The server has died: what it acknowledged before counts, what it asked for does not. */
void peer_last_words(keeper *k);
void peer_close(keeper *k);
void peer_send(keeper *k, const cp_wire *m, const int *fds);
void peer_tell_exit(keeper *k, const child *c);
void peer_tell_spawned(keeper *k, const child *c);
void peer_refuse(keeper *k, uint64_t tag, int sys, uint8_t step);

/* request.c: what the server asks for; fds are borrowed, what is kept is taken out (-1). false: it breaks the protocol.
 */
bool request_handle(keeper *k, const cp_wire *m, int *fds);

/* Spawns for the keeper itself (server, CMD): env is the keeper's own. */
pid_t spawn_own(keeper *k, spawn_spec *spec, const char *const *argv, int *sys, uint8_t *step);

/* orphans.c */
/* The children of a server that is gone: those that are not durable get SIGKILL, and their trees. */
void orphans_kill(keeper *k);

/* adopt.c */
void adopt_begin(keeper *k, child *c, uint64_t expect_start);
void adopt_check(keeper *k);

/* reap.c */
void reap_children(keeper *k);

/* supervise.c */
void supervise(keeper *k, keeper_event ev);
void supervise_signal(keeper *k, int sig, bool from_terminal);
/* Is pid the server's or CMD's? Then it has been dealt with. */
bool supervise_reaped(keeper *k, pid_t pid, int status);
void start_server(keeper *k);

/* proc.c: /proc */
typedef struct proc_stat {
    char state;
    pid_t ppid, group, session;
    uint64_t start_time;
} proc_stat;
typedef struct proc {
    pid_t pid;
    proc_stat st;
    bool chosen;
} proc;
typedef struct proc_table { /* one reading of /proc, by pid */
    proc *v;
    size_t n;
} proc_table;
bool proc_read(pid_t pid, proc_stat *out);
bool proc_parse(const char *text, proc_stat *out); /* of /proc/pid/stat. Pure */
void proc_table_read(proc_table *t);
void proc_table_free(proc_table *t);
#define autotable __attribute__((cleanup(proc_table_free)))
proc *proc_find(const proc_table *t, pid_t pid); /* NULL: not there */
void proc_signal(const proc *p, int sig);        /* only if it is still the same process */
/* Signals all descendants of this process (their ancestry as of one reading of /proc). */
void proc_kill_descendants(int sig);
/* Kills every process that has a mark of the keeper with this number, and its kin, and waits until they are gone.
 * Returns how many. */
unsigned proc_sweep_mark(uint64_t number);

/* state.c: the state folder. -1: another keeper uses it, or it cannot be written. */
int state_lock(keeper *k, cp_err *err);
