/* Design notes. A search may take long and find much, so it is done in jobs on the io pool, each of SLICE_MS or until
 * it has filled a buffer; while one buffer is sent the next is filled, and no job runs ahead of that: memory is
 * bounded, a slow client slows its own search, and other file work gets its turn between two jobs. The first job opens
 * what is searched, so that what cannot be is an error with a status, not an event. A job cannot be cancelled: a search
 * that is given up sets `stop`, which the job sees within a step, and is freed by the job's end. */
#include "handlers/files_scan.h"

#include "base/act.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { SLICE_MS = 5, FILL = 64 * 1024, MAX_LIMIT = 1000000, DEFAULT_LIMIT = 10000 };

static void scan_free(cp_scan *s) {
    s->ctx->scans--;
    cp_walk_close(s->walk);
    cp_buf_free(&s->filling);
    cp_buf_free(&s->sending);
    free(s->given);
    s->ops->free(s);
}

void cp_scan_refuse(cp_scan *s, const cp_err *err) {
    cp_result res = {0};
    bool bad = err->code == CP_E_VALIDATION_FAILED;
    if (bad) cp_error_result(&res, err, NULL, (cp_str){0});
    else cp_files_error(&res, err, s->ops->op, s->path.given);
    cp_reply_send(s->reply, &res);
    scan_free(s);
}

/* ---- the request ---- */

static int read_glob(cp_scan *s, const cp_request *req, cp_err *err) {
    cp_str glob = {0};
    if (cp_json_str(req->body, "glob", false, &glob, err) < 0) return -1;
    if (!glob.p) return 0;
    if (!cp_glob_supported(glob)) return cp_fail_field(err, "glob", "glob knows *, ** and ?, and must not be blank");
    while (cp_str_starts(glob, CP_STR("**/"))) glob.p += 3, glob.n -= 3; /* it may begin at any folder as it is */
    if (!glob.n) glob = CP_STR("*");
    if (glob.n > CP_GLOB_MAX) return cp_fail_field(err, "glob", "glob is longer than %d bytes", CP_GLOB_MAX);
    memcpy(s->glob, glob.p, glob.n);
    return 0;
}

static int read_path(cp_scan *s, const cp_request *req, cp_err *err) {
    cp_str session, given = cp_files_body_str(req, "path");
    bool has = cp_files_session(req, &session);
    const char *why = cp_path_problem(given);
    if (why) return cp_fail_field(err, "path", "%s", why);
    s->given = cp_str_dup(given);
    s->path.given = (cp_str){s->given, given.n};
    return cp_files_locate(s->ctx, has, session, &s->path, err);
}

int cp_scan_begin(cp_scan *s, const cp_scan_ops *ops, cp_ctx *ctx, const cp_request *req, cp_reply *reply) {
    cp_err err = {0};
    s->ops = ops;
    s->ctx = ctx;
    s->reply = reply;
    s->client = cp_request_owner(req);
    s->limit = DEFAULT_LIMIT;
    int64_t most = ctx->config->max_scans;
    bool room = ctx->scans++ < most;
    if (!room) cp_fail(&err, CP_E_LIMIT_EXCEEDED, "%lld searches are under way (--max-scans)", (long long)most);
    if (room && read_path(s, req, &err) == 0 && read_glob(s, req, &err) == 0 &&
        cp_json_bool(req->body, "hidden", &s->hidden, &err) == 0 &&
        cp_json_int(req->body, "limit", 1, MAX_LIMIT, &s->limit, &err) == 0)
        return 0;
    cp_scan_refuse(s, &err);
    return -1;
}

/* ---- on the io pool ---- */

bool cp_scan_wants(const cp_scan *s, const char *relative) {
    return !s->glob[0] || cp_glob_match_whole(cp_str_of(s->glob), cp_str_of(relative));
}

cp_jw cp_scan_match(cp_scan *s, const char *relative) {
    cp_jw w = cp_jw_on(&s->filling);
    cp_autobuf cp_buf full = {0};
    size_t n = strlen(s->path.where.full);
    cp_buf_add(&full, s->path.where.full, n);
    if (*relative) {
        if (n && full.p[n - 1] != '/') cp_buf_addc(&full, '/');
        cp_buf_addz(&full, relative);
    }
    cp_jw_obj(&w);
    cp_jw_kz(&w, "type", "match");
    cp_jw_kstr(&w, "absolutePath", cp_buf_str(&full));
    cp_jw_kz(&w, "relativePath", relative);
    return w;
}

