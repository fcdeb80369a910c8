#pragma once
/* The handlers of the files family, for its table. */
#include "handlers/files_args.h"

/* One piece of a file on the wire: divisible by three, so that base64 pieces can be put one after another. */
enum { CP_FILE_CHUNK = 65535 };

/* clang-format off */
#define CP_FILES_HANDLERS(X) \
    X(read) X(write) X(delete) X(rename) X(move) X(mkdir) X(list) X(exists) X(raw_get) X(raw_put) X(stat) X(chmod) \
    X(chown) X(copy) X(upload_get) X(replace) X(batch) X(archive_get) X(archive_put)
/* clang-format on */
#define X(name) int cp_files_##name(cp_ctx *ctx, const cp_request *req, cp_result *res, cp_err *err);
CP_FILES_HANDLERS(X)
#undef X
void cp_files_read_stream(cp_ctx *ctx, const cp_request *req, cp_reply *reply);
void cp_files_search(cp_ctx *ctx, const cp_request *req, cp_reply *reply);
void cp_files_grep(cp_ctx *ctx, const cp_request *req, cp_reply *reply);

/* Fields of /api/write that make it a piece of an upload; id.p is NULL when it is none. */
typedef struct cp_files_piece {
    cp_str id;
    uint64_t offset;
    bool final;
} cp_files_piece;
int cp_files_piece_args(const cp_request *req, const cp_write_spec *spec, cp_files_piece *piece, cp_err *err);
int cp_files_upload(cp_ctx *ctx, const cp_files_path *p, const cp_write_spec *spec, const cp_files_piece *piece,
                    cp_result *res);
