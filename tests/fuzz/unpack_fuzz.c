/* Archives that are unpacked: nothing appears outside of the folder and no link leads there, whatever the archive says;
 * cut anywhere, and packed with gzip, it gives the same tree; and what was packed from that tree gives it again.
 *
 * Input: one byte of how, one of the pieces' size, then the bytes of an archive (tar or gzip), or entries for one, so
 * that names and links are reached behind the checksums: type, lengths of path, link and content, those. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/fd.h"
#include "services/archive.h"
#include "services/tar.h"
#include "services/watch_glob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ENTRIES_HOW = 1, CONTENT_MAX = 4096, ENTRIES_MAX = 64, BYTES_MAX = 1 << 16 };

static char work[64]; /* holds in/ and out/ */

/* Without a root of its own. */
static const cp_files *everywhere(void) {
    static cp_files *f;
    if (!f) f = cp_files_open("", NULL);
    if (!f) abort();
    return f;
}

static void require(bool ok) {
    if (!ok) abort();
}

/* ---- folders ---- */

static void remove_tree(int at, const char *name) {
    cp_autofd int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int copy = fd < 0 ? -1 : dup(fd);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (unlinkat(fd, e->d_name, 0) < 0) remove_tree(fd, e->d_name);
    }
    if (d) closedir(d);
    unlinkat(at, name, AT_REMOVEDIR);
}

static void remove_work(void) {
    if (work[0]) remove_tree(AT_FDCWD, work);
}

/* In memory where that is. */
static int work_dir(void) {
    if (!work[0]) {
        snprintf(work, sizeof work, "/dev/shm/conflux-fuzz-XXXXXX");
        if (!mkdtemp(work)) snprintf(work, sizeof work, "/tmp/conflux-fuzz-XXXXXX");
        require(access(work, W_OK) == 0 || mkdtemp(work));
        atexit(remove_work);
    }
    int fd = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(fd >= 0);
    return fd;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* Does a link with this target, in a folder so deep below the root, stay inside? Folders are real, so ".." is a step
 * up; what is a link on the way is judged by itself. */
static bool stays_inside(const char *target, unsigned depth) {
    int at = (int)depth;
    if (target[0] == '/') return false;
    for (const char *p = target; *p; p += strcspn(p, "/"), p += *p == '/') {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') at--;
        else if (n && !(n == 1 && p[0] == '.')) at++;
        if (at < 0) return false;
    }
    return true;
}

static void describe_link(int dir, const char *name, unsigned depth, cp_buf *out) {
    char target[CP_PATH_MAX];
    ssize_t n = readlinkat(dir, name, target, sizeof target - 1);
    require(n > 0);
    target[n] = 0;
    require(stays_inside(target, depth));
    cp_buf_addf(out, "L%s=%s\n", name, target);
}

static void describe_file(int dir, const char *name, cp_buf *out) {
    char text[BYTES_MAX + 1];
    cp_autofd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : cp_read_full(fd, text, sizeof text);
    require(n >= 0 && n <= BYTES_MAX);
    cp_buf_addf(out, "F%s=%zd:", name, n);
    cp_buf_add(out, text, (size_t)n);
}

/* Names, kinds, contents. */
static void describe(int at, const char *name, unsigned depth, cp_buf *out) {
    struct dirent **names;
    struct stat st;
    cp_autofd int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int n = scandirat(at, name, &names, NULL, by_name);
    require(fd >= 0 && n >= 0);
    cp_buf_addf(out, "D%s{\n", depth ? name : "");
    for (int i = 0; i < n; i++) {
        const char *e = names[i]->d_name;
        if (strcmp(e, ".") != 0 && strcmp(e, "..") != 0) {
            require(fstatat(fd, e, &st, AT_SYMLINK_NOFOLLOW) == 0 && cp_watch_staged(cp_str_of(e)) == CP_STAGED_NOT);
            require(S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode) || S_ISREG(st.st_mode));
            require(S_ISLNK(st.st_mode) || !(st.st_mode & (S_ISUID | S_ISGID)));
            if (S_ISDIR(st.st_mode)) describe(fd, e, depth + 1, out);
            else if (S_ISLNK(st.st_mode)) describe_link(fd, e, depth, out);
            else describe_file(fd, e, out);
        }
        free(names[i]);
    }
    free(names);
    cp_buf_addz(out, "}\n");
}

/* ---- unpacking ---- */

