/* What the kernel says of processes, sockets and control groups: names in it are the workload's. Input: one byte that
 * says what the rest is the text of. */
#include <stdio.h>
#include <stdlib.h>

#include "base/proc_stat.h"
#include "handlers/port_probe.h"
#include "services/ports.h"
#include "services/session_script.h"
#include "services/usage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

/* Whatever the text is, it is read or refused; and a process whose name it is, is read right. */
static void stat_file(const char *text) {
    cp_proc_stat st;
    cp_autobuf cp_buf line = {0};
    if (cp_proc_stat_parse(text, &st)) require(st.state != 0);
    cp_buf_addf(&line, "7 (%.60s) S 3 4 5 0 -1 1 2 3 4 5 60 70 8 9 20 0 1 0 12345 99 2 18446744073709551615 1 1\n",
                text);
    require(cp_proc_stat_parse(cp_buf_z(&line), &st));
    require(st.ppid == 3 && st.group == 4 && st.session == 5 && st.state == 'S');
    require(st.start_time == 12345 && st.cpu_ticks == 130);
}

static void sockets(const char *text) {
    for (int v6 = 0; v6 < 2; v6++) {
        cp_ports p = {0};
        size_t lines = 1;
        for (const char *c = text; *c; c++) lines += *c == '\n';
        cp_ports_parse(&p, text, v6);
        require(p.n <= lines);
        for (size_t i = 0; i < p.n; i++) {
            cp_autobuf cp_buf again = {0};
            require(p.v[i].v6 == (bool)v6 && p.v[i].address[0]);
            cp_buf_addf(&again, "%s", p.v[i].address);
            require(!!strchr(cp_buf_z(&again), ':') == (bool)v6);
        }
        cp_ports_free(&p);
    }
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (cp_port_line_listens(line, 3000))
            require(strstr(line, "0BB8") || strstr(line, "bB8") || strcasestr(line, "BB8"));
        if (!*line) break;
    }
}

static void numbers(const char *text) {
    static const char *const names[] = {"", "MemTotal", "usage_usec", "cpu"};
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        uint64_t n;
        if (cp_usage_number(text, names[i], &n)) require(strpbrk(text, "0123456789") && strstr(text, names[i]));
    }
    require(!cp_usage_number(NULL, "", &(uint64_t){0}));
}

static void groups(const char *text) {
    static const char *const controllers[] = {"", "cpu", "memory"};
    for (size_t i = 0; i < CP_COUNT(controllers); i++) {
        char path[1024];
        memset(path, 'x', sizeof path);
        if (!cp_usage_group(text, controllers[i], path)) continue;
        require(memchr(path, 0, sizeof path) && !strchr(path, '\n') && strcmp(path, "/") != 0);
        require(strstr(text, path) != NULL);
    }
}

static void limits(const char *text, size_t n) {
    uint64_t soft, hard;
    if (cp_mark_limits((cp_str){text, n}, &soft, &hard)) require(memmem(text, n, "\nMax file locks", 15));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    cp_autofree char *text = malloc(size); /* of the exact size, its NUL included */
    if (!text) abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (data[0] % 6) {
    case 0: stat_file(text); break;
    case 1: sockets(text); break;
    case 2: numbers(text); break;
    case 3: groups(text); break;
    case 4: limits(text, size - 1); break;
    case 5: (void)cp_script_trapped(text); break;
    }
    return 0;
}
