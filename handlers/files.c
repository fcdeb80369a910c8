#include "handlers/families.h"
#include "handlers/files_impl.h"

#define POST_IO(path, op, fn, summary)                                                                                 \
    { CP_POST, path, CP_R_IO | CP_R_BODY, op, fn, NULL, summary }
#define POST_STREAM(path, op, fn, summary)                                                                             \
    { CP_POST, path, CP_R_LOOP | CP_R_LASTS | CP_R_BODY, op, NULL, fn, summary }

const cp_route cp_files_routes[] = {
    POST_IO("/api/read", "file.read", cp_files_read, "Content of a file, or of a part of it"),
    POST_STREAM("/api/read/stream", "file.readStream", cp_files_read_stream,
                "Content of a file of any size, as a stream"),
    POST_IO("/api/write", "file.write", cp_files_write,
            "Write or append to a file, or a piece of an upload; parents are created"),
    POST_IO("/api/delete", "file.delete", cp_files_delete, "Delete a file"),
    POST_IO("/api/rename", "file.rename", cp_files_rename, "Rename a file or folder, as mv"),
    POST_IO("/api/move", "file.move", cp_files_move, "Move a file or folder, as mv"),
    POST_IO("/api/mkdir", "directory.create", cp_files_mkdir, "Make a folder"),
    POST_IO("/api/list-files", "directory.list", cp_files_list, "Entries of a folder"),
    POST_IO("/api/exists", "file.exists", cp_files_exists, "Is there something at this path?"),
    {CP_GET, "/api/files/raw", CP_R_IO | CP_R_HTTP_ONLY, "file.rawRead", cp_files_raw_get, NULL,
     "Bytes of a file of any size; Range, ETag"},
    {CP_PUT, "/api/files/raw", CP_R_IO | CP_R_RAW_BODY | CP_R_HTTP_ONLY, "file.rawWrite", cp_files_raw_put, NULL,
     "Replace a file by the request's body, complete or not at all"},
    {CP_GET, "/api/files/archive", CP_R_IO | CP_R_HTTP_ONLY, "file.archiveRead", cp_files_archive_get, NULL,
     "A folder as a tar archive, in gzip where that is accepted"},
    {CP_PUT, "/api/files/archive", CP_R_IO | CP_R_RAW_BODY | CP_R_HTTP_ONLY, "file.archiveWrite", cp_files_archive_put,
     NULL, "Unpack a tar archive, plain or gzip, into a folder"},
    {CP_GET, "/api/files/upload/{uploadId}", CP_R_IO, "file.upload", cp_files_upload_get, NULL,
     "How far a chunked upload has come"},
    POST_IO("/api/files/stat", "file.stat", cp_files_stat, "Type, size, owner and times of a path"),
    POST_IO("/api/files/chmod", "file.chmod", cp_files_chmod, "Change permission bits"),
    POST_IO("/api/files/chown", "file.chown", cp_files_chown, "Change the owner"),
    POST_IO("/api/files/copy", "file.copy", cp_files_copy, "Copy a file or folder, as cp"),
    POST_STREAM("/api/files/search", "file.search", cp_files_search, "Find files by name, as a stream"),
    POST_STREAM("/api/files/grep", "file.grep", cp_files_grep, "Find lines in files, as a stream"),
    POST_IO("/api/files/replace", "file.replace", cp_files_replace, "Replace texts in a file, all or none"),
    POST_IO("/api/files/batch", "file.batch", cp_files_batch, "Many file operations, a result for each"),
};
const size_t cp_files_nroutes = CP_COUNT(cp_files_routes);
