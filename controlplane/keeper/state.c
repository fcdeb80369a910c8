/* The state folder belongs to one keeper at a time. A lock on the folder says so, and one on keeper.lock, which keepers
 * before this one looked at alone; the kernel drops them when their holder ends, however that happens. Somebody may
 * remove that file under a keeper that lives, and some file systems lock no folders: so keeper.mark counts as well,
 * which names the keeper, by its pid and when it was started. It also tells the next one which processes a keeper that
 * was killed has left behind. What stands in the place of either file and is none of ours is moved aside, never opened.
 */
#include "keeper/core.h"

#include "base/aside.h"
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
    int pid; /* 0: not known */
    uint64_t start_time, mark;
};

struct names {
    const char *folder, *lock, *mark;
};

/* A plain file, opened without a wait and through no link. -1 with errno. */
static int open_plain(const char *path, int flags) {
    struct stat st;
    cp_autofd int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 || (fstat(fd, &st) == 0 && cp_is_plain(&st))) return cp_take_fd(&fd);
    return errno = ENOTSUP, -1;
}

static struct former read_former(const char *path) {
    struct former f = {0};
    char text[96];
    cp_autofd int fd = open_plain(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : cp_read_full(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%d %" SCNu64 " locks:%" SCNx64, &f.pid, &f.start_time, &f.mark) != 3) return (struct former){0};
    return f;
}

/* The number alone may be somebody else's by now: ours, for one, in a container that has been started again. */
static bool lives(const struct former *f) {
    cp_proc_stat st;
    return f->pid > 0 && f->pid != getpid() && cp_proc_stat_read(f->pid, &st) && st.start_time == f->start_time &&
           st.state != 'Z' && st.state != 'X';
}

static int in_use(const struct names *n, cp_err *err) {
    struct former f = read_former(n->mark);
    if (!lives(&f)) return cp_fail(err, CP_E_RESOURCE_BUSY, "another conflux uses the state folder %s", n->folder);
    return cp_fail(err, CP_E_RESOURCE_BUSY, "another conflux (pid %d) uses the state folder %s", f.pid, n->folder);
}

static int write_mark(const keeper *k, const char *path, cp_err *err) {
    char text[80];
    cp_proc_stat st = {0};
    (void)cp_proc_stat_read(getpid(), &st);
    int n = snprintf(text, sizeof text, "%d %" PRIu64 " locks:%" PRIx64 "\n", (int)getpid(), st.start_time, k->mark);
    cp_autofd int fd = cp_file_clear(path) < 0 ? -1 : open_plain(path, O_WRONLY | O_CREAT);
    if (fd < 0 || ftruncate(fd, 0) < 0 || cp_write_all(fd, text, (size_t)n) < 0)
        return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot write %s", path);
    return 0;
}

/* Held until the keeper ends. Where the file system locks no folders the file's lock has to do. */
static int lock_folder(keeper *k, const struct names *n, cp_err *err) {
    cp_autofd int fd = open(n->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot open %s", n->folder);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) return errno == EWOULDBLOCK ? in_use(n, err) : 0;
    k->folder_lock = cp_take_fd(&fd);
    return 0;
}

static int lock_file(keeper *k, const struct names *n, cp_err *err) {
    cp_autofd int fd = cp_file_clear(n->lock) < 0 ? -1 : open_plain(n->lock, O_RDWR | O_CREAT);
    if (fd < 0) return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot open %s", n->lock);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK) return in_use(n, err);
        return cp_fail_sys(err, CP_E_FILESYSTEM_ERROR, errno, "cannot lock %s", n->lock);
    }
    k->lock = cp_take_fd(&fd);
    return 0;
}

int state_lock(keeper *k, cp_err *err) {
    if (!k->opts->state_dir) return 0;
    cp_autobuf cp_buf lock = {0}, mark = {0};
    cp_buf_addf(&lock, "%s/keeper.lock", k->opts->state_dir);
    cp_buf_addf(&mark, "%s/keeper.mark", k->opts->state_dir);
    struct names n = {k->opts->state_dir, cp_buf_z(&lock), cp_buf_z(&mark)};
    struct former f = read_former(n.mark);
    if (lives(&f)) return in_use(&n, err);
    if (lock_folder(k, &n, err) < 0 || lock_file(k, &n, err) < 0) return -1;
    f = read_former(n.mark);
    unsigned swept = f.pid ? proc_sweep_mark(f.mark) : 0;
    if (swept)
        cp_log(CP_LOG_WARN, "keeper.swept", "processes that a keeper before this one left behind were killed",
               CP_KVI("former_pid", f.pid), CP_KVI("count", swept));
    return write_mark(k, n.mark, err);
}
