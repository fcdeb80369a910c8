#pragma once
/* One file, up or down, over lost connections. */
#include "cli/cli.h"
#include "cli/progress.h"

/* ---- up: pieces of an upload, which the server appends by offset and publishes at the end ---- */

typedef struct cli_upload {
    const char *path;
    const char *perm; /* octal text; NULL: as it comes out */
    char id[129];
    int fd;          /* what is read */
    bool seekable;   /* an upload of this id that is there already is gone on with */
    uint64_t offset; /* bytes that the server has */
    cli_progress *progress;
} cli_upload;
/* CLI_OK, or an exit status with everything said. */
int cli_upload_run(cli *c, cli_upload *u);

/* ---- down ---- */

typedef struct cli_download {
    const char *path;
    int fd;          /* what is written */
    uint64_t offset; /* bytes that are there already */
    char etag[80];   /* of the file they are of; "" at the beginning. Filled in by cli_download_look */
    uint64_t size;
    int64_t mode;
    cli_progress *progress;
} cli_download;
/* The size, mode and etag of the file. CLI_REFUSED when it is none. */
int cli_download_look(cli *c, cli_download *d);
int cli_download_run(cli *c, cli_download *d);

/* "/api/files/raw?path=…", with the session. */
void cli_file_path(const cli *c, const char *route, const char *path, cp_buf *out);
/* /api/files/stat. 1: there, *a says what; 0: there is nothing; -1: an exit status is in *status, everything said. */
int cli_stat(cli *c, const char *path, bool follow, cli_answer *a, int *status);
