#include "base/aside.h"

#include "base/clock.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK ".damaged-"

/* ---- moving aside ---- */

static bool is_time(const char *text) {
    static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";
    for (int i = 0; i < CP_ISO_LEN; i++)
        if (form[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != form[i]) return false;
    return true;
}

/* "<name>.damaged-", a time, which sorts as text, and the suffix of a part: the time in *at. What somebody else has
 * named nearly so is his. */
static bool is_generation(const char *entry, const char *name, const char **at) {
    size_t n = strlen(name);
    *at = entry + n + sizeof MARK - 1;
    if (strncmp(entry, name, n) != 0 || strncmp(entry + n, MARK, sizeof MARK - 1) != 0 || !is_time(*at)) return false;
    const char *rest = *at + CP_ISO_LEN;
    return !*rest || (*rest == '-' && rest[1] && !rest[1 + strspn(rest + 1, "abcdefghijklmnopqrstuvwxyz")]);
}

enum { OTHERS = CP_ASIDE_KEPT - 1 }; /* beside the one just made */

/* The newest times among the entries but `just`, newest first; "" where there are fewer. */
static void newest_times(DIR *d, const char *name, const char *just, char kept[OTHERS][CP_ISO_LEN + 1]) {
    const char *at;
    for (struct dirent *e; (e = readdir(d));) {
        if (!is_generation(e->d_name, name, &at) || strncmp(at, just, CP_ISO_LEN) == 0) continue;
        char time[CP_ISO_LEN + 1];
        snprintf(time, sizeof time, "%.*s", CP_ISO_LEN, at);
        for (int i = 0; i < OTHERS; i++) {
            int order = strcmp(time, kept[i]);
            if (order == 0) break;
            if (order < 0) continue;
            memmove(kept[i + 1], kept[i], (size_t)(OTHERS - 1 - i) * sizeof kept[0]);
            memcpy(kept[i], time, sizeof time);
            break;
        }
    }
}

/* The one that was made `just` now stays also where the clock has been set back and those before it look newer. */
static void forget_older(cp_str dir, const char *name, const char *just) {
    char kept[OTHERS][CP_ISO_LEN + 1] = {{0}};
    cp_autobuf cp_buf path = {0};
    cp_buf_add(&path, dir.p, dir.n);
    DIR *d = opendir(cp_buf_z(&path));
    if (!d) return;
    newest_times(d, name, just, kept);
    rewinddir(d);
    const char *at;
    for (struct dirent *e; (e = readdir(d));) {
        if (!is_generation(e->d_name, name, &at) || strncmp(at, just, CP_ISO_LEN) == 0) continue;
        if (strncmp(at, kept[OTHERS - 1], CP_ISO_LEN) >= 0) continue;
        cp_buf_clear(&path);
        cp_buf_add(&path, dir.p, dir.n);
        cp_buf_addz(&path, e->d_name);
        (void)remove(cp_buf_z(&path)); /* a folder with something in it stays */
    }
    closedir(d);
}

/* Of the whole name, and of its parts behind a suffix. */
static int move_one(const char *path, const char *to, const char *suffix) {
    cp_autobuf cp_buf a = {0}, b = {0};
    cp_buf_addf(&a, "%s%s", path, suffix);
    cp_buf_addf(&b, "%s%s", to, suffix);
    return rename(cp_buf_z(&a), cp_buf_z(&b)) < 0 && errno != ENOENT ? -1 : 0;
}

int cp_move_aside(const char *path, const char *const suffixes[], char **moved) {
    char time[CP_ISO_LEN + 1];
    cp_autobuf cp_buf to = {0};
    cp_iso(cp_wall_ms(), time);
    cp_buf_addf(&to, "%s" MARK "%s", path, time);
    if (move_one(path, cp_buf_z(&to), "") < 0) return -1;
    for (; suffixes && *suffixes; suffixes++)
        if (move_one(path, cp_buf_z(&to), *suffixes) < 0) return -1;
    const char *slash = strrchr(path, '/');
    if (slash) forget_older((cp_str){path, (size_t)(slash - path) + 1}, slash + 1, time);
    if (moved) *moved = cp_take(to).p;
    return 0;
}

bool cp_is_plain(const struct stat *st) { return S_ISREG(st->st_mode) && st->st_nlink == 1; }

int cp_file_clear(const char *path) {
    struct stat st;
    cp_autofree char *moved = NULL;
    if (lstat(path, &st) < 0) return errno == ENOENT ? 0 : -1;
    if (cp_is_plain(&st)) return 0;
    if (cp_move_aside(path, NULL, &moved) < 0) return -1;
    cp_log(CP_LOG_ERROR, "state.aside", "something else stood in the place of a file; it was moved aside",
           CP_KVZ("moved_to", moved));
    return 1;
}

/* ---- folders ---- */

/* One of ours that somebody has closed to us is opened again; where that fails its use will say so. */
static bool is_folder(const char *path, mode_t mode) {
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) return false;
    if (mode && (st.st_mode & mode & S_IRWXU) != (mode & S_IRWXU) && st.st_uid == geteuid())
        (void)chmod(path, (st.st_mode & 07777) | (mode & S_IRWXU));
    return true;
}

static int make_one(const char *path, mode_t mode) {
    if (mkdir(path, mode) == 0) return 1;
    if (errno != EEXIST) return -1;
    if (is_folder(path, mode)) return 0;
    cp_autofree char *moved = NULL;
    if (cp_move_aside(path, NULL, &moved) < 0) return -1;
    cp_log(CP_LOG_ERROR, "state.aside", "something else stood in the place of a folder; it was moved aside",
           CP_KVZ("moved_to", moved));
    return mkdir(path, mode) < 0 ? -1 : 1;
}

int cp_folder_make(const char *path, mode_t mode) {
    int made = make_one(path, mode);
    if (made >= 0 || (errno != ENOENT && errno != ENOTDIR && errno != EACCES)) return made;
    cp_autofree char *copy = cp_str_dup(cp_str_of(path));
    char *last = strrchr(copy, '/');
    for (char *p = copy + 1; p <= last; p++) { /* what is above is not ours: a file there stays */
        if (*p != '/') continue;
        *p = '\0';
        bool ours = p == last;
        if (ours ? make_one(copy, 0700) < 0 : mkdir(copy, 0755) < 0 && errno != EEXIST && !is_folder(copy, 0))
            return -1;
        *p = '/';
    }
    return make_one(path, mode);
}
