#include "base/budget.h"

#include "base/clock.h"
#include "base/metrics.h"

#include <stdlib.h>

static const struct {
    const char *label, *words;
    unsigned share;
} kinds[CP_MEM_COUNT] = {
#define X(id, label, share, words) [CP_MEM_##id] = {label, words, share},
#include "schema/memory.def"
#undef X
};

static _Atomic uint64_t limit = SIZE_MAX / 2; /* of all kinds */
static _Atomic size_t all, held[CP_MEM_COUNT];
static _Atomic uint64_t refused[CP_MEM_COUNT], spilled;
static _Atomic uint64_t refused_at[CP_MEM_COUNT]; /* cp_now_ms of the last time; 0: never */

static uint64_t load(const _Atomic uint64_t *v) { return atomic_load_explicit(v, memory_order_relaxed); }
static size_t load_size(const _Atomic size_t *v) { return atomic_load_explicit(v, memory_order_relaxed); }

void cp_budget_open(uint64_t bytes) { atomic_store_explicit(&limit, bytes, memory_order_relaxed); }

/* Compare and exchange rather than add and take back: what is too large must not make others fail for a moment. */
static bool add_within(_Atomic size_t *counter, size_t n, uint64_t max) {
    size_t now = load_size(counter);
    do
        if (now > max || n > max - now) return false;
    while (!atomic_compare_exchange_weak_explicit(counter, &now, now + n, memory_order_relaxed, memory_order_relaxed));
    return true;
}

static int refuse(cp_mem_kind kind, size_t n, cp_err *err) {
    atomic_fetch_add_explicit(&refused[kind], 1, memory_order_relaxed);
    atomic_store_explicit(&refused_at[kind], cp_now_ms(), memory_order_relaxed);
    return cp_fail(err, CP_E_LIMIT_EXCEEDED,
                   "%zu bytes of %s have no room: %zu bytes of these and %zu in all are held, of a memory budget of "
                   "%llu bytes (--memory-budget)",
                   n, kinds[kind].words, load_size(&held[kind]), load_size(&all), (unsigned long long)load(&limit));
}

static uint64_t share_of(cp_mem_kind kind) { return load(&limit) / 100 * kinds[kind].share; }
static uint64_t for_large(void) { return load(&limit) - load(&limit) / 8; }

static int reserve(cp_mem_kind kind, size_t n, bool small, cp_err *err) {
    uint64_t whole = load(&limit), rest = for_large(), share = share_of(kind);
    if (!add_within(&held[kind], n, small ? whole : share)) return refuse(kind, n, err);
    if (add_within(&all, n, small ? whole : rest)) return 0;
    atomic_fetch_sub_explicit(&held[kind], n, memory_order_relaxed);
    return refuse(kind, n, err);
}

int cp_budget_reserve(cp_mem_kind kind, size_t n, cp_err *err) { return reserve(kind, n, n <= CP_BUDGET_SMALL, err); }

void cp_budget_force(cp_mem_kind kind, size_t n) {
    atomic_fetch_add_explicit(&held[kind], n, memory_order_relaxed);
    atomic_fetch_add_explicit(&all, n, memory_order_relaxed);
}

void cp_budget_release(cp_mem_kind kind, size_t n) {
    atomic_fetch_sub_explicit(&held[kind], n, memory_order_relaxed);
    atomic_fetch_sub_explicit(&all, n, memory_order_relaxed);
}

bool cp_budget_tight(cp_mem_kind kind) {
    return load_size(&held[kind]) > share_of(kind) || load_size(&all) > for_large();
}

bool cp_budget_half(cp_mem_kind kind) {
    return load_size(&held[kind]) > share_of(kind) / 2 || load_size(&all) > load(&limit) / 2;
}

bool cp_budget_short(cp_mem_kind kind) {
    uint64_t at = load(&refused_at[kind]);
    return cp_budget_tight(kind) || (at && cp_now_ms() - at < CP_BUDGET_SHORT_MS && cp_budget_half(kind));
}

size_t cp_budget_held(cp_mem_kind kind) { return load_size(kind == CP_MEM_COUNT ? &all : &held[kind]); }

void cp_budget_spilled(size_t n) { atomic_fetch_add_explicit(&spilled, n, memory_order_relaxed); }

/* ---- one holding ---- */

int cp_charge_set(cp_charge *c, size_t n, cp_err *err) {
    if (n > c->bytes && reserve(c->kind, n - c->bytes, n <= CP_BUDGET_SMALL, err) < 0) return -1;
    if (n < c->bytes) cp_budget_release(c->kind, c->bytes - n);
    c->bytes = n;
    return 0;
}

void cp_charge_force(cp_charge *c, size_t n) {
    if (n > c->bytes) cp_budget_force(c->kind, n - c->bytes);
    else if (n < c->bytes) cp_budget_release(c->kind, c->bytes - n);
    c->bytes = n;
}

/* ---- /metrics ---- */

void cp_budget_metrics(cp_buf *out) {
    cp_metric_head(out, "conflux_memory_budget_bytes", "gauge", "The memory budget (--memory-budget)");
    cp_buf_addf(out, "conflux_memory_budget_bytes %llu\n", (unsigned long long)load(&limit));
    cp_metric_head(out, "conflux_memory_held_bytes", "gauge", "What is held of the memory budget, by kind");
    for (unsigned i = 0; i < CP_MEM_COUNT; i++)
        cp_buf_addf(out, "conflux_memory_held_bytes{kind=\"%s\"} %zu\n", kinds[i].label, load_size(&held[i]));
    cp_metric_head(out, "conflux_memory_refused_total", "counter", "What the memory budget had no room for, by kind");
    for (unsigned i = 0; i < CP_MEM_COUNT; i++)
        cp_buf_addf(out, "conflux_memory_refused_total{kind=\"%s\"} %llu\n", kinds[i].label,
                    (unsigned long long)load(&refused[i]));
    cp_metric_head(out, "conflux_memory_spilled_bytes_total", "counter",
                   "Bytes that went to a file because the memory budget had no room");
    cp_buf_addf(out, "conflux_memory_spilled_bytes_total %llu\n", (unsigned long long)load(&spilled));
}

int cp_no_memory(cp_err *err, size_t n) {
    return cp_fail(err, CP_E_LIMIT_EXCEEDED, "the system has no memory for %zu bytes at this moment", n);
}

void *cp_try_array(size_t n, size_t size, cp_err *err) {
    void *v = calloc(n ? n : 1, size);
    if (!v) cp_no_memory(err, n * size);
    return v;
}

int cp_room(cp_buf *b, size_t more, cp_err *err) { return cp_buf_try_reserve(b, more) ? 0 : cp_no_memory(err, more); }
