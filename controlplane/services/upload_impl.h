#pragma once
/* Shared by upload*.c. See upload.c for the design. */
#include <stdatomic.h>

#include "services/files_impl.h"
#include "services/upload.h"

struct cp_uploads {
    cp_services *svc;
    atomic_bool made;            /* there has been a folder of the records since the start */
    _Atomic int64_t open, bytes; /* unfinished ones, as of the last sweep and what came since */
    atomic_flag sweeping;
    cp_timer timer;
    cp_work work; /* the sweep on the io pool */
    bool working, closed;
};

/* A record, locked while it is open. */
typedef struct cp_upload {
    int fd;
    char file[CP_UPLOAD_ID_MAX + 3]; /* its name in the folder */
    bool begun;                      /* it says what it is about */
    char temp[40], full[CP_PATH_MAX];
    off_t head;   /* length of that part */
    bool last;    /* all has been received, the rename was next */
    bool present; /* the temporary file is there */
    time_t moved; /* when it last grew */
    cp_upload_state state;
} cp_upload;
#define CP_UPLOAD_EMPTY ((cp_upload){.fd = -1})
static inline void cp_autoupload_(cp_upload *p) { cp_close(&p->fd); }
#define cp_autoupload __attribute__((cleanup(cp_autoupload_)))

/* What a record says: begun, paths, head, last; state.size as it was when all had been received. False: it is
 * empty, as before anything had been received, or no record. Pure. */
bool cp_upload_record_parse(cp_str text, cp_upload *out);
/* The folder of the records, for the caller to close; made when it is first needed (a full disk must not keep a server
 * from starting), and again when it is gone. -1 with errno. */
int cp_uploads_dir(cp_uploads *u);

/* CREATE: it need not be there; WAIT for the lock; TRY: EWOULDBLOCK when somebody has it; PEEK: read it without. */
typedef enum { CP_UPLOAD_CREATE, CP_UPLOAD_WAIT, CP_UPLOAD_TRY, CP_UPLOAD_PEEK } cp_upload_how;
/* Opens, locks and reads a record. 1; 0 when there is none, or a file that is none; -1 with errno. What stands in the
 * place of one that a client asks for (CREATE, and WAIT where it is no file) is moved aside. */
int cp_upload_open(cp_uploads *u, const char *file, cp_upload_how how, cp_upload *out);
/* The record and its temporary file; the counts are the caller's. */
void cp_upload_remove(cp_uploads *u, cp_upload *p);
