#pragma once
/* Process trees from /proc, and signals that cannot hit a stranger: a pid counts only with its start time, and signals
 * go through a pidfd opened before the start time is checked (the kernel may give the number to somebody else). Any
 * thread; blocks only on /proc. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/mark.h"

typedef struct cp_proc {
    pid_t pid, ppid, pgid, sid;
    char state;          /* R S D Z T … */
    uint64_t start_time; /* clock ticks since boot */
    uint64_t cpu_ticks, rss_bytes;
    bool mark_read; /* tree.c's */
    cp_mark mark;   /* use cp_proc_mark */
} cp_proc;

/* Reads /proc/pid/stat; false with errno: it does not exist (any more), or (cp_lack) cannot be looked at now. */
bool cp_proc_read(pid_t pid, cp_proc *out);

typedef struct cp_tree {
    cp_proc *v;
    size_t n, cap;
} cp_tree;
void cp_tree_free(cp_tree *t);
/* One snapshot of /proc. -1 with errno: a lack of descriptors or memory kept some from being read; *all holds the
 * others. */
int cp_tree_snapshot(cp_tree *all);
/* Adds to `out` from the snapshot: root (if pid and start time match, or the start time is 0: not known; pid 0: none),
 * the members of its process group and session, processes that carry `mark` (NULL or without a spawn: do not look), and
 * all their descendants. No duplicates; parents before children. */
void cp_tree_collect(cp_tree *out, cp_tree *all, pid_t root, uint64_t root_start, const cp_mark *mark);
/* The same of those that carry `mark` alone, except one process (0: none): it and what descends from it only count if
 * they do for another reason. */
void cp_tree_collect_marked(cp_tree *out, cp_tree *all, const cp_mark *mark, pid_t except, uint64_t except_start);
/* The mark of a process, read once for a snapshot: many kills ask for it in turn. */
const cp_mark *cp_proc_mark(cp_proc *p);
void cp_tree_add(cp_tree *t, const cp_proc *p);
bool cp_tree_has(const cp_tree *t, pid_t pid);
/* pidfd_send_signal after checking the start time, where it is known. 0, or -1 with errno (ESRCH when gone or somebody
 * else). */
int cp_proc_signal(const cp_proc *p, int sig);
/* Is it there and not a zombie? Where a lack keeps it from being looked at: is there any such process? */
bool cp_proc_alive(const cp_proc *p);
