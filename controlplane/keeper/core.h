#pragma once
/* Inside the keeper only: the one struct that its parts share.
 *
 * One thread, the parent of everybody's children, so nothing on it waits for one of them:
 *   - a spawn is begun here and goes on beside us (spawn.c), where entering a folder and execve may hang;
 *   - users and groups are looked up by the server, who asks;
 *   - a record for the server goes at once or is queued or owed (peer.c), a line of the log goes at once or is dropped;
 *   - /proc is read when a server has died and at the end, in time that grows with the number of processes.
 * The sweep at start-up waits, before there is anybody to serve.
 *
 * As process 1 it does not end for lack of memory either. cp_alloc and what uses it (cp_buf) belong to the start; what
 * is taken later may be refused: the spawn is then refused by name, and what has to be told is owed until it can be. */
#include <stddef.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/loop.h"
#include "base/mark.h"
#include "base/proc_stat.h"
#include "keeper/exit.h"
#include "keeper/keeper.h"
#include "keeper/spawn.h"
#include "keeper/wire_chan.h"

enum {
    BUCKETS = 1024,
    CHILDREN_MAX = 8192,
    /* Descriptor numbers that nothing held may have: the kernel gives out the lowest that is free, so these stay free
     * for what comes and goes (a look at /proc, a record from the server, the socket to the next one). Without them the
     * trees could not even be found to be ended. The pipes of spawns under way may take half of them. */
    RESERVE_FDS = 2 * CP_WIRE_FDS,
    QUEUE_PAUSE = 64,       /* records queued for the server: while there are more, its requests are not read */
    RECORDS_PER_ROUND = 16, /* read from the server before exits and timers have their turn */
    STARTS_MAX = 512,       /* spawns under way, with those that were given up and are not gone yet */
    STARTS_AT_ONCE = 16,    /* that are young: while there are so many, requests are not read */
    START_YOUNG_MS = 20,    /* young are those of less than that, and once more for each START_CROWD under way */
    START_CROWD = 64,
    START_LAST_MS = 500,
    SPAWN_LIMIT_MS = 10000,
    START_BYTES_MAX = 64 << 20,  /* arguments and environments of all that are under way */
    START_BYTES_ONE = 6 << 20,   /* of one, pointers included: what the kernel takes at most (3/4 of 8 MiB) */
    START_BYTES_FRESH = 8 << 20, /* counts like STARTS_AT_ONCE */
    ADOPT_POLL_MS = 5,
    ADOPT_LIMIT_MS = 5000,
    DRAIN_LIMIT_MS = 10000,
    HANDOVER_LIMIT_MS = 5000,
    LIFE_LIMIT_MS = 500,   /* from the end of the server's threads to its exit: longer, and one of them hangs */
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
    uint32_t generation;    /* of the server that asked for it */
    bool told;              /* the present server knows it: it spawned it, or HELD has been sent */
    bool acked;             /* its end is known already, or nobody wants to know it: forgotten when it comes */
    uint8_t owes;           /* OWES_…: what the present server is still to be told, in this order */
    uint8_t step;           /* of OWES_REFUSED */
    int sys;                /* of OWES_REFUSED */
    struct starting *start; /* under way to its program */
    bool adopted;           /* its group is not its own */
    bool exited;            /* then it is not in by_pid: the number may be somebody else's by now */
    uint64_t adopt_by;      /* not ours yet: the deadline (cp_now_ms); 0: ours */
    cp_exit exit;
} child;
enum { OWES_REFUSED = 1, OWES_SPAWNED = 2, OWES_EXITED = 4 };
LIST_HEAD(child_list, child);
TAILQ_HEAD(child_queue, child);

typedef struct books {
    struct child_list by_tag[BUCKETS], by_pid[BUCKETS], by_key[BUCKETS], by_mark[BUCKETS];
    struct child_queue all;
    child *telling; /* handover: the next one the present server has to hear of */
    unsigned count, adopting;
} books;

/* A spawn under way, and the memory that it runs on. */
typedef struct keeper keeper;
typedef void start_done(keeper *k, int sys, uint8_t step); /* sys 0: it is its program */
typedef struct starting {
    TAILQ_ENTRY(starting) link; /* by age */
    keeper *keeper;
    spawn_job w;
    cp_io io;
    uint64_t at;      /* cp_now_ms of its beginning */
    child *child;     /* for the server; NULL: our own, or what had to be told has been told */
    start_done *done; /* for our own */
    bool given_up;
    size_t bytes; /* that it counts for */
    void *map;    /* of the memfd, map_size bytes */
    size_t map_size;
    gid_t *groups;
    char **block;                      /* scratch, argv, NULL, env, NULL */
    char *text;                        /* cwd, then what came in the record */
    _Alignas(max_align_t) char room[]; /* these three */
} starting;
TAILQ_HEAD(start_queue, starting);

typedef enum { ATTACHED, DOWN, STARTING, UP, LEAVING, DRAINING, ENDING, KILLING, OVER, STATES } keeper_state;
typedef enum { EV_READY, EV_FAILED, EV_EXIT, EV_EOF, EV_TIMER, EV_STOP, EV_HUP, EV_EMPTY, EVENTS } keeper_event;

struct keeper {
    const cp_keeper_opts *opts;
    cp_loop *loop;
    spawner spawner;
    books books;
    unsigned children_max, starts_max, spawn_limit_ms, kill_limit_ms;
    uint64_t mark;         /* its number: what the marks of all its spawns share; 0: none can be set */
    uint64_t spawns;       /* that have a mark */
    int lock, folder_lock; /* of the state folder; -1: none */
    int sigfd;
    cp_io sig_io;

