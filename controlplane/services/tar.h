#pragma once
/* The tar format: ustar with pax headers (POSIX.1-2017, pax, "ustar Interchange Format"), and GNU long names when
 * reading. Pure: bytes in, entries out.
 *
 * Our own, because libarchive costs the server more than it has: loading it takes 3.2 MB of memory (16 libraries), of
 * which 1.7 MB stay when it is unloaded, and it unpacks by way of the process's working folder, which threads share. */
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum { CP_TAR_BLOCK = 512, CP_TAR_META_MAX = 64 * 1024 };

typedef enum { CP_TAR_FILE = '0', CP_TAR_HARDLINK = '1', CP_TAR_SYMLINK = '2', CP_TAR_DIR = '5' } cp_tar_type;

typedef struct cp_tar_entry {
    char type;               /* a cp_tar_type; when reading also others as they come (devices, pipes) */
    const char *path, *link; /* without NULs; borrowed */
    uint64_t size;           /* of content: files only */
    uint32_t mode;
    int64_t mtime;
    uint64_t uid, gid;
} cp_tar_entry;

/* ---- writing ---- */

/* The header of an entry, with a pax header before it where ustar has no room. Then come e->size bytes and padding up
 * to a whole block. */
void cp_tar_put(cp_buf *out, const cp_tar_entry *e);
void cp_tar_pad(cp_buf *out, uint64_t size); /* after content of so many bytes */
void cp_tar_end(cp_buf *out);

/* ---- reading ---- */

typedef struct cp_untar_ops {
    int (*entry)(void *arg, const cp_tar_entry *e, cp_err *err);
    int (*data)(void *arg, cp_str bytes, cp_err *err); /* of the entry told last; in pieces, e->size in all */
    int (*entry_end)(void *arg, cp_err *err);          /* after the last of them, also when there are none */
} cp_untar_ops;

/* Zero-initialise with ops and arg. */
typedef struct cp_untar {
    const cp_untar_ops *ops;
    void *arg;
    char block[CP_TAR_BLOCK];
    size_t have;    /* of block */
    uint64_t left;  /* bytes of content still to come */
    unsigned pad;   /* bytes to skip then */
    char meta_type; /* content is for us: 'x', 'g', 'L', 'K'; 0: it is an entry's */
    cp_buf meta, path, link;
    bool has_path, has_link, has_size;
    uint64_t size;
    bool in_entry, ended;
} cp_untar;

/* ARCHIVE_INVALID, or what a callback has failed with. What comes after the end is ignored. */
int cp_untar_feed(cp_untar *u, cp_str bytes, cp_err *err);
int cp_untar_finish(cp_untar *u, cp_err *err); /* no more comes: was the end there? */
void cp_untar_free(cp_untar *u);
