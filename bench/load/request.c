#include "load/request.h"

#include "base/clock.h"

enum { PARTS_MAX = 32, LINE = 77 };

typedef enum { TEXT, OFFSET, LAST, ID, DATA } part_kind;

static const struct {
    const char *name;
    part_kind kind;
} words[] = {{"$OFFSET", OFFSET}, {"$LAST", LAST}, {"$ID", ID}, {"$DATA", DATA}};

static struct {
    part_kind kind;
    cp_str text;
} parts[PARTS_MAX];
static size_t nparts;
static cp_buf data;
static uint64_t run; /* tells the ids of this run from those of an earlier one */

static void add_part(part_kind kind, cp_str text) {
    if (kind == TEXT && !text.n) return;
    if (nparts == PARTS_MAX) die("--body has too many variables");
    parts[nparts].kind = kind;
    parts[nparts++].text = text;
}

static void make_data(size_t n) {
    for (size_t i = 1; i <= n; i++) {
        if (i % LINE) cp_buf_addc(&data, 'A');
        else cp_buf_addz(&data, "\\n");
    }
}

void request_prepare(void) {
    const char *from = opt.body, *at = from;
    run = cp_now_us();
    while (at && (at = strchr(at, '$'))) {
        size_t i = 0;
        while (i < CP_COUNT(words) && strncmp(at, words[i].name, strlen(words[i].name)) != 0) i++;
        if (i == CP_COUNT(words)) {
            at++;
            continue;
        }
        add_part(TEXT, (cp_str){from, (size_t)(at - from)});
        add_part(words[i].kind, (cp_str){0});
        if (words[i].kind == DATA && !data.n) make_data((size_t)opt.step_size);
        from = at += strlen(words[i].name);
    }
    if (from) add_part(TEXT, cp_str_of(from));
}

bool request_fixed(void) { return nparts == 0 || (nparts == 1 && parts[0].kind == TEXT); }

bool request_has_body(void) { return opt.body != NULL; }

void request_body(cp_buf *out, uint64_t op, uint64_t step) {
    for (size_t i = 0; i < nparts; i++) {
        switch (parts[i].kind) {
        case TEXT: cp_buf_add(out, parts[i].text.p, parts[i].text.n); break;
        case OFFSET: cp_buf_addu(out, step * (uint64_t)opt.step_size); break;
        case LAST: cp_buf_addz(out, step + 1 == (uint64_t)opt.steps ? "true" : "false"); break;
        case ID: cp_buf_addu(out, run + op); break;
        case DATA: cp_buf_add(out, data.p, data.n); break;
        }
    }
}
