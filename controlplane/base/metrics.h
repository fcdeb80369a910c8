#pragma once
/* Counters, gauges and latency histograms, exported as Prometheus text (exposition format 0.0.4). The fixed metrics
 * are the table schema/metrics.def; per-route request metrics are registered by the router. All updates are relaxed
 * atomics: any thread, never blocking. */
#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"

typedef enum cp_metric_id {
#define X(id, type, name, help) CP_M_##id,
#include "schema/metrics.def"
#undef X
    CP_M_COUNT
} cp_metric_id;

extern _Atomic int64_t cp_metric_values[CP_M_COUNT];
static inline void cp_metric_add(cp_metric_id id, int64_t by) {
    atomic_fetch_add_explicit(&cp_metric_values[id], by, memory_order_relaxed);
}
static inline void cp_metric_set(cp_metric_id id, int64_t v) {
    atomic_store_explicit(&cp_metric_values[id], v, memory_order_relaxed);
}

/* Latency histogram with fixed buckets from 50 µs to 60 s. */
#define CP_HIST_BUCKETS 18
typedef struct cp_hist {
    _Atomic uint64_t bucket[CP_HIST_BUCKETS + 1]; /* last: +Inf */
    _Atomic uint64_t sum_us;
} cp_hist;
void cp_hist_add(cp_hist *h, uint64_t us);

/* Appends the fixed metrics. */
void cp_metrics_write(cp_buf *out);
/* Appends one histogram with its labels ("" or `route="/api/execute"`). Call cp_metric_head first, once per name. */
void cp_metric_head(cp_buf *out, const char *name, const char *type, const char *help);
void cp_hist_write(cp_buf *out, const char *name, const char *labels, const cp_hist *h);