    cp_chan chan; /* to the present server */
    cp_io chan_io;
    bool paused;  /* its requests are not read: our queue to it is long */
    bool telling; /* HELD records are still to come */
    bool owing;   /* some child owes */
    cp_wire owed; /* an answer that did not find room; type 0: none. While there is one, requests are not read */
    cp_timer flush_timer, adopt_timer;

    struct start_queue starts;
    unsigned nstarts;
    size_t start_bytes;
    bool starts_busy; /* requests wait for them */
    cp_timer start_timer;

    keeper_state state;
    pid_t server, cmd;
    int listener;  /* that the server listens on; -1: none */
    cp_io life_io; /* life.c */
    cp_timer life_timer;
    int server_status; /* wait status of the last one */
    uint32_t generation;
    uint16_t port;
    bool announced;         /* the first start is behind us */
    bool hup;               /* came while the server was starting */
    bool stopping, hurried; /* TERM has come; has come again */
    bool server_killed;     /* while draining */
    unsigned backoff;
    uint64_t ready_at, kill_until;
    cp_timer timer; /* EV_TIMER of the present state */
    int exit_status;
};

/* books.c */
void books_init(books *b);
void books_free(books *b);
/* A child in the books, indexed by tag, mark and key; key may be empty. Its pid is set by books_set_pid. NULL: there is
 * no memory for it. */
child *books_add(books *b, uint64_t tag, const cp_mark *mark, cp_str key);
void books_set_pid(books *b, child *c, pid_t pid);
void books_no_pid(books *b, child *c); /* there is none any more: its end is nobody's business */
/* The end of it interests nobody: what is held is closed, its key is free. It dies with its server. */
void books_disown(books *b, child *c);
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
/* The server has died: what it acknowledged and closed before counts, what it asked for does not. */
void peer_last_words(keeper *k);
void peer_close(keeper *k);
void peer_watch(keeper *k); /* what holds the reading of requests back may have changed */
/* An order. Without room for it, it is lost: the deadline of the state that it begins then ends the server. */
void peer_send(keeper *k, const cp_wire *m);
/* The one answer to the request being read. */
void peer_answer(keeper *k, const cp_wire *m);
void peer_refuse(keeper *k, uint64_t tag, int sys, uint8_t step);
/* Of a child in the books: at once, or as soon as there is room. Refused, or ended and nobody's, it is removed: c may
 * be gone then. */
void peer_tell_spawned(keeper *k, child *c);
void peer_tell_refused(keeper *k, child *c, int sys, uint8_t step);
void peer_tell_exit(keeper *k, child *c);

/* request.c: what the server asks for; fds are borrowed, what is kept is taken out (-1). false: it breaks the protocol.
 */
bool request_handle(keeper *k, const cp_wire *m, int *fds);

/* Spawns for the keeper itself (server, CMD), with its environment: the pid, and later done; or -1 with errno and the
 * step, and done does not come. */
pid_t spawn_own(keeper *k, const spawn_spec *spec, const char *const *argv, start_done *done, int *sys, uint8_t *step);

/* start.c: spawns under way */
/* Room for that many groups, strings, and bytes of text, each set. NULL: there is no memory, or too much is under way.
 */
starting *start_new(keeper *k, size_t groups, size_t strings, size_t text);
/* It keeps so much more from being free. false: that is too much. */
bool start_weigh(keeper *k, starting *st, size_t bytes);
void start_free(keeper *k, starting *st); /* of one that has not begun, or is over */
/* Begins it; spec, child or done are filled in. false: st->w says why (sys, step), and st is still the caller's. */
bool start_begin(keeper *k, starting *st);
/* A process has been reaped: if it was on its way to its program, then how that went is told now. */
void start_reaped(keeper *k, pid_t pid);
bool start_busy(keeper *k); /* enough are on their way for now */
/* The end has come: they get START_LAST_MS at most, so that the server has its answers and can go. */
void starts_hurry(keeper *k);
void starts_close(keeper *k);

/* life.c */
/* Watches the read end of the server's life line; takes fd. */
void life_watch(keeper *k, int fd);
void life_forget(keeper *k);
/* The socket that the server listens on; takes fd, which goes to the next server. */
void listener_keep(keeper *k, int fd);
void listener_end(keeper *k); /* nobody is let in any more, whoever has it */

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
/* All threads of the server have been ended but one that hangs in the kernel: it goes on without that one. */
void supervise_left(keeper *k);
void start_server(keeper *k);

/* proc.c: /proc */
typedef struct proc {
    pid_t pid;
    cp_proc_stat st;
    bool chosen;
} proc;
typedef struct proc_table { /* one reading of /proc, by pid */
    proc *v;
    size_t n, cap;
    bool short_of_memory; /* or of descriptors: some are missing */
} proc_table;
void proc_table_read(proc_table *t);
void proc_table_free(proc_table *t);
#define autotable __attribute__((cleanup(proc_table_free)))
proc *proc_find(const proc_table *t, pid_t pid); /* NULL: not there */
void proc_signal(const proc *p, int sig);        /* only if it is still the same process */
/* Signals all descendants of this process (their ancestry as of one reading of /proc). false: some were not found. */
bool proc_kill_descendants(int sig);
/* Kills every process that has a mark of the keeper with this number, and its kin, and waits until they are gone.
 * Returns how many. */
unsigned proc_sweep_mark(uint64_t number);

/* state.c: the state folder. -1: another keeper uses it, or it cannot be written. */
int state_lock(keeper *k, cp_err *err);
