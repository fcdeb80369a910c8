#include <stdlib.h>
#include <string.h>

#include "services/tar.h"

static int invalid(cp_err *err, const char *why) {
    return cp_fail(err, CP_E_ARCHIVE_INVALID, "Not a tar archive: %s", why);
}

/* Octal text with blanks around it, or (GNU) a big-endian number behind a first byte with its high bit set. */
static bool number(const char *at, size_t width, uint64_t *out) {
    uint64_t v = 0;
    size_t i = 0;
    if ((unsigned char)*at & 0x80) {
        if ((unsigned char)*at != 0x80) return false; /* negative, or beyond 63 bits */
        for (i = 1; i < width; i++) {
            if (v >> 55) return false;
            v = v << 8 | (unsigned char)at[i];
        }
        *out = v;
        return true;
    }
    while (i < width && at[i] == ' ') i++;
    for (; i < width && at[i] >= '0' && at[i] <= '7'; i++) {
        if (v >> 60) return false;
        v = v << 3 | (uint64_t)(at[i] - '0');
    }
    for (; i < width; i++)
        if (at[i] && at[i] != ' ') return false;
    *out = v;
    return true;
}

static bool checksum_fits(const char *block) {
    uint64_t want;
    unsigned sum = 0;
    int32_t old = 0; /* some summed signed bytes */
    if (!number(block + 148, 8, &want)) return false;
    for (size_t i = 0; i < CP_TAR_BLOCK; i++) {
        char c = i >= 148 && i < 156 ? ' ' : block[i];
        sum += (unsigned char)c;
        old += (signed char)c;
    }
    return want == sum || (int64_t)want == old;
}

static bool all_zero(const char *block) {
    for (size_t i = 0; i < CP_TAR_BLOCK; i++)
        if (block[i]) return false;
    return true;
}

/* ---- what describes the next entry ---- */

static void set_text(cp_buf *to, bool *has, cp_str text) {
    cp_buf_clear(to);
    cp_buf_add(to, text.p, text.n);
    *has = true;
}

static int pax_value(cp_untar *u, cp_str key, cp_str value, cp_err *err) {
    bool size = cp_str_is(key, "size");
    if (memchr(value.p, 0, value.n)) return invalid(err, "a pax value holds a NUL");
    if (cp_str_is(key, "path")) set_text(&u->path, &u->has_path, value);
    if (cp_str_is(key, "linkpath")) set_text(&u->link, &u->has_link, value);
    if (size && !cp_str_u64(value, INT64_MAX, &u->size)) return invalid(err, "a pax size");
    u->has_size |= size;
    /* Sparse files of GNU tar look like files whose content is a map. */
    if (cp_str_starts(key, CP_STR("GNU.sparse."))) return invalid(err, "sparse files are not supported");
    return 0;
}

static int read_pax(cp_untar *u, cp_err *err) {
    const char *p = u->meta.p, *end = p + u->meta.n;
    while (p < end) {
        char *after;
        const char *blank = memchr(p, ' ', (size_t)(end - p));
        if (!blank || *p < '1' || *p > '9' || blank - p > 6) return invalid(err, "a pax record");
        size_t n = strtoul(p, &after, 10);
        if (after != blank || n > (size_t)(end - p) || p + n < blank + 3 || p[n - 1] != '\n')
            return invalid(err, "a pax record");
        cp_str text = {blank + 1, (size_t)(p + n - 1 - blank - 1)};
        const char *equal = memchr(text.p, '=', text.n);
        if (!equal) return invalid(err, "a pax record");
        cp_str key = {text.p, (size_t)(equal - text.p)}, value = {equal + 1, text.n - key.n - 1};
        if (pax_value(u, key, value, err) < 0) return -1;
        p += n;
    }
    return 0;
}

static int read_meta(cp_untar *u, cp_err *err) {
    char type = u->meta_type;
    u->meta_type = 0;
    if (type == 'x') return read_pax(u, err);
    if (type == 'g') return 0; /* for all that follow: nothing that we keep */
    cp_str text = {u->meta.p, strnlen(u->meta.p, u->meta.n)};
    if (type == 'L') set_text(&u->path, &u->has_path, text);
    else set_text(&u->link, &u->has_link, text);
    return 0;
}

/* ---- headers ---- */

static void ustar_path(cp_untar *u) {
    const char *b = u->block;
    cp_buf_clear(&u->path);
    if (memcmp(b + 257, "ustar\0", 6) == 0 && b[345]) {
        cp_buf_add(&u->path, b + 345, strnlen(b + 345, 155));
        cp_buf_addc(&u->path, '/');
    }
    cp_buf_add(&u->path, b, strnlen(b, 100));
}

