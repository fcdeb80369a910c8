/* What runs goes on though its row is lost: the keeper's key, /proc and the log on disk tell enough of it to list it,
 * to watch it and to end it. What they do not tell is lost: its folder, its session, its limits, and by which request
 * it was started, so a repetition of that finds it taken. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/metrics.h"
#include "services/exec_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

cp_str cp_exec_id_of_key(const char *key) { return (cp_str){key + 2, strcspn(key + 2, "/")}; }

/* What it was started with: the text of `sh -c text`, else all words. */
static char *command_of(pid_t pid) {
    enum { MOST = 64 << 10 };
    char path[40];
    cp_autofree char *text = NULL;
    size_t n = 0;
    cp_buf out = {0};
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    if (cp_read_file(path, MOST, &text, &n) < 0) n = 0;
    const char *word[3] = {0}, *at = text, *end = text + n;
    for (int i = 0; i < 3 && at < end; at += strlen(at) + 1) word[i++] = at;
    if (word[2] && strcmp(word[1], "-c") == 0) return cp_str_dup(cp_str_of(word[2]));
    for (at = text; at < end; at += strlen(at) + 1) {
        if (out.n) cp_buf_addc(&out, ' ');
        cp_buf_addz(&out, at);
    }
    (void)cp_buf_z(&out);
    return out.p;
}

static int64_t started_wall(uint64_t start_time) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    int64_t up = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    int64_t at = (int64_t)start_time * 1000 / sysconf(_SC_CLK_TCK);
    return cp_wall_ms() - (start_time && at < up ? up - at : 0);
}

static cp_exec *list(cp_exec *e) {
    static const cp_exec_row none;
    e->durable = true;
    e->chosen_id = e->kind == CP_EXEC_BUFFERED;
    e->max_output = (uint64_t)e->svc->config->max_output;
    e->started_ms = cp_now_ms();
    e->impl->told_start = true;
    cp_log(CP_LOG_WARN, "exec.adopted", "a command whose record was lost goes on", CP_KVZ("id", e->id));
    bool listed = cp_exec_outputs(e, &none, NULL) == 0;
    if (listed) cp_exec_list(e);
    cp_exec_unref(e);
    return listed ? e : NULL;
}

cp_exec *cp_exec_adopt(cp_services *s, const struct cp_held_child *h) {
    cp_str id = cp_exec_id_of_key(h->key);
    const char *rest = id.p + id.n;
    const char *kind = rest[0] == '/' && rest[1] ? strchr(CP_EXEC_KINDS, rest[1]) : NULL;
    bool known = s->registry && cp_registry_lost(s->registry);
    if (!kind || rest[2] != '/' || (h->h.exited && !known)) return NULL;
    cp_autofree char *text = cp_str_dup(id);
    cp_exec *e = cp_exec_make(s, text, (cp_exec_kind)(kind - CP_EXEC_KINDS));
    cp_str process = cp_str_of(rest + 3);
    if (!process.n || cp_exec_find_process(s, process)) process = id;
    if (e->kind != CP_EXEC_BUFFERED) e->process_id = cp_str_dup(process);
    cp_autofree char *command = cp_exec_text_load(e) ? NULL : command_of(h->h.pid);
    if (command) cp_exec_text_set(e, cp_str_of(command), NULL);
    e->started_wall = started_wall(h->h.start_time);
    return list(e);
}

cp_exec *cp_exec_adopt_foreground(cp_services *s, const char *id, const char *session) {
    cp_exec *e = cp_exec_make(s, id, CP_EXEC_BUFFERED);
    e->session = cp_str_dup(cp_str_of(session));
    if (!cp_exec_text_load(e)) cp_exec_text_set(e, CP_STR(""), NULL);
    e->started_wall = cp_wall_ms();
    if (!list(e)) return NULL;
    s->execs->running++;
    cp_metric_add(CP_M_PROCESSES, 1);
    return e;
}
