/* What the decoder takes, the encoder must write back byte for byte; nothing is read outside the record. And whatever
 * a record of each type holds, the other end reads it so. */
#include "keeper/wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void split(const cp_wire_rec_spawn *r) {
    uint64_t n = (uint64_t)r->argc + r->envc;
    if (n > r->data.n) return;
    char **v = cp_alloc((n + 1) * sizeof *v);
    size_t total = 0;
    if (cp_wire_strings(r->data, (uint32_t)n, v)) {
        for (uint64_t i = 0; i < n; i++) total += strlen(v[i]) + 1;
        require(total == r->data.n);
    }
    free(v);
}

static void decode(cp_str record) {
    cp_wire m;
    cp_err err;
    if (cp_wire_decode(&m, record, &err) < 0) {
        require(err.msg[0]);
        return;
    }
    cp_autobuf cp_buf again = {0};
    cp_wire_encode(&again, &m);
    require(cp_str_eq(cp_buf_str(&again), record));
    if (m.type == CP_WIRE_spawn) split(&m.spawn);
    if (m.type == CP_WIRE_spawned) require(cp_wire_step_name(m.spawned.step)[0]);
    for (size_t n = 0; n < record.n; n++) { /* a record that lost its end is none */
        cp_autofree char *cut = cp_str_dup((cp_str){record.p, n});
        require(cp_wire_decode(&m, (cp_str){cut, n}, NULL) < 0);
    }
}

/* ---- records of each type, filled with the input ---- */

static uint64_t number(cp_str *in, size_t bytes) {
    uint64_t v = 0;
    for (; bytes && in->n; bytes--, in->p++, in->n--) v = v << 8 | (uint8_t)*in->p;
    return v;
}

static cp_str text(cp_str *in) {
    size_t n = number(in, 1);
    cp_str s = {in->p, n < in->n ? n : in->n};
    *in = (cp_str){in->p + s.n, in->n - s.n};
    return s;
}

#define FILL_u8(r, f)  (r)->f = (uint8_t)number(&in, 1);
#define FILL_u16(r, f) (r)->f = (uint16_t)number(&in, 2);
#define FILL_u32(r, f) (r)->f = (uint32_t)number(&in, 4);
#define FILL_i32(r, f) (r)->f = (int32_t)(uint32_t)number(&in, 4);
#define FILL_u64(r, f) (r)->f = number(&in, 8);
#define FILL_str(r, f) (r)->f = text(&in);
#define FILL(kind, f)  FILL_##kind(rec, f)
#define SAME_u8(f)     require(sent->f == got->f);
#define SAME_u16(f)    SAME_u8(f)
#define SAME_u32(f)    SAME_u8(f)
#define SAME_i32(f)    SAME_u8(f)
#define SAME_u64(f)    SAME_u8(f)
#define SAME_str(f)    require(cp_str_eq(sent->f, got->f));
#define SAME(kind, f)  SAME_##kind(f)

#define ROUND_TRIP(number, name)                                                                                       \
    static void fill_##name(cp_wire_rec_##name *rec, cp_str in) {                                                      \
        (void)rec, (void)in;                                                                                           \
        CP_WIRE_F_##name(FILL)                                                                                         \
    }                                                                                                                  \
    static void same_##name(const cp_wire_rec_##name *sent, const cp_wire_rec_##name *got) {                           \
        (void)sent, (void)got;                                                                                         \
        CP_WIRE_F_##name(SAME)                                                                                         \
    }                                                                                                                  \
    static void round_trip_##name(cp_str in) {                                                                         \
        cp_wire sent = {.type = CP_WIRE_##name}, got;                                                                  \
        cp_autobuf cp_buf b = {0};                                                                                     \
        fill_##name(&sent.name, in);                                                                                   \
        cp_wire_encode(&b, &sent);                                                                                     \
        require(cp_wire_decode(&got, cp_buf_str(&b), NULL) == 0 && got.type == CP_WIRE_##name);                        \
        same_##name(&sent.name, &got.name);                                                                            \
    }
CP_WIRE_RECORDS(ROUND_TRIP)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_str in = {(const char *)data, size};
    if (size < 4096) decode(in);
#define CASE(number, name) round_trip_##name(in);
    CP_WIRE_RECORDS(CASE)
    return 0;
}
