#pragma once
/* File watching on real folders, through the router (cloudflare-sandbox.md section 3.5). The loop runs only inside
 * `until`: what a test does to the files between two of them is all there before any event is read. */
#include "component/disk.h"
#include "component/handlers_client.h"
#include "component/until.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "services/files_impl.h"
#include "services/watch_impl.h"

static struct {
    cp_services svc;
    cp_config config;
    cp_ctx ctx;
    cp_loop *loop;
    char dir[64], workspace[96];
} fx;
static client d = {.reply = {.ops = &client_ops}}; /* a second one */

#define until(condition) loop_until(fx.loop, condition)

static inline int setup(void **state) {
    (void)state;
    cp_err err = {0};
    temp_dir_new(fx.dir, "watch_test");
    snprintf(fx.workspace, sizeof fx.workspace, "%s/work", fx.dir);
    assert_int_equal(mkdir(fx.workspace, 0700), 0);
    fx.loop = cp_loop_new(&err);
    fx.config.max_watches = 64;
    fx.svc = (cp_services){.loop = fx.loop, .config = &fx.config, .workspace = fx.workspace};
    fx.svc.workers = cp_workers_new(fx.loop, 2, &err);
    fx.svc.files = cp_files_open("", &err);
    fx.ctx = (cp_ctx){.loop = fx.loop, .workers = fx.svc.workers, .svc = &fx.svc, .config = &fx.config};
    fx.ctx.router = client_router = cp_router_new(&fx.ctx, &err);
    assert_non_null(client_router);
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    client_reset(&c);
    client_reset(&d);
    cp_watches_close(&fx.svc);
    cp_workers_free(fx.svc.workers);
    for (int i = 0; i < 5; i++) cp_loop_once(fx.loop, 0); /* what the workers have posted */
    cp_router_free(client_router);
    cp_files_close(fx.svc.files);
    cp_loop_free(fx.loop);
    return temp_dir_remove(fx.dir);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* ---- files; a name is below the workspace ---- */

static inline const char *at_path(const char *name) {
    static char paths[4][CP_PATH_MAX];
    static unsigned turn;
    char *p = paths[turn++ % 4];
    snprintf(p, CP_PATH_MAX, "%s/%s", fx.workspace, name);
    return p;
}
static inline void make_dir(const char *name) { assert_int_equal(mkdir(at_path(name), 0700), 0); }
static inline void put(const char *name, const char *data) {
    cp_autofd int fd = open(at_path(name), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(cp_write_all(fd, data, strlen(data)), 0);
}
static inline void rename_to(const char *from, const char *to) {
    assert_int_equal(rename(at_path(from), at_path(to)), 0);
}
static inline void delete_file(const char *name) { assert_int_equal(unlink(at_path(name)), 0); }
static inline void delete_dir(const char *name) { assert_int_equal(rmdir(at_path(name)), 0); }

/* ---- streams ---- */

/* In the JSON, @ stands for the workspace. */
static inline void ask_for(client *k, const char *route, const char *json) {
    cp_autobuf cp_buf body = {0};
    for (const char *p = json; *p; p++) {
        if (*p == '@') cp_buf_addz(&body, fx.workspace);
        else cp_buf_addc(&body, *p);
    }
    ask(k, CP_POST, route, cp_buf_z(&body));
}

static inline void begin(client *k, const char *json) {
    ask_for(k, "/api/watch", json);
    until(k->src || k->res.status);
    if (!k->src) fail_msg("%s: %s", text(k, "/code"), text(k, "/message"));
    assert_string_equal(pull(k), "watching");
}

/* Pulls the next thing that is not WAIT. */
static inline const char *next(client *k) {
    for (;;) {
        unsigned seen = k->wakes;
        const char *type = pull(k);
        if (strcmp(type, "WAIT") != 0) return type;
        until(k->wakes != seen);
    }
}

static inline void version_of(client *k, char out[128]) {
    until(k->res.status);
    assert_int_equal(k->res.status, 200);
    snprintf(out, 128, "%s", text(k, "/version"));
}
