#pragma once
/* Calls the file handlers as the router does, without it: a temporary folder, requests from JSON text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sha.h"
#include "component/disk.h"
#include "handlers/families.h"
#include "services/files_impl.h"
#include "services/session.h"

static struct {
    cp_services svc;
    cp_config config;
    cp_ctx ctx;
    char dir[64]; /* also the workspace */
    char session_cwd[CP_PATH_MAX];
    cp_result res;   /* of the last call */
    yyjson_doc *doc; /* its body */
} fx;

/* The session service's only part here. */
void cp_session_cwd(cp_services *s, cp_str id, char out[4096]) {
    snprintf(out, 4096, "%s", cp_str_is(id, "moved") ? fx.session_cwd : s->workspace);
}

static inline void fx_forget(void) {
    cp_result_free(&fx.res);
    yyjson_doc_free(fx.doc);
    fx.doc = NULL;
}

static inline void fx_root(const char *root) {
    cp_err err = {0};
    cp_files_close(fx.svc.files);
    fx.svc.files = cp_files_open(root, &err);
    if (!fx.svc.files) fail_msg("%s", err.msg);
}

static inline int fx_setup(void **state) {
    (void)state;
    temp_dir_new(fx.dir, "conflux-files");
    fx.svc.workspace = fx.dir;
    fx.svc.config = &fx.config;
    fx.ctx = (cp_ctx){.svc = &fx.svc, .config = &fx.config};
    fx_root("");
    return 0;
}

static inline int fx_teardown(void **state) {
    (void)state;
    fx_forget();
    cp_files_close(fx.svc.files);
    fx.svc.files = NULL;
    return temp_dir_remove(fx.dir);
}

static inline const cp_route *fx_route(cp_method method, const char *path) {
    for (size_t i = 0; i < cp_files_nroutes; i++)
        if (cp_files_routes[i].method == method && strcmp(cp_files_routes[i].pattern, path) == 0)
            return &cp_files_routes[i];
    fail_msg("no route %s", path);
    return NULL;
}

/* A body that would be made while it is sent. */
static inline void fx_drain(void) {
    cp_body_source *b = cp_take(fx.res.source);
    char piece[4096];
    for (ssize_t n; b && (n = cp_body_source_read(b, piece, sizeof piece)) != 0;) {
        assert_true(n > 0);
        cp_buf_add(&fx.res.body, piece, (size_t)n);
    }
    if (b) b->close(b);
}

/* Serves req; the status. The body is in fx.res, parsed in fx.doc where it is JSON. */
static inline int fx_serve(const cp_route *route, const cp_request *req) {
    cp_err err = {0};
    fx_forget();
    if (route->sync(&fx.ctx, req, &fx.res, &err) < 0) {
        cp_result_free(&fx.res);
        cp_error_result(&fx.res, &err, err.code == CP_E_VALIDATION_FAILED ? NULL : route->op, (cp_str){0});
    }
    if (!fx.res.type && fx.res.source) fx_drain();
    if (!fx.res.type && fx.res.body.n) {
        fx.doc = yyjson_read(fx.res.body.p, fx.res.body.n, 0);
        assert_non_null(fx.doc);
    }
    return fx.res.status;
}

static inline int fx_post_str(const char *path, cp_str json) {
    yyjson_doc *doc = yyjson_read(json.p, json.n, 0);
    if (!doc) fail_msg("not JSON: %.*s", (int)json.n, json.p);
    cp_request req = {.method = CP_POST, .path = cp_str_of(path), .body = yyjson_doc_get_root(doc)};
    int status = fx_serve(fx_route(CP_POST, path), &req);
    yyjson_doc_free(doc);
    return status;
}

/* In the format, each @ stands for the temporary folder. */
__attribute__((format(printf, 2, 3))) static inline int fx_post(const char *path, const char *fmt, ...) {
    cp_autobuf cp_buf json = {0};
    va_list ap;
    char buf[16384];
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    for (const char *p = buf; *p; p++) {
        if (*p == '@') cp_buf_addz(&json, fx.dir);
        else cp_buf_addc(&json, *p);
    }
    return fx_post_str(path, cp_buf_str(&json));
}

/* "a.b" of the last body; NULL when absent. */
static inline yyjson_val *fx_get(const char *path) {
    yyjson_val *v = yyjson_doc_get_root(fx.doc);
    char copy[128], *save, *part;
    snprintf(copy, sizeof copy, "%s", path);
    for (part = strtok_r(copy, ".", &save); part && v; part = strtok_r(NULL, ".", &save))
        v = *part >= '0' && *part <= '9' ? yyjson_arr_get(v, (size_t)(*part - '0')) : yyjson_obj_get(v, part);
    return v;
}
static inline const char *fx_str(const char *path) {
    const char *s = yyjson_get_str(fx_get(path));
    return s ? s : "(none)";
}
static inline int64_t fx_num(const char *path) {
    yyjson_val *v = fx_get(path);
    return yyjson_is_int(v) ? yyjson_get_sint(v) : -1;
}

/* The path of a name in the temporary folder; static storage, four at a time. */
static inline const char *fx_path(const char *name) {
    static char paths[4][CP_PATH_MAX];
    static unsigned at;
    char *p = paths[at++ % 4];
    snprintf(p, CP_PATH_MAX, "%s/%s", fx.dir, name);
    return p;
}

static inline void fx_put(const char *name, const void *data, size_t n, mode_t mode) {
    cp_autofd int fd = open(fx_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(cp_write_all(fd, data, n), 0);
    assert_int_equal(fchmod(fd, mode), 0);
}

static inline void fx_holds(const char *name, const void *data, size_t n) {
    char *p = NULL;
    size_t got = 0;
    assert_int_equal(cp_read_file(fx_path(name), (size_t)1 << 30, &p, &got), 0);
    assert_int_equal(got, n);
    assert_memory_equal(p, data, n);
    free(p);
}

static inline unsigned fx_entries(const char *name) {
    unsigned n = 0;
    cp_autodir DIR *d = opendir(fx_path(name));
    assert_non_null(d);
    while (cp_dir_next(d)) n++;
    return n;
}

static inline bool fx_there(const char *name) {
    struct stat st;
    return lstat(fx_path(name), &st) == 0;
}

static inline mode_t fx_mode(const char *name) {
    struct stat st;
    assert_int_equal(stat(fx_path(name), &st), 0);
    return st.st_mode & 07777;
}