/* The tree that an archive leaves, and whether it was accepted. */
static bool unpack(cp_str archive, size_t piece, const char *name, cp_buf *tree) {
    static const cp_unpack_limits limits = {.entries = ENTRIES_MAX, .bytes = BYTES_MAX};
    cp_unpack_report report;
    cp_where w;
    cp_err err = {0};
    cp_autobuf cp_buf path = {0};
    cp_autofd int dir = work_dir();
    remove_tree(dir, name);
    cp_buf_addf(&path, "%s/%s", work, name);
    require(cp_where_init(&w, everywhere(), "/", cp_buf_str(&path), &err) == 0);
    cp_unpack *u = cp_unpack_open(&w, &limits, &err);
    require(u != NULL);
    bool ok = true;
    for (size_t at = 0; ok && at < archive.n; at += piece)
        ok = cp_unpack_feed(u, (cp_str){archive.p + at, archive.n - at < piece ? archive.n - at : piece}, &err) == 0;
    ok = ok && cp_unpack_finish(u, &report, &err) == 0;
    require(ok || err.msg[0]);
    require(!ok || (report.entries <= ENTRIES_MAX && report.bytes <= BYTES_MAX));
    cp_unpack_close(u);
    describe(dir, name, 0, tree);
    return ok;
}

static void pack(const char *name, cp_buf *archive) {
    cp_where w;
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/%s", work, name);
    require(cp_where_init(&w, everywhere(), "/", cp_buf_str(&path), NULL) == 0);
    cp_pack *p = cp_pack_open(&w, true, NULL);
    require(p != NULL);
    for (ssize_t n = 1; n > 0;) {
        cp_buf_reserve(archive, 65536);
        n = cp_pack_read(p, archive->p + archive->n, 65536, NULL);
        require(n >= 0);
        archive->n += (size_t)n;
    }
    cp_pack_close(p);
}

/* ---- archives ---- */

static void gzip(cp_str plain, cp_buf *out) {
    z_stream z = {0};
    require(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    cp_buf_reserve(out, deflateBound(&z, plain.n) + 32);
    z.next_in = (Bytef *)(uintptr_t)plain.p;
    z.avail_in = (uInt)plain.n;
    z.next_out = (Bytef *)out->p;
    z.avail_out = (uInt)out->cap;
    require(deflate(&z, Z_FINISH) == Z_STREAM_END);
    out->n = z.total_out;
    deflateEnd(&z);
}

static char *take_text(cp_str *in, size_t n) {
    if (n > in->n) n = in->n;
    char *z = cp_str_dup((cp_str){in->p, n});
    *in = (cp_str){in->p + n, in->n - n};
    return z;
}

static void put_entries(cp_str in, cp_buf *tar) {
    static const char types[] = {CP_TAR_FILE, CP_TAR_HARDLINK, CP_TAR_SYMLINK, CP_TAR_DIR, '3'};
    while (in.n >= 4) {
        const uint8_t *head = (const uint8_t *)in.p;
        in = (cp_str){in.p + 4, in.n - 4};
        cp_autofree char *path = take_text(&in, head[1]), *link = take_text(&in, head[2]);
        size_t n = head[3] < in.n ? head[3] : in.n;
        cp_tar_entry e = {.type = types[head[0] % sizeof types], .path = path, .link = link, .mode = head[0] * 16u};
        bool file = e.type == CP_TAR_FILE;
        if (file) e.size = n;
        cp_tar_put(tar, &e);
        if (!file) continue;
        cp_buf_add(tar, in.p, n);
        cp_tar_pad(tar, n);
        in = (cp_str){in.p + n, in.n - n};
    }
    cp_tar_end(tar);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 16384) return 0;
    cp_str in = {(const char *)data + 2, size - 2};
    cp_autobuf cp_buf tar = {0}, zipped = {0}, packed = {0}, whole = {0}, parts = {0}, other = {0};
    if (data[0] & ENTRIES_HOW) put_entries(in, &tar);
    else cp_buf_add(&tar, in.p, in.n);
    bool ok = unpack(cp_buf_str(&tar), tar.n + 1, "in", &whole);
    bool again = unpack(cp_buf_str(&tar), 1 + data[1] * 3u, "in", &parts);
    require(ok == again);
    if (!ok) return 0; /* what came before an error stays: how much is seen at a time */
    require(cp_str_eq(cp_buf_str(&whole), cp_buf_str(&parts)));
    pack("in", &packed);
    require(unpack(cp_buf_str(&packed), 1000, "out", &other));
    require(cp_str_eq(cp_buf_str(&whole), cp_buf_str(&other)));
    if (tar.n > 1 && tar.p[0] == 0x1f) return 0; /* is in gzip already */
    cp_buf_clear(&other);
    gzip(cp_buf_str(&tar), &zipped);
    require(unpack(cp_buf_str(&zipped), 1 + data[1], "out", &other));
    require(cp_str_eq(cp_buf_str(&whole), cp_buf_str(&other)));
    return 0;
}
