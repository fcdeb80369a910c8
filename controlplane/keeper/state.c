/* The state folder belongs to one keeper at a time: a lock on keeper.lock says so (the kernel drops it when its holder
 * ends, however that happens), and keeper.mark tells the next one which processes a keeper that was killed has left
 * behind. */
#include "keeper/core.h"

#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

struct former {
    int pid;
    uint64_t mark;
};

static bool read_former(const char *path, struct former *f) {
    cp_autofree char *text = NULL;
    size_t n = 0;
    return cp_read_file(path, 4096, &text, &n) == 0 && sscanf(text, "%d %*u locks:%" SCNx64, &f->pid, &f->mark) == 2;
}

static int write_mark(const keeper *k, const char *path, cp_err *err) {
    char text[80];
    cp_proc_stat st = {0};
    (void)cp_proc_stat_read(getpid(), &st);
    int n = snprintf(text, sizeof text, "%d %" PRIu64 " locks:%" PRIx64 "\n", (int)getpid(), st.start_time, k->mark);
    cp_autofd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || cp_write_all(fd, text, (size_t)n) < 0)
        return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot write %s", path);
    return 0;
}

static int take_lock(keeper *k, const char *lock_path, const char *mark_path, cp_err *err) {
    cp_autofd int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot open %s", lock_path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        struct former f;
        if (errno != EWOULDBLOCK) return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot lock %s", lock_path);
        if (!read_former(mark_path, &f))
            return cp_fail(err, CP_E_RESOURCE_BUSY, "another conflux uses this state folder");
        return cp_fail(err, CP_E_RESOURCE_BUSY, "another conflux (pid %d) uses this state folder", f.pid);
    }
    k->lock = cp_take_fd(&fd);
    return 0;
}

int state_lock(keeper *k, cp_err *err) {
    if (!k->opts->state_dir) return 0;
    cp_autobuf cp_buf lock = {0}, mark = {0};
    cp_buf_addf(&lock, "%s/keeper.lock", k->opts->state_dir);
    cp_buf_addf(&mark, "%s/keeper.mark", k->opts->state_dir);
    if (take_lock(k, cp_buf_z(&lock), cp_buf_z(&mark), err) < 0) return -1;
    struct former f;
    unsigned swept = read_former(cp_buf_z(&mark), &f) ? proc_sweep_mark(f.mark) : 0;
    if (swept)
        cp_log(CP_LOG_WARN, "keeper.swept", "processes that a keeper before this one left behind were killed",
               CP_KVI("former_pid", f.pid), CP_KVI("count", swept));
    return write_mark(k, cp_buf_z(&mark), err);
}
