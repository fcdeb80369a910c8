#pragma once
/* Uploads in pieces (conflux-additions.md, "Files"): blocking, any thread but for open and close. */
#include "services/files.h"
#include "services/services.h"

typedef struct cp_uploads cp_uploads;

enum { CP_UPLOAD_ID_MAX = 128, CP_UPLOAD_IDLE_S = 300 };

/* For <state>/uploads, where former servers have left theirs; begins to clear away what is abandoned. Loop; what s
 * points to outlives the work on the io pool. */
cp_uploads *cp_uploads_open(cp_services *s);
void cp_uploads_close(cp_uploads *u); /* nothing may be running but its own work; NULL is fine. Loop */

bool cp_upload_id_valid(cp_str id); /* 1..128 of [A-Za-z0-9_.:-] */

typedef struct cp_upload_piece {
    cp_str id;
    cp_str given; /* the path as the client wrote it */
    uint64_t offset;
    cp_str data;
    bool final;     /* publish: sync, rename */
    cp_owner owner; /* with final */
} cp_upload_piece;

typedef struct cp_upload_state {
    char path[CP_PATH_MAX]; /* as the client wrote it */
    uint64_t size;          /* bytes received */
    bool complete;          /* published */
} cp_upload_state;

/* Appends a piece; *state is how the upload then stands, and is filled also for OFFSET_CONFLICT (an upload nobody has
 * heard of has size 0). The last piece may be sent again: it is answered as the first time. Other errors:
 * VALIDATION_FAILED (the id belongs to another path), LIMIT_EXCEEDED, NO_SPACE and the like; what was received before
 * is kept. */
int cp_upload_put(cp_uploads *u, const cp_where *w, const cp_upload_piece *piece, cp_upload_state *state, cp_err *err);
/* UPLOAD_NOT_FOUND. */
int cp_upload_get(cp_uploads *u, cp_str id, cp_upload_state *state, cp_err *err);

/* Removes what is abandoned: idle for --upload-age; and, where so many more uploads and bytes would not fit into
 * --max-uploads and --upload-bytes, those idle longest, if for CP_UPLOAD_IDLE_S. */
void cp_uploads_sweep(cp_uploads *u, uint64_t uploads, uint64_t bytes);
