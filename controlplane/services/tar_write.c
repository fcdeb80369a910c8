#include <stdio.h>
#include <string.h>

#include "services/tar.h"

/* ustar, by offset and width. */
enum {
    NAME = 0,
    MODE = 100,
    UID = 108,
    GID = 116,
    SIZE = 124,
    MTIME = 136,
    CHECKSUM = 148,
    TYPE = 156,
    LINK = 157,
    MAGIC = 257,
    NAME_MAX_ = 100,
};

/* Octal, with a NUL; false when it does not fit. */
static bool put_octal(char *at, size_t width, uint64_t v) {
    if (v >> (3 * (width - 1))) return false;
    for (size_t i = width - 1; i-- > 0; v >>= 3) at[i] = (char)('0' + (v & 7));
    at[width - 1] = 0;
    return true;
}

static bool put_text(char *at, const char *text) {
    size_t n = strlen(text);
    memcpy(at, text, n < NAME_MAX_ ? n : NAME_MAX_);
    return n <= NAME_MAX_;
}

static void put_checksum(char block[CP_TAR_BLOCK]) {
    unsigned sum = 0;
    memset(block + CHECKSUM, ' ', 8);
    for (size_t i = 0; i < CP_TAR_BLOCK; i++) sum += (unsigned char)block[i];
    put_octal(block + CHECKSUM, 7, sum);
}

/* What stands in every header; the checksum goes last. */
static void finish(char block[CP_TAR_BLOCK], char type) {
    block[TYPE] = type;
    put_text(block + MAGIC, "ustar"); /* and a NUL, which is there */
    put_text(block + MAGIC + 6, "00");
    put_checksum(block);
}

/* "<length> key=value\n", where the length counts itself. */
static void pax_record(cp_buf *out, const char *key, const char *value) {
    size_t rest = strlen(key) + strlen(value) + 3, n = rest + 1;
    char digits[24];
    while (n != rest + (size_t)snprintf(digits, sizeof digits, "%zu", n)) n = rest + strlen(digits);
    cp_buf_addf(out, "%zu ", n);
    cp_buf_addz(out, key);
    cp_buf_addc(out, '=');
    cp_buf_addz(out, value);
    cp_buf_addc(out, '\n');
}

static void pax_number(cp_buf *out, const char *key, int64_t v) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    pax_record(out, key, text);
}

static void put_pax(cp_buf *out, const cp_buf *records) {
    char block[CP_TAR_BLOCK] = {0};
    put_text(block + NAME, "././@PaxHeader");
    put_octal(block + MODE, 8, 0644);
    put_octal(block + UID, 8, 0);
    put_octal(block + GID, 8, 0);
    put_octal(block + SIZE, 12, records->n);
    put_octal(block + MTIME, 12, 0);
    finish(block, 'x');
    cp_buf_add(out, block, sizeof block);
    cp_buf_add(out, records->p, records->n);
    cp_tar_pad(out, records->n);
}

void cp_tar_put(cp_buf *out, const cp_tar_entry *e) {
    char block[CP_TAR_BLOCK] = {0};
    cp_autobuf cp_buf pax = {0};
    const char *link = e->link ? e->link : "";
    if (!put_text(block + NAME, e->path)) pax_record(&pax, "path", e->path);
    if (!put_text(block + LINK, link)) pax_record(&pax, "linkpath", link);
    put_octal(block + MODE, 8, e->mode & 07777);
    if (!put_octal(block + UID, 8, e->uid)) pax_number(&pax, "uid", (int64_t)e->uid);
    if (!put_octal(block + GID, 8, e->gid)) pax_number(&pax, "gid", (int64_t)e->gid);
    if (!put_octal(block + SIZE, 12, e->size)) pax_number(&pax, "size", (int64_t)e->size);
    if (e->mtime < 0 || !put_octal(block + MTIME, 12, (uint64_t)e->mtime)) pax_number(&pax, "mtime", e->mtime);
    finish(block, e->type);
    if (pax.n) put_pax(out, &pax);
    cp_buf_add(out, block, sizeof block);
}

void cp_tar_pad(cp_buf *out, uint64_t size) {
    static const char zeros[CP_TAR_BLOCK];
    cp_buf_add(out, zeros, (CP_TAR_BLOCK - size % CP_TAR_BLOCK) % CP_TAR_BLOCK);
}

void cp_tar_end(cp_buf *out) {
    static const char zeros[2 * CP_TAR_BLOCK];
    cp_buf_add(out, zeros, sizeof zeros);
}
