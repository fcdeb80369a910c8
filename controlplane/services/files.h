#pragma once
/* File operations: blocking, any thread, no loop. With a file root every one of them is confined to it: paths are
 * resolved by openat2 with RESOLVE_BENEATH, and what follows works on the folder so found, so that no exchange of a
 * component in the meantime leads outside (design.md section 11).
 *
 * Errors carry the errno in err->sys and a precise code; a path that leaves the root is PERMISSION_DENIED with EXDEV.
 */
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "services/files_temps.h"
#include "services/path.h"

typedef struct cp_files cp_files;

enum { CP_READ_MAX = 32 * 1024 * 1024 };

/* root: the folder to confine to, "" for none. NULL when it is no folder or the kernel lacks openat2. */
cp_files *cp_files_open(const char *root, cp_err *err);
void cp_files_close(cp_files *f); /* no operation may be running */
/* Where the temporaries of the operations are recorded from now on; NULL: nowhere, as at first. Borrowed; no
 * operation may be running. */
void cp_files_record(cp_files *f, cp_temps *temps);

/* A place in the file system, as text: nothing is resolved yet. */
typedef struct cp_where {
    const cp_files *files;
    char full[CP_PATH_MAX]; /* absolute, as it is shown */
    const char *path;       /* what the kernel is given: full itself, or its rest behind the root */
} cp_where;
/* base: absolute folder that a relative path starts from. -1: outside the root, or too long. A cp_where must not be
 * moved. */
int cp_where_init(cp_where *w, const cp_files *f, const char *base, cp_str path, cp_err *err);

/* Opens for reading without ever waiting: a regular file (also one of /proc, whose size says 0). The fd, or -1;
 * IS_DIRECTORY for a folder, FILESYSTEM_ERROR for a pipe, device or socket. */
int cp_file_open(const cp_where *w, struct stat *st, cp_err *err);

int cp_file_exists(const cp_where *w);              /* follows links; every failure is false */
int cp_file_delete(const cp_where *w, cp_err *err); /* the link, not its target; IS_DIRECTORY */
int cp_file_mkdir(const cp_where *w, bool recursive, cp_err *err);

/* ---- writing ---- */

typedef struct cp_owner {
    int64_t mode, uid, gid; /* -1: as it was, or as it comes out for a new file (umask, our own ids) */
} cp_owner;
#define CP_OWNER_KEEP ((cp_owner){-1, -1, -1})

typedef struct cp_write_spec {
    cp_str data;
    cp_owner owner;
    bool atomic; /* temporary file and rename where that keeps what the target is; else, or when false: in place */
    bool append; /* in place; one write */
} cp_write_spec;
/* Creates missing parents. Not synced to the disk: a crash of the machine may lose it (never a part of an atomic one).
 * Links are written through; hard-linked and special files, and mount points, are written in place. */
int cp_file_write(const cp_where *w, const cp_write_spec *spec, cp_err *err);

/* A file being written beside its target, published by rename. Zero-initialised with CP_STAGE_EMPTY; abort is safe in
 * every state and after commit. */
typedef struct cp_stage {
    int dir, fd;
    char name[CP_NAME_MAX + 1]; /* of the target in dir */
    char temp[40];              /* of the temporary file in dir; "" when there is none */
    cp_temp record;             /* of it, unless it outlives the request */
    bool exists;                /* the target did when the stage was opened */
    struct stat old;            /* if so */
} cp_stage;
#define CP_STAGE_EMPTY ((cp_stage){.dir = -1, .fd = -1})
int cp_stage_open(cp_stage *s, const cp_where *w, bool parents, cp_err *err); /* stage->fd is then writable */
int cp_stage_commit(cp_stage *s, const cp_owner *owner, bool sync, struct stat *st, cp_err *err);
void cp_stage_abort(cp_stage *s);
/* A stage that outlives its request: open_as makes the temporary file under this name (`create`: it must not be there),
 * or opens it again (ENOENT in err->sys: it is not); missing parents are created with it. keep closes the stage and
 * leaves the file. */
int cp_stage_open_as(cp_stage *s, const cp_where *w, const char *temp, bool create, cp_err *err);
void cp_stage_keep(cp_stage *s);
#define cp_autostage __attribute__((cleanup(cp_stage_abort)))

/* ---- moving and copying ---- */

/* As mv: into an existing folder, else to that name, replacing what is there; across file systems by copying.
 * FILE_NOT_FOUND with err->field "source" when the source is not there. */
int cp_file_move(const cp_where *from, const cp_where *to, cp_err *err);
typedef struct cp_copy_spec {
    bool recursive, overwrite;
} cp_copy_spec;
/* As cp: into an existing folder, else to that name. FILE_EXISTS unless overwrite; IS_DIRECTORY unless recursive. Links
 * are copied as links. A copy to a new name appears complete or not at all. *bytes: of file content copied. */
int cp_file_copy(const cp_where *from, const cp_where *to, const cp_copy_spec *spec, uint64_t *bytes, cp_err *err);

/* ---- looking ---- */

int cp_file_stat(const cp_where *w, bool follow, struct stat *st, cp_buf *target, cp_err *err); /* target of a link */
int cp_file_chmod(const cp_where *w, mode_t mode, bool recursive, cp_err *err);
int cp_file_chown(const cp_where *w, int64_t uid, int64_t gid, bool recursive, cp_err *err); /* -1: as it is */

/* "rwxr-xr-x" and "2026-11-27T20:25:27.5233031890" (local time), as find prints them; an entity tag with its quotes. */
void cp_file_mode_text(mode_t mode, char out[10]);
void cp_file_time_text(struct timespec t, char out[40]);
void cp_file_etag(const struct stat *st, char out[64]);