void cp_scan_match_end(cp_scan *s, cp_jw *w) {
    cp_jw_end_obj(w);
    cp_buf_addc(&s->filling, '\n');
    s->matches++;
}

/* truncated: the limit was reached, and there may be more. */
static void put_complete(cp_scan *s, bool truncated) {
    cp_jw w = cp_jw_on(&s->filling);
    cp_jw_obj(&w);
    cp_jw_kz(&w, "type", "complete");
    cp_jw_ki64(&w, "matches", s->matches);
    cp_jw_kbool(&w, "truncated", truncated);
    cp_jw_ku64(&w, "skipped", s->skipped + (s->walk ? cp_walk_skipped(s->walk) : 0));
    if (s->ops->put_totals) s->ops->put_totals(s, &w);
    cp_jw_end_obj(&w);
    cp_buf_addc(&s->filling, '\n');
    s->end = true;
}

static void scan_some(cp_scan *s) {
    uint64_t until = cp_now_ms() + SLICE_MS;
    if (!s->opened && s->ops->open(s, &s->err) < 0) return;
    s->opened = true;
    while (!s->end && s->filling.n < FILL && !atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        bool more = s->ops->step(s), enough = s->matches >= s->limit;
        if (!more || enough) put_complete(s, more);
        if (cp_now_ms() >= until) return;
    }
}

static void scan_run(cp_work *work) {
    cp_scan *s = CP_CONTAINER(work, cp_scan, work);
    if (cp_act_begin(&s->err) < 0) return;
    scan_some(s);
    cp_act_end();
}

/* ---- on the loop ---- */

static void scan_done(cp_work *work);

static void work_on(cp_scan *s) {
    s->working = true;
    cp_workers_submit_to(s->ctx->workers, CP_LANE_FILES, s->client, &s->work, scan_run, scan_done);
}

static cp_pull scan_pull(cp_source *src, size_t budget, cp_event *ev) {
    (void)budget; /* an event is small: two paths and a part of a line */
    cp_scan *s = CP_CONTAINER(src, cp_scan, src);
    if (s->at == s->sending.n && s->full) {
        cp_buf was = s->sending;
        s->sending = s->filling;
        s->filling = was;
        cp_buf_clear(&s->filling);
        s->at = 0;
        s->full = false;
        if (!s->end) work_on(s);
    }
    if (s->at == s->sending.n) return !s->working && s->end ? CP_PULL_END : CP_PULL_WAIT;
    const char *begin = s->sending.p + s->at, *newline = memchr(begin, '\n', s->sending.n - s->at);
    cp_jw_raw(&ev->w, (cp_str){begin, (size_t)(newline - begin)});
    s->at += (size_t)(newline - begin) + 1;
    return CP_PULL_EVENT;
}

static void scan_close(cp_source *src, cp_end why, bool kill) {
    (void)why, (void)kill;
    cp_scan *s = CP_CONTAINER(src, cp_scan, src);
    s->closed = true;
    s->src.wake = NULL;
    atomic_store(&s->stop, true);
    if (!s->working || cp_workers_withdraw(&s->work)) scan_free(s);
}

static bool scan_cancel(cp_reply *reply, cp_end why, bool kill) {
    cp_scan *s = reply->handler;
    s->reply = NULL;
    scan_close(&s->src, why, kill);
    return false;
}

static void scan_done(cp_work *work) {
    cp_scan *s = CP_CONTAINER(work, cp_scan, work);
    s->working = false;
    if (s->closed) {
        scan_free(s);
        return;
    }
    if (s->err.code) {
        cp_scan_refuse(s, &s->err);
        return;
    }
    s->full = s->filling.n > 0;
    if (!s->full && !s->end) work_on(s);
    if (s->streaming) {
        cp_source_wake(&s->src);
    } else {
        s->streaming = true;
        cp_reply_stream(cp_take(s->reply), &s->src);
    }
}

void cp_scan_start(cp_scan *s) {
    static const cp_source_ops ops = {.pull = scan_pull, .close = scan_close};
    s->src.ops = &ops;
    s->reply->handler = s;
    s->reply->on_cancel = scan_cancel;
    work_on(s);
}
