/* A folder goes up in archives of a few MiB, each of which may be sent again when the connection is lost, and its large
 * files as uploads of their own, which go on where they stopped. Memory stays bounded, whatever the folder holds. */
#include "cli/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/id.h"
#include "base/sha.h"
#include "services/archive.h"
#include "services/files_walk.h"
#include "services/tar.h"

enum { LARGE = 1024 * 1024, BATCH = 4 * 1024 * 1024 };

/* The same file to the same place has the same id: an upload that was interrupted is found again by it. */
static void upload_id(const cli *c, const struct stat *st, const char *remote, char out[129]) {
    cp_autobuf cp_buf text = {0};
    uint8_t digest[CP_SHA256_SIZE];
    char hex[2 * CP_SHA256_SIZE + 1];
    const char *session = cli_opt(c, CLI_OPT_session);
    cp_buf_addf(&text, "%llu %llu %lld %lld %ld %s %s", (unsigned long long)st->st_dev, (unsigned long long)st->st_ino,
                (long long)st->st_size, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec, session ? session : "",
                remote);
    cp_sha256_of(text.p, text.n, digest);
    cp_sha256_hex(digest, hex);
    snprintf(out, 129, "cp-%.40s", hex);
}

int cli_copy_file_up(cli *c, int fd, const struct stat *st, const char *shown, const char *remote, cli_progress *p) {
    char perm[8];
    cli_upload u = {.path = remote, .perm = perm, .fd = fd, .seekable = S_ISREG(st->st_mode), .progress = p};
    if (cli_check_utf8("the path", remote)) return CLI_FAILED;
    snprintf(perm, sizeof perm, "%04o", st->st_mode & 0777u);
    if (u.seekable) upload_id(c, st, remote, u.id);
    else cp_random_base36(u.id, 32);
    int rc = cli_upload_run(c, &u);
    if (!rc && u.seekable && u.offset != (uint64_t)st->st_size)
        return cli_fail("%s was changed while it was copied", shown);
    return rc;
}

typedef struct folder {
    cli *c;
    const char *local, *remote;
    cp_buf tar;
    cp_buf closed; /* folders that their owner cannot fill: mode and name, each with a NUL */
    cli_progress progress;
    int worst; /* what was left out */
} folder;

static int flush(folder *f) {
    cp_autobuf cp_buf path = {0};
    cli_autoanswer cli_answer a = {0};
    conflux_error err;
    cp_tar_end(&f->tar);
    cli_file_path(f->c, "/api/files/archive", f->remote, &path);
    conflux_request rq = {.method = "PUT",
                          .path = path.p,
                          .content_type = "application/x-tar",
                          .body = f->tar.p,
                          .body_len = f->tar.n,
                          .idempotent = 1};
    int rc = cli_try_again(f->c, &rq, &a, &err) == 0 ? CLI_OK : cli_report(f->c, &err);
    cp_buf_clear(&f->tar);
    return rc;
}

static int left_out(folder *f, const char *name, const char *why) {
    cli_warn("left out %s/%s: %s", f->local, name, why);
    f->worst = CLI_FAILED;
    return CLI_OK;
}

static cp_tar_entry header(const cp_walk_entry *e, char type, const struct stat *st) {
    return (cp_tar_entry){.type = type, .path = e->relative, .mode = st->st_mode & 0777, .mtime = st->st_mtim.tv_sec};
}

static int put_link(folder *f, const cp_walk_entry *e) {
    char target[CP_PATH_MAX];
    ssize_t n = readlinkat(e->dir, e->name, target, sizeof target - 1);
    if (n < 0) return left_out(f, e->relative, strerror(errno));
    target[n] = '\0';
    unsigned depth = 0;
    for (const char *p = e->relative; *p; p++) depth += *p == '/';
    if (!cp_unpack_link_inside(target, depth)) return left_out(f, e->relative, "the link leads out of the folder");
    cp_tar_entry t = header(e, CP_TAR_SYMLINK, &e->st);
    t.link = target;
    cp_tar_put(&f->tar, &t);
    return CLI_OK;
}

static int put_folder(folder *f, const cp_walk_entry *e) {
    cp_autobuf cp_buf name = {0};
    cp_buf_addf(&name, "%s/", e->relative);
    cp_tar_entry t = header(e, CP_TAR_DIR, &e->st);
    t.path = cp_buf_z(&name);
    if ((t.mode & 0700) != 0700) cp_buf_addf(&f->closed, "%04o%c%s%c", t.mode, 0, e->relative, 0);
    cp_tar_put(&f->tar, &t);
    return CLI_OK;
}

