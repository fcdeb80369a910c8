/* Design notes. Every entry is made by (folder descriptor, last name), and its folder is found from the root's
 * descriptor name by name, none of them followed if it is a link: neither what is in the archive nor what others do
 * meanwhile can lead out. A name is made under a temporary one and renamed, so that a link that has the name is
 * replaced and not written through.
 *
 * A symbolic link may only go up first and then down: "../../x", never "x/../y", and not above the root. The way up
 * then goes over real folders (those its own folder was found by), and the way down over names that are inside by the
 * same rule. With ".." behind a name, two links that are each harmless lead out together. */
#include "services/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/budget.h"
#include "services/files_impl.h"
#include "services/files_walk.h"
#include "services/files_way.h"
#include "services/tar.h"

enum { INFLATED = 64 * 1024, ANY_WINDOW = 15 + 16, INFLATE_OWN = 48 * 1024 /* the window, and tables: zconf.h */ };

struct cp_unpack {
    cp_unpack_limits limits;
    cp_unpack_report report;
    int root;
    cp_untar tar;

    /* the entry */
    cp_way way; /* to its folder: the next entry is near it, mostly */
    cp_buf dir; /* its folder below the root, as text: "a/b/" */
    char name[CP_NAME_MAX + 1];
    char temp[40]; /* "": none */
    cp_temps *temps;
    cp_temp record; /* of it */
    int fd;
    uint32_t mode;
    int64_t mtime;
    char shown[256]; /* its path, for errors */

    unsigned char magic[2];
    unsigned seen; /* of magic */
    bool gzip, gzip_end;
    z_stream z;
    char *inflated;
    cp_charge charge; /* of gzip */
};

static int unsafe(const cp_unpack *u, const char *why, cp_err *err) {
    return cp_fail(err, CP_E_ARCHIVE_UNSAFE, "%s: '%s'", why, u->shown);
}

static int failed(const cp_unpack *u, const char *call, cp_err *err) {
    return cp_file_fail(err, errno, call, u->shown);
}

/* ---- places ---- */

static int enter(const cp_unpack *u, int at, const char *name, bool make, cp_err *err) {
    struct stat st;
    int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && make && (mkdirat(at, name, 0777) == 0 || errno == EEXIST))
        fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) return fd;
    int sys = errno;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
        return unsafe(u, "The path leads through a link", err);
    errno = sys;
    return failed(u, "open", err);
}

/* Splits a path from the archive: the folder's names into dir, each with a slash behind it, the last name into name
 * ("" for the root itself). Checks what can be checked by text. */
static int split(const cp_unpack *u, const char *path, cp_buf *dir, char name[CP_NAME_MAX + 1], cp_err *err) {
    enum { LONGEST = CP_WALK_PATH_MAX + CP_NAME_MAX + 2 }; /* as a walk tells it, with a slash at its end */
    if (*path == '/') return unsafe(u, "The path is absolute", err);
    if (strlen(path) > LONGEST) return cp_file_fail(err, ENAMETOOLONG, "open", u->shown);
    cp_buf_clear(dir);
    name[0] = 0;
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");
        cp_str part = {p, len};
        p += len + (p[len] == '/');
        if (len == 0 || cp_str_is(part, ".")) continue;
        if (cp_str_is(part, "..")) return unsafe(u, "The path has a .. in it", err);
        if (len > CP_NAME_MAX) return cp_file_fail(err, ENAMETOOLONG, "open", u->shown);
        if (*name) cp_buf_addf(dir, "%s/", name);
        memcpy(name, part.p, len);
        name[len] = 0;
    }
    return 0;
}

/* From the root, or on from where the last entry was. */
static int begin_way(cp_unpack *u, cp_str dir, cp_err *err) {
    while (u->way.n > 1) {
        cp_str here = {u->way.path.p, cp_way_last(&u->way)->path};
        if (cp_str_starts(dir, here)) return 0;
        if (cp_way_up(&u->way) < 0) break; /* somebody has moved it */
    }
    if (u->way.n == 1) return 0;
    cp_way_end(&u->way);
    u->way.flags = O_PATH;
    return cp_way_down(&u->way, fcntl(u->root, F_DUPFD_CLOEXEC, 3)) < 0 ? failed(u, "open", err) : 0;
}

/* Goes to the folder with this text below the root; its descriptor, the way's, or -1. */
static int go_to(cp_unpack *u, const cp_buf *dir, bool make, cp_err *err) {
    char part[CP_NAME_MAX + 1];
    if (begin_way(u, cp_buf_str(dir), err) < 0) return -1;
    for (size_t at = cp_way_last(&u->way)->path; at < dir->n;) {
        size_t len = (size_t)((char *)memchr(dir->p + at, '/', dir->n - at) - (dir->p + at));
        memcpy(part, dir->p + at, len);
        part[len] = 0;
        at += len + 1;
        int next = enter(u, cp_way_last(&u->way)->fd, part, make, err);
        if (next < 0) return -1;
        cp_way_name(&u->way, part);
        if (cp_way_down(&u->way, next) < 0) return failed(u, "open", err);
    }
    return cp_way_last(&u->way)->fd;
}

