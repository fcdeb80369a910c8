#pragma once
/* A tree as a tar archive, and back: in pieces, in constant memory. Blocking; one thread at a time. */
#include <sys/types.h>

#include "services/files.h"

/* ---- packing ---- */

typedef struct cp_pack cp_pack;
/* The content of a folder (names relative to it), or one file. Links are packed as links; devices, pipes and sockets
 * are left out. FILE_NOT_FOUND and the like; LIMIT_EXCEEDED where the memory budget has no room for what it holds. When
 * much of that is in use, gzip does with a quarter of its memory, and packs a tenth less. */
cp_pack *cp_pack_open(const cp_where *w, bool gzip, cp_err *err);
/* The next bytes of the archive: > 0, 0 at the end, -1: something cannot be read, or has become shorter. What has been
 * given so far is then no whole archive, and must not look like one. */
ssize_t cp_pack_read(cp_pack *p, void *to, size_t n, cp_err *err);
void cp_pack_close(cp_pack *p); /* NULL is fine */

/* ---- unpacking ---- */

/* May a symbolic link to target be unpacked so many folders below the root? */
bool cp_unpack_link_inside(const char *target, unsigned depth);

typedef struct cp_unpack cp_unpack;
typedef struct cp_unpack_limits {
    uint64_t entries, bytes; /* as unpacked */
} cp_unpack_limits;
typedef struct cp_unpack_report {
    uint64_t entries, bytes;
} cp_unpack_report;
/* Into a folder, which is made with its parents where it is missing. Each file appears complete or not at all, and
 * replaces what has its name but a folder; folders are merged; what came before an error stays. Owners are not taken
 * over, nor set-id bits. Nothing is written, and no link made, that leads out of the folder: ARCHIVE_UNSAFE for
 * absolute names, "..", paths through links, links that lead out, devices and pipes. */
cp_unpack *cp_unpack_open(const cp_where *w, const cp_unpack_limits *limits, cp_err *err);
/* tar, or tar in gzip: told apart by their first bytes. ARCHIVE_INVALID, ARCHIVE_UNSAFE, PAYLOAD_TOO_LARGE (a limit),
 * LIMIT_EXCEEDED (the memory budget has no room for what gzip takes), and errors of the file system. */
int cp_unpack_feed(cp_unpack *u, cp_str bytes, cp_err *err);
int cp_unpack_finish(cp_unpack *u, cp_unpack_report *report, cp_err *err);
void cp_unpack_close(cp_unpack *u);