static int begin_entry(cp_untar *u, char type, uint64_t size, uint64_t mode, uint64_t mtime, cp_err *err) {
    if (!u->has_path) ustar_path(u);
    if (!u->has_link) {
        cp_buf_clear(&u->link);
        cp_buf_add(&u->link, u->block + 157, strnlen(u->block + 157, 100));
    }
    if (u->has_size) size = u->size;
    bool folder = type == CP_TAR_FILE && u->path.n && u->path.p[u->path.n - 1] == '/'; /* as before ustar */
    if (folder) type = CP_TAR_DIR;
    u->left = type == CP_TAR_FILE ? size : 0; /* links and folders have a size in some archives, and no content */
    u->pad = (unsigned)((CP_TAR_BLOCK - u->left % CP_TAR_BLOCK) % CP_TAR_BLOCK);
    u->has_path = u->has_link = u->has_size = false;
    u->in_entry = true;
    cp_tar_entry e = {.type = type,
                      .path = cp_buf_z(&u->path),
                      .link = cp_buf_z(&u->link),
                      .size = u->left,
                      .mode = (uint32_t)mode & 07777,
                      .mtime = (int64_t)mtime};
    return u->ops->entry(u->arg, &e, err);
}

static int begin_meta(cp_untar *u, char type, uint64_t size, cp_err *err) {
    if (size > CP_TAR_META_MAX) return invalid(err, "a name or pax header is too long");
    cp_buf_clear(&u->meta);
    cp_buf_reserve(&u->meta, 1);
    u->meta_type = type;
    u->left = size;
    u->pad = (unsigned)((CP_TAR_BLOCK - size % CP_TAR_BLOCK) % CP_TAR_BLOCK);
    return 0;
}

static int read_header(cp_untar *u, cp_err *err) {
    const char *b = u->block;
    uint64_t size, mode, mtime;
    if (all_zero(b)) {
        u->ended = true;
        return 0;
    }
    if (!checksum_fits(b)) return invalid(err, "a header's checksum does not fit");
    if (!number(b + 100, 8, &mode) || !number(b + 124, 12, &size)) return invalid(err, "a header's numbers");
    if (!number(b + 136, 12, &mtime) || mtime > INT64_MAX) mtime = 0; /* before 1970 */
    if (size > INT64_MAX) return invalid(err, "a header's size");
    char type = b[156];
    if (type == 0 || type == '7') type = CP_TAR_FILE;
    if (strchr("xgLK", type)) return begin_meta(u, type, size, err);
    return begin_entry(u, type, size, mode, mtime, err);
}

/* ---- bytes ---- */

/* All content and padding is over. */
static int end_content(cp_untar *u, cp_err *err) {
    if (u->meta_type) return read_meta(u, err);
    if (!u->in_entry) return 0;
    u->in_entry = false;
    return u->ops->entry_end(u->arg, err);
}

static int take_content(cp_untar *u, cp_str *in, cp_err *err) {
    cp_str part = {in->p, u->left < in->n ? (size_t)u->left : in->n};
    in->p += part.n;
    in->n -= part.n;
    u->left -= part.n;
    if (!u->meta_type) return u->ops->data(u->arg, part, err);
    cp_buf_add(&u->meta, part.p, part.n);
    return 0;
}

static void take_padding(cp_untar *u, cp_str *in) {
    size_t n = u->pad < in->n ? u->pad : in->n;
    in->p += n;
    in->n -= n;
    u->pad -= (unsigned)n;
}

static int take_header(cp_untar *u, cp_str *in, cp_err *err) {
    size_t room = CP_TAR_BLOCK - u->have, n = room < in->n ? room : in->n;
    memcpy(u->block + u->have, in->p, n);
    u->have += n;
    in->p += n;
    in->n -= n;
    if (u->have < CP_TAR_BLOCK) return 0;
    u->have = 0;
    return read_header(u, err);
}

static int step(cp_untar *u, cp_str *in, cp_err *err) {
    if (u->left) {
        if (take_content(u, in, err) < 0) return -1;
    } else if (u->pad) {
        take_padding(u, in);
    } else if (take_header(u, in, err) < 0) {
        return -1;
    }
    return u->left || u->pad ? 0 : end_content(u, err);
}

int cp_untar_feed(cp_untar *u, cp_str in, cp_err *err) {
    while (in.n && !u->ended)
        if (step(u, &in, err) < 0) return -1;
    return 0;
}

int cp_untar_finish(cp_untar *u, cp_err *err) {
    return u->ended ? 0 : cp_fail(err, CP_E_ARCHIVE_INVALID, "The archive ended early");
}

void cp_untar_free(cp_untar *u) {
    cp_buf_free(&u->meta);
    cp_buf_free(&u->path);
    cp_buf_free(&u->link);
}
