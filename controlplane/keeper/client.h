#pragma once
/* The server's end of the keeper socket. Loop thread only; nothing here blocks except cp_keeper_open.
 *
 * The keeper is the parent of every child and the only process that waits (design.md section 2). The server asks it to
 * spawn, hears of exits, and may have it hold duplicates of the parent-side descriptors of durable children, so that a
 * server that dies finds them again. Signals are not sent through the keeper: see services/tree.h. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mark.h"
#include "keeper/exit.h"

typedef struct cp_keeper cp_keeper;

/* One child. Embed in the owner; zero-initialise; must stay alive until on_exit, on_spawn with sys != 0, or
 * cp_keeper_forget. */
typedef struct cp_child {
    uint64_t tag;        /* keeper's name for it, unique over restarts; set by spawn, adopt and the handover */
    pid_t pid;           /* 0 until spawned */
    uint64_t start_time; /* field 22 of /proc/pid/stat: with pid, its identity */
    cp_mark mark;        /* what it and all that it starts carry; spawn 0: none could be set */
    /* Exactly once per spawn or adopt. sys 0: pid and start_time are set. Else the errno of the step that failed;
     * `step` names it ("execve", "chdir", "setuid", …); ETIMEDOUT: the step did not come back and was given up. The
     * child is out of the keeper's books then. */
    void (*on_spawn)(struct cp_child *c, int sys, const char *step);
    /* Exactly once after a successful spawn: the wait status, as soon as the keeper has reaped it. */
    void (*on_exit)(struct cp_child *c, const cp_exit *x);
    struct cp_child *hnext; /* client's table */
} cp_child;

enum { CP_SPAWN_FDS = 8 };

typedef struct cp_spawn {
    const char *const *argv; /* NULL-terminated; argv[0] is looked up on the PATH of env when it has no slash */
    const char *const *env;  /* NULL-terminated "NAME=value"; the child's whole environment */
    const char *cwd;         /* NULL: "/" */
    int fds[CP_SPAWN_FDS];   /* child's descriptors 0..7 (borrowed); -1: /dev/null for 0..2, closed above */
    int hold[3];      /* durable: the server's ends of stdin, stdout, stderr that the keeper keeps a duplicate of;
                         -1 none (borrowed) */
    const char *key;  /* durable: the owner's name for it, unique (≤ 255 bytes); NULL: dies with the server */
    bool own_session; /* setsid instead of a group of its own; a terminal on descriptor 0 becomes the
                         controlling one */
    bool set_user;    /* uid, gid and supplementary groups; nobody looks them up here */
    uid_t uid;
    gid_t gid;
    const gid_t *groups; /* at most 1024 */
    size_t ngroups;
    uint64_t mark; /* the mark.spawn of a former child in whose place this one comes; 0: one of its own */
} cp_spawn;

/* What a restarted server is told about a durable child. */
typedef struct cp_held {
    uint64_t tag;
    const char *key;
    pid_t pid;
    uint64_t start_time;
    cp_mark mark;
    bool exited;
    cp_exit exit;
    int fds[3]; /* duplicates, owned by the receiver; -1 none */
} cp_held;

typedef struct cp_keeper_events {
    void *arg;
    void (*on_held)(void *arg, const cp_held *h); /* during cp_keeper_open; see cp_keeper_claim */
    void (*on_drain)(void *arg);                  /* SIGTERM: stop accepting, finish, end the children, then exit */
    void (*on_handover)(void *arg);               /* SIGHUP: finish what is being written, then exit; children stay */
    void (*on_lost)(void *arg);                   /* the keeper is gone: kill all trees and exit */
} cp_keeper_events;

typedef struct cp_keeper_hello {
    uint32_t generation; /* 0 at the first start, then counts restarts */
    uint16_t port;       /* port of the former server, 0 at the first start */
    pid_t keeper_pid;
    int listener;  /* that the former server listened on; owner closes. -1: none */
    cp_buf config; /* what controlplane/config.c wrote; owner frees */
} cp_keeper_hello;

/* Takes fd (the SEQPACKET socket). Blocks until the keeper has said hello and handed over what it holds. */
cp_keeper *cp_keeper_open(cp_loop *loop, int fd, const cp_keeper_events *ev, cp_keeper_hello *hello, cp_err *err);
void cp_keeper_close(cp_keeper *k);
/* First thing in main, before anything is opened: takes fd, the end of a pipe, and gives it to a thread that has no
 * other descriptor. So the keeper sees the end of this process also when another thread hangs in the kernel, where not
 * even KILL ends it. false: the kernel gives a thread no descriptors of its own; then fd stays open in all. */
bool cp_life_begin(int fd);

/* Start-up is over: `port` is being listened on by `listener` (borrowed), which the next server will have as well.
 * / It failed: the keeper prints the reason and ends (first start). */
int cp_keeper_ready(cp_keeper *k, uint16_t port, int listener, cp_err *err);
int cp_keeper_failed(cp_keeper *k, const char *reason);

/* Queues a spawn; the outcome comes by c->on_spawn, never before this returns. -1: refused here (argv empty, too big,
 * 4096 records waiting, keeper lost) and no callback comes. The borrowed descriptors may be closed when this has
 * returned. */
int cp_keeper_spawn(cp_keeper *k, cp_child *c, const cp_spawn *s, cp_err *err);
/* Takes into the books a process that the keeper will adopt because its parent ended (a double-forked subshell that
 * still waits for its go-ahead): c->pid and c->mark are given; start_time is checked and set. on_spawn, then on_exit as
 * for spawn. */
int cp_keeper_adopt(cp_keeper *k, cp_child *c, const char *key, const int hold[3], cp_err *err);
/* Makes a held child from on_held the owner's: sets tag, pid, start_time, mark; on_exit comes if it has not exited yet.
 */
void cp_keeper_claim(cp_keeper *k, cp_child *c, const cp_held *h);

/* Closes the keeper's duplicate of hold[which], then calls done(c) (may be NULL); only after that may the server's own
 * copy be closed, else the child never meets its end of input. done may come after on_exit: an owner that frees c
 * before calls cp_keeper_forget. -1: keeper lost, done does not come. Never refused for a long queue: there are only as
 * many as there are children. */
int cp_keeper_close_hold(cp_keeper *k, cp_child *c, int which, void (*done)(cp_child *c));
/* The exit status of a durable child has been recorded, or nobody wants to know it: the keeper closes what it holds and
 * forgets it, when it has ended. Never refused for a long queue. */
void cp_keeper_ack(cp_keeper *k, cp_child *c);
/* No callback of c comes any more (its owner goes away), neither on_… nor done. A non-durable child lives on unless
 * killed. */
void cp_keeper_forget(cp_keeper *k, cp_child *c);