static int here(const cp_unpack *u) { return cp_way_last(&u->way)->fd; }

static int locate(cp_unpack *u, const char *path, cp_err *err) {
    if (split(u, path, &u->dir, u->name, err) < 0) return -1;
    return go_to(u, &u->dir, true, err) < 0 ? -1 : 0;
}

/* ---- entries ---- */

static int publish(cp_unpack *u, cp_err *err) {
    if (renameat(here(u), u->temp, here(u), u->name) < 0) return failed(u, "rename", err);
    unlinkat(here(u), u->temp, 0); /* two names of one file: rename has done nothing */
    u->temp[0] = 0;
    cp_temp_end(&u->record);
    return 0;
}

/* When the way leads to the folder of the entry. */
static void begin_temp(cp_unpack *u) { cp_temp_begin(&u->record, u->temps, here(u), u->temp); }
static void temp_made(cp_unpack *u) { cp_temp_made(&u->record, here(u), u->temp); }

static int begin_file(cp_unpack *u, cp_err *err) {
    begin_temp(u);
    u->fd = openat(here(u), u->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (u->fd < 0) return failed(u, "open", err);
    temp_made(u);
    return 0;
}

static int make_dir(cp_unpack *u, cp_err *err) {
    u->temp[0] = 0;
    /* For us to fill it in any case. */
    if (mkdirat(here(u), u->name, (u->mode & 0777) | 0700) == 0) return 0;
    if (errno != EEXIST) return failed(u, "mkdir", err);
    cp_autofd int there = enter(u, here(u), u->name, false, err);
    return there < 0 ? -1 : 0;
}

bool cp_unpack_link_inside(const char *target, unsigned depth) {
    bool down = false;
    if (*target == '/' || !*target) return false;
    for (const char *p = target; *p;) {
        size_t len = strcspn(p, "/");
        cp_str part = {p, len};
        p += len + (p[len] == '/');
        if (len == 0 || cp_str_is(part, ".")) continue;
        bool up = cp_str_is(part, "..");
        if (up && (down || depth-- == 0)) return false;
        down |= !up;
    }
    return true;
}

static int make_symlink(cp_unpack *u, const char *target, cp_err *err) {
    if (!cp_unpack_link_inside(target, (unsigned)u->way.n - 1))
        return unsafe(u, "The link may lead out of the folder", err);
    begin_temp(u);
    if (symlinkat(target, here(u), u->temp) < 0) return failed(u, "symlink", err);
    temp_made(u);
    return publish(u, err);
}

/* The way leads to the file first, then to where its new name is to be. */
static int make_hardlink(cp_unpack *u, const char *target, cp_err *err) {
    cp_autobuf cp_buf dir = {0};
    char name[CP_NAME_MAX + 1];
    struct stat st;
    if (split(u, target, &dir, name, err) < 0) return -1;
    int at = go_to(u, &dir, false, err);
    cp_autofd int from = at < 0 ? -1 : fcntl(at, F_DUPFD_CLOEXEC, 3);
    if (at < 0 || from < 0) return at < 0 ? -1 : failed(u, "link", err);
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return failed(u, "link", err);
    if (!S_ISREG(st.st_mode)) return unsafe(u, "The link leads to something that is no file", err);
    if (go_to(u, &u->dir, true, err) < 0) return -1;
    begin_temp(u);
    if (linkat(from, name, here(u), u->temp, 0) < 0) return failed(u, "link", err);
    temp_made(u);
    return publish(u, err);
}

static int count(cp_unpack *u, const cp_tar_entry *e, cp_err *err) {
    u->report.entries++;
    if (u->report.entries > u->limits.entries)
        return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "The archive has more than %llu entries (--archive-entries)",
                       (unsigned long long)u->limits.entries);
    if (e->size > u->limits.bytes - u->report.bytes)
        return cp_fail(err, CP_E_PAYLOAD_TOO_LARGE, "The archive unpacks to more than %llu bytes (--archive-bytes)",
                       (unsigned long long)u->limits.bytes);
    u->report.bytes += e->size;
    return 0;
}

static int on_entry(void *arg, const cp_tar_entry *e, cp_err *err) {
    cp_unpack *u = arg;
    snprintf(u->shown, sizeof u->shown, "%s", e->path);
    if (count(u, e, err) < 0 || locate(u, e->path, err) < 0) return -1;
    if (!u->name[0] && e->type == CP_TAR_DIR) return 0; /* the root itself: "./" */
    if (!u->name[0]) return unsafe(u, "The path names the folder itself", err);
    u->mode = e->mode;
    u->mtime = e->mtime;
    cp_temp_name(u->temp);
    switch (e->type) {
    case CP_TAR_FILE: return begin_file(u, err);
    case CP_TAR_DIR: return make_dir(u, err);
    case CP_TAR_SYMLINK: return make_symlink(u, e->link, err);
    case CP_TAR_HARDLINK: return make_hardlink(u, e->link, err);
    default: u->temp[0] = 0; return unsafe(u, "Neither file, folder nor link", err);
    }
}

