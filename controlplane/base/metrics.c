#include "base/metrics.h"

#include <stdio.h>

_Atomic int64_t cp_metric_values[CP_M_COUNT];

static const struct {
    const char *type, *name, *help;
} fixed[CP_M_COUNT] = {
#define X(id, type, name, help) [CP_M_##id] = {#type, name, help},
#include "schema/metrics.def"
#undef X
};

/* Upper bounds, and the same in seconds as the label has it. */
static const struct {
    uint64_t us;
    const char *le;
} bounds[CP_HIST_BUCKETS] = {
    {50, "0.00005"}, {100, "0.0001"}, {250, "0.00025"}, {500, "0.0005"},  {1000, "0.001"},  {2500, "0.0025"},
    {5000, "0.005"}, {10000, "0.01"}, {25000, "0.025"}, {50000, "0.05"},  {100000, "0.1"},  {250000, "0.25"},
    {500000, "0.5"}, {1000000, "1"},  {2500000, "2.5"}, {10000000, "10"}, {30000000, "30"}, {60000000, "60"},
};

void cp_hist_add(cp_hist *h, uint64_t us) {
    unsigned i = 0;
    while (i < CP_HIST_BUCKETS && us > bounds[i].us) i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

void cp_metric_head(cp_buf *out, const char *name, const char *type, const char *help) {
    cp_buf_addf(out, "# HELP %s ", name);
    for (; *help; help++) { /* exposition format: only these two are escaped in a help text */
        if (*help == '\\') cp_buf_addz(out, "\\\\");
        else if (*help == '\n') cp_buf_addz(out, "\\n");
        else cp_buf_addc(out, *help);
    }
    cp_buf_addf(out, "\n# TYPE %s %s\n", name, type);
}

void cp_metrics_write(cp_buf *out) {
    for (unsigned i = 0; i < CP_M_COUNT; i++) {
        int64_t v = atomic_load_explicit(&cp_metric_values[i], memory_order_relaxed);
        cp_metric_head(out, fixed[i].name, fixed[i].type, fixed[i].help);
        cp_buf_addf(out, "%s %lld\n", fixed[i].name, (long long)v);
    }
}

static void bucket_line(cp_buf *out, const char *name, const char *labels, const char *le, uint64_t count) {
    cp_buf_addf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, labels, *labels ? "," : "", le,
                (unsigned long long)count);
}

static void series(cp_buf *out, const char *name, const char *suffix, const char *labels) {
    cp_buf_addf(out, *labels ? "%s%s{%s} " : "%s%s%s ", name, suffix, labels);
}

/* The count is the sum of the buckets that were read, so that one scrape agrees with itself while others add. */
void cp_hist_write(cp_buf *out, const char *name, const char *labels, const cp_hist *h) {
    uint64_t count = 0;
    for (unsigned i = 0; i <= CP_HIST_BUCKETS; i++) {
        count += atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        bucket_line(out, name, labels, i < CP_HIST_BUCKETS ? bounds[i].le : "+Inf", count);
    }
    uint64_t sum = atomic_load_explicit(&h->sum_us, memory_order_relaxed);
    series(out, name, "_sum", labels);
    cp_buf_addf(out, "%llu.%06llu\n", (unsigned long long)(sum / 1000000), (unsigned long long)(sum % 1000000));
    series(out, name, "_count", labels);
    cp_buf_addf(out, "%llu\n", (unsigned long long)count);
}
