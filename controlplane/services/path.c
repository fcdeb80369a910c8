#include "services/path.h"

#include <stdio.h>
#include <string.h>

/* A character outside the basic plane (four bytes in UTF-8) takes two units. */
static size_t utf16_units(cp_str s) {
    size_t units = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        units += ((c & 0xC0) != 0x80) + (c >= 0xF0);
    }
    return units;
}

const char *cp_path_problem(cp_str path) {
    if (!path.n) return "Path must be a non-empty string";
    if (memchr(path.p, 0, path.n)) return "Path contains null bytes";
    if (utf16_units(path) > CP_PATH_MAX_UTF16) return "Path too long (max 4096 characters)";
    return NULL;
}

int cp_path_join(const char *base, cp_str path, char out[CP_PATH_MAX]) {
    bool absolute = path.n && path.p[0] == '/';
    size_t at = absolute ? 0 : strlen(base);
    bool slash = !absolute && at && base[at - 1] != '/';
    if (at + slash + path.n >= CP_PATH_MAX) return -1;
    memcpy(out, base, at);
    if (slash) out[at++] = '/';
    memcpy(out + at, path.p, path.n);
    out[at + path.n] = 0;
    return 0;
}

static size_t trimmed(const char *p, size_t n) {
    while (n > 1 && p[n - 1] == '/') n--;
    return n;
}

cp_str cp_path_base(cp_str path) {
    size_t n = trimmed(path.p, path.n);
    const char *cut = n ? memrchr(path.p, '/', n) : NULL;
    return cut ? (cp_str){cut + 1, (size_t)(path.p + n - cut - 1)} : (cp_str){path.p, n};
}

int cp_path_split(const char *path, cp_split *out) {
    size_t all = strlen(path);
    cp_str name = cp_path_base((cp_str){path, all});
    size_t end = (size_t)(name.p - path); /* of the folder part */
    if (name.n > CP_NAME_MAX || all >= CP_PATH_MAX) return -1;
    out->slash = all && path[all - 1] == '/';
    if (name.n == 0 || cp_str_is(name, ".") || cp_str_is(name, "..")) {
        memcpy(out->dir, path, all + 1);
        name = CP_STR(".");
    } else if (end == 0) {
        memcpy(out->dir, ".", 2);
    } else {
        end = trimmed(path, end);
        memcpy(out->dir, path, end);
        out->dir[end] = 0;
    }
    memcpy(out->name, name.p, name.n);
    out->name[name.n] = 0;
    return 0;
}

const char *cp_path_inside(const char *root, const char *path) {
    size_t n = strlen(root);
    if (n == 1) n = 0; /* "/" */
    if (strncmp(path, root, n) != 0 || (path[n] && path[n] != '/')) return NULL;
    path += n;
    while (*path == '/') path++;
    return *path ? path : ".";
}
