/* A file comes into one beside its target, which has its name when it is whole; when the copy is interrupted that
 * stays, and the next attempt goes on with it. A folder comes as an archive. */
#include "cli/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sha.h"
#include "services/archive.h"

/* ---- a file ---- */

/* In the target's folder, and for this version of this file of this server only. */
static void part_path(const cli *c, const cli_download *d, const char *local, cp_buf *out) {
    cp_autobuf cp_buf text = {0};
    uint8_t digest[CP_SHA256_SIZE];
    char hex[2 * CP_SHA256_SIZE + 1];
    const char *slash = strrchr(local, '/'), *name = slash ? slash + 1 : local;
    cp_buf_addf(&text, "%s %s %s %llu", c->set.url, d->path, d->etag, (unsigned long long)d->size);
    cp_sha256_of(text.p, text.n, digest);
    cp_sha256_hex(digest, hex);
    cp_buf_add(out, local, (size_t)(name - local));
    cp_buf_addf(out, ".%.200s.%.12s.part", name, hex);
    cp_buf_z(out);
}

static int publish(const cli_download *d, const char *part, const char *local) {
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(d->fd, (mode_t)d->mode & 0777 & ~mask) == 0 && rename(part, local) == 0) return CLI_OK;
    return cli_fail("%s: %s", local, strerror(errno));
}

static int receive(cli *c, cli_download *d, const char *part, const char *local) {
    off_t have = lseek(d->fd, 0, SEEK_END);
    if (have > 0 && (uint64_t)have <= d->size) d->offset = (uint64_t)have;
    else if (have != 0 && (ftruncate(d->fd, 0) < 0 || lseek(d->fd, 0, SEEK_SET) < 0))
        return cli_fail("%s: %s", part, strerror(errno));
    cli_progress_add(d->progress, d->offset);
    int rc = cli_download_run(c, d);
    cli_progress_end(d->progress);
    if (!rc) return publish(d, part, local);
    if (rc == CLI_REFUSED) unlink(part); /* it is of no version of the file */
    return rc;
}

static int into_file(cli *c, cli_download *d, const char *local) {
    cp_autobuf cp_buf part = {0};
    part_path(c, d, local, &part);
    cp_autofd int fd = open(part.p, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return cli_fail("%s: %s", local, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) return cli_fail("another copy to %s is under way", local);
    d->fd = fd;
    return receive(c, d, part.p, local);
}

/* A device or a pipe is written to, not replaced. */
static int into_special(cli *c, cli_download *d, const char *local) {
    cp_autofd int fd = open(local, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return cli_fail("%s: %s", local, strerror(errno));
    d->fd = fd;
    int rc = cli_download_run(c, d);
    cli_progress_end(d->progress);
    return rc;
}

int cli_copy_file_down(cli *c, const char *remote, const char *local) {
    struct stat st;
    cli_progress p;
    cli_download d = {.path = remote, .progress = &p};
    cp_autofree char *real = realpath(local, NULL); /* a link is written through */
    int rc = cli_download_look(c, &d);
    if (rc) return rc;
    cli_progress_begin(&p, cli_flag(&c->args, CLI_OPT_quiet), local, d.size);
    bool special = real && stat(real, &st) == 0 && !S_ISREG(st.st_mode);
    return special ? into_special(c, &d, real) : into_file(c, &d, real ? real : local);
}

/* ---- a folder ---- */

/* 0; -1 with *err (kind OK: what came cannot be unpacked, which has been said). */
static int unpack_once(cli *c, const char *path, const cp_where *w, cli_progress *p, conflux_error *err) {
    static const cp_unpack_limits none = {UINT64_MAX, UINT64_MAX};
    conflux_header gzip = {"Accept-Encoding", "gzip"};
    cp_unpack_report report;
    conflux_event ev;
    cp_err why = {0};
    int rc = -1;
    cp_unpack *u = cp_unpack_open(w, &none, &why);
    conflux_request rq = {.path = path,
                          .over_http = 1,
                          .headers = &gzip,
                          .nheaders = cli_flag(&c->args, CLI_OPT_compress),
                          .idle_timeout_ms = CONFLUX_NO_TIMEOUT};
    conflux_stream *s = u ? conflux_fetch_stream(c->client, &rq, err) : NULL;
    while (s && !why.code && (rc = conflux_stream_next(s, &ev, err)) > 0) {
        if (cp_unpack_feed(u, (cp_str){ev.data, ev.len}, &why) == 0) cli_progress_add(p, ev.len);
    }
    conflux_stream_free(s);
    if (u && rc == 0 && !why.code) cp_unpack_finish(u, &report, &why);
    cp_unpack_close(u);
    if (!why.code) return rc;
    cli_fail("%s (%s)", why.msg, cp_code_name(why.code));
    *err = (conflux_error){0};
    return -1;
}

static int unpack(cli *c, const char *remote, const char *local, const cp_where *w) {
    cp_autobuf cp_buf path = {0};
    cli_patience patience = {0};
    cli_progress p;
    conflux_error err = {0};
    if (cli_reconnect_ms(c, &patience.limit_ms) || !cli_client(c)) return CLI_FAILED;
    cli_file_path(c, "/api/files/archive", remote, &path);
    cli_progress_begin(&p, cli_flag(&c->args, CLI_OPT_quiet), local, 0);
    int rc;
    while ((rc = unpack_once(c, path.p, w, &p, &err)) < 0 && err.kind == CONFLUX_E_CONNECTION_LOST &&
           cli_patience_left(&patience))
        p.done = 0;
    cli_progress_end(&p);
    if (rc == 0) return CLI_OK;
    return err.kind ? cli_report(c, &err) : CLI_FAILED;
}

int cli_copy_folder_down(cli *c, const char *remote, const char *local) {
    cp_where w;
    cp_files *files = cli_copy_where(local, &w);
    int rc = files ? unpack(c, remote, local, &w) : CLI_FAILED;
    cp_files_close(files);
    return rc;
}