static int on_data(void *arg, cp_str bytes, cp_err *err) {
    cp_unpack *u = arg;
    return cp_write_all(u->fd, bytes.p, bytes.n) < 0 ? failed(u, "write", err) : 0;
}

static int on_entry_end(void *arg, cp_err *err) {
    cp_unpack *u = arg;
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = u->mtime}};
    if (u->fd < 0) return 0;
    if (fchmod(u->fd, u->mode & 0777) < 0 || futimens(u->fd, t) < 0) return failed(u, "chmod", err);
    cp_close(&u->fd);
    return publish(u, err);
}

/* ---- bytes ---- */

cp_unpack *cp_unpack_open(const cp_where *w, const cp_unpack_limits *limits, cp_err *err) {
    static const cp_untar_ops ops = {.entry = on_entry, .data = on_data, .entry_end = on_entry_end};
    cp_autofd int root = cp_where_mkdirs(w, w->path);
    if (root < 0) {
        cp_file_fail(err, errno, "mkdir", w->full);
        return NULL;
    }
    cp_unpack *u = cp_new(cp_unpack);
    u->tar = (cp_untar){.ops = &ops, .arg = u};
    u->limits = *limits;
    u->root = cp_take_fd(&root);
    u->temps = w->files->temps;
    u->fd = -1;
    return u;
}

/* Members of gzip may follow each other; what is no further one is ignored, as gzip does. */
static int feed_gzip(cp_unpack *u, cp_str in, cp_err *err) {
    u->z.next_in = (Bytef *)(uintptr_t)in.p;
    u->z.avail_in = (uInt)in.n;
    while (!(u->gzip_end && u->z.avail_in && *u->z.next_in != 0x1f)) {
        if (u->gzip_end && u->z.avail_in && inflateReset(&u->z) == Z_OK) u->gzip_end = false;
        if (u->gzip_end) return 0;
        u->z.next_out = (Bytef *)u->inflated;
        u->z.avail_out = INFLATED;
        int rc = inflate(&u->z, Z_NO_FLUSH);
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return cp_fail(err, CP_E_ARCHIVE_INVALID, "Not gzip: %s", u->z.msg ? u->z.msg : "damaged");
        size_t got = INFLATED - u->z.avail_out;
        if (cp_untar_feed(&u->tar, (cp_str){u->inflated, got}, err) < 0) return -1;
        u->gzip_end = rc == Z_STREAM_END;
        if (!u->gzip_end && !u->z.avail_in && u->z.avail_out) return 0; /* all is taken, and nothing held back */
    }
    return 0;
}

static int feed(cp_unpack *u, cp_str in, cp_err *err) {
    return u->gzip ? feed_gzip(u, in, err) : cp_untar_feed(&u->tar, in, err);
}

static int begin_gzip(cp_unpack *u, cp_err *err) {
    u->charge.kind = CP_MEM_TRANSFERS;
    if (cp_charge_set(&u->charge, INFLATED + INFLATE_OWN, err) < 0) return -1;
    if (inflateInit2(&u->z, ANY_WINDOW) != Z_OK) return cp_no_memory(err, INFLATE_OWN);
    u->gzip = true;
    u->inflated = malloc(INFLATED);
    return u->inflated ? 0 : cp_no_memory(err, INFLATED);
}

int cp_unpack_feed(cp_unpack *u, cp_str in, cp_err *err) {
    while (u->seen < 2) {
        if (!in.n) return 0;
        u->magic[u->seen++] = (unsigned char)*in.p++;
        in.n--;
        if (u->seen < 2) continue;
        if (u->magic[0] == 0x1f && u->magic[1] == 0x8b && begin_gzip(u, err) < 0) return -1;
        if (feed(u, (cp_str){(const char *)u->magic, 2}, err) < 0) return -1;
    }
    return in.n ? feed(u, in, err) : 0;
}

int cp_unpack_finish(cp_unpack *u, cp_unpack_report *report, cp_err *err) {
    *report = u->report;
    if (u->gzip && !u->gzip_end) return cp_fail(err, CP_E_ARCHIVE_INVALID, "The archive ended early");
    return cp_untar_finish(&u->tar, err);
}

void cp_unpack_close(cp_unpack *u) {
    if (!u) return;
    if (u->temp[0] && u->way.n) unlinkat(here(u), u->temp, 0);
    cp_temp_end(&u->record);
    if (u->gzip) inflateEnd(&u->z);
    cp_untar_free(&u->tar);
    cp_close(&u->fd);
    cp_way_end(&u->way);
    cp_buf_free(&u->dir);
    cp_close(&u->root);
    free(u->inflated);
    cp_charge_free(&u->charge);
    free(u);
}