static int put_small(folder *f, const cp_walk_entry *e, int fd, const struct stat *st) {
    cp_tar_entry t = header(e, CP_TAR_FILE, st);
    size_t size = (size_t)st->st_size, before = f->tar.n;
    t.size = size;
    cp_tar_put(&f->tar, &t);
    cp_buf_reserve(&f->tar, size + 1);
    if (cp_read_full(fd, f->tar.p + f->tar.n, size) != (ssize_t)size) {
        f->tar.n = before;
        return left_out(f, e->relative, "it was changed while it was copied");
    }
    f->tar.n += size;
    cp_tar_pad(&f->tar, size);
    cli_progress_add(&f->progress, size);
    return CLI_OK;
}

static int put_large(folder *f, const cp_walk_entry *e, int fd, const struct stat *st) {
    cp_autobuf cp_buf remote = {0};
    cp_buf_addf(&remote, "%s/%s", f->remote, e->relative);
    return cli_copy_file_up(f->c, fd, st, e->relative, cp_buf_z(&remote), &f->progress);
}

static int put_file(folder *f, const cp_walk_entry *e) {
    struct stat st;
    cp_autofd int fd = openat(e->dir, e->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) return left_out(f, e->relative, strerror(errno));
    if (!S_ISREG(st.st_mode)) return left_out(f, e->relative, "it is no file any more");
    return st.st_size > LARGE ? put_large(f, e, fd, &st) : put_small(f, e, fd, &st);
}

static int put_entry(folder *f, const cp_walk_entry *e) {
    if (S_ISREG(e->st.st_mode)) return put_file(f, e);
    if (S_ISDIR(e->st.st_mode)) return put_folder(f, e);
    if (S_ISLNK(e->st.st_mode)) return put_link(f, e);
    return left_out(f, e->relative, "it is neither file, folder nor link");
}

/* The server lets the owner into every folder that it unpacks. */
static int close_folders(folder *f) {
    int rc = CLI_OK;
    for (const char *p = f->closed.p, *end = p + f->closed.n; !rc && p < end; p += strlen(p) + 1) {
        cp_autobuf cp_buf body = {0}, path = {0};
        cli_autoanswer cli_answer a = {0};
        const char *mode = p;
        p += strlen(p) + 1;
        cp_buf_addf(&path, "%s/%s", f->remote, p);
        cp_jw w = cli_path_body(f->c, &body, cp_buf_z(&path));
        cp_jw_kz(&w, "mode", mode);
        cp_jw_end_obj(&w);
        rc = cli_post(f->c, "/api/files/chmod", &body, &a);
    }
    return rc;
}

static uint64_t size_of(const cp_where *w) {
    cp_walk_entry e;
    uint64_t size = 0;
    cp_walk *walk = cp_walk_open(w, CP_WALK_HIDDEN, NULL);
    while (walk && cp_walk_next(walk, &e))
        if (S_ISREG(e.st.st_mode)) size += (uint64_t)e.st.st_size;
    cp_walk_close(walk);
    return size;
}

static int walk_folder(folder *f, const cp_where *w) {
    cp_walk_entry e;
    cp_err err;
    int rc = CLI_OK;
    cp_walk *walk = cp_walk_open(w, CP_WALK_HIDDEN, &err);
    if (!walk) return cli_fail("%s: %s", f->local, err.msg);
    while (!rc && cp_walk_next(walk, &e)) {
        rc = put_entry(f, &e);
        if (!rc && f->tar.n >= BATCH) rc = flush(f);
    }
    if (cp_walk_skipped(walk)) {
        cli_warn("%llu folders below %s could not be read", (unsigned long long)cp_walk_skipped(walk), f->local);
        f->worst = CLI_FAILED;
    }
    cp_walk_close(walk);
    if (!rc) rc = flush(f); /* also an empty one: it makes the folder */
    return rc ? rc : close_folders(f);
}

int cli_copy_folder_up(cli *c, const char *local, const char *remote) {
    folder f = {.c = c, .local = local, .remote = remote};
    cp_where w;
    cp_files *files = cli_copy_where(local, &w);
    if (!files) return CLI_FAILED;
    cli_progress_begin(&f.progress, cli_flag(&c->args, CLI_OPT_quiet), local, 0);
    if (f.progress.on) f.progress.total = size_of(&w);
    int rc = walk_folder(&f, &w);
    cli_progress_end(&f.progress);
    cp_buf_free(&f.tar);
    cp_buf_free(&f.closed);
    cp_files_close(files);
    return rc ? rc : f.worst;
}
