#include "keeper/wire.h"

static void put_int(cp_buf *b, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) cp_buf_addc(b, (char)(v >> (8 * i)));
}

static void put_u8(cp_buf *b, uint8_t v) { put_int(b, v, 1); }
static void put_u16(cp_buf *b, uint16_t v) { put_int(b, v, 2); }
static void put_u32(cp_buf *b, uint32_t v) { put_int(b, v, 4); }
static void put_i32(cp_buf *b, int32_t v) { put_int(b, (uint32_t)v, 4); }
static void put_u64(cp_buf *b, uint64_t v) { put_int(b, v, 8); }

static void put_str(cp_buf *b, cp_str s) {
    put_u32(b, (uint32_t)s.n);
    cp_buf_add(b, s.p, s.n);
}

/* A cursor over the body; `bad` sticks, so that fields are read without a check after each. */
struct in {
    const char *p;
    size_t n;
    bool bad;
};

static const char *get_bytes(struct in *in, size_t n) {
    if (in->bad || in->n < n) {
        in->bad = true;
        return NULL;
    }
    const char *p = in->p;
    in->p += n;
    in->n -= n;
    return p;
}

static uint64_t get_int(struct in *in, size_t bytes) {
    const char *p = get_bytes(in, bytes);
    uint64_t v = 0;
    for (size_t i = 0; p && i < bytes; i++) v |= (uint64_t)(unsigned char)p[i] << (8 * i);
    return v;
}

static uint8_t get_u8(struct in *in) { return (uint8_t)get_int(in, 1); }
static uint16_t get_u16(struct in *in) { return (uint16_t)get_int(in, 2); }
static uint32_t get_u32(struct in *in) { return (uint32_t)get_int(in, 4); }
static int32_t get_i32(struct in *in) { return (int32_t)(uint32_t)get_int(in, 4); }
static uint64_t get_u64(struct in *in) { return get_int(in, 8); }

static cp_str get_str(struct in *in) {
    size_t n = get_u32(in);
    const char *p = get_bytes(in, n);
    return p ? (cp_str){p, n} : (cp_str){"", 0};
}

static size_t size_u8(uint8_t v) { return sizeof v; }
static size_t size_u16(uint16_t v) { return sizeof v; }
static size_t size_u32(uint32_t v) { return sizeof v; }
static size_t size_i32(int32_t v) { return sizeof v; }
static size_t size_u64(uint64_t v) { return sizeof v; }
static size_t size_str(cp_str s) { return 4 + s.n; }

#define SIZE(kind, name) n += size_##kind(r->name);
#define PUT(kind, name)  put_##kind(out, r->name);
#define GET(kind, name)  r->name = get_##kind(in);
#define SIZE_PUT_GET(number, rec)                                                                                      \
    static size_t size_rec_##rec(const cp_wire_rec_##rec *r) {                                                         \
        size_t n = 0;                                                                                                  \
        (void)r;                                                                                                       \
        CP_WIRE_F_##rec(SIZE) return n;                                                                                \
    }                                                                                                                  \
    static void put_rec_##rec(cp_buf *out, const cp_wire_rec_##rec *r) {                                               \
        (void)out, (void)r;                                                                                            \
        CP_WIRE_F_##rec(PUT)                                                                                           \
    }                                                                                                                  \
    static void get_rec_##rec(struct in *in, cp_wire_rec_##rec *r) {                                                   \
        (void)in, (void)r;                                                                                             \
        CP_WIRE_F_##rec(GET)                                                                                           \
    }
CP_WIRE_RECORDS(SIZE_PUT_GET)

size_t cp_wire_size(const cp_wire *m) {
    switch (m->type) {
#define CASE(number, rec)                                                                                              \
    case CP_WIRE_##rec: return CP_WIRE_HEAD + size_rec_##rec(&m->rec);
        CP_WIRE_RECORDS(CASE)
#undef CASE
    }
    return CP_WIRE_HEAD;
}

void cp_wire_encode(cp_buf *out, const cp_wire *m) {
    put_u16(out, CP_WIRE_VERSION);
    put_u8(out, (uint8_t)m->type);
    put_u8(out, m->nfds);
    size_t length_at = out->n;
    put_u32(out, 0);
    switch (m->type) {
#define CASE(number, rec)                                                                                              \
    case CP_WIRE_##rec: put_rec_##rec(out, &m->rec); break;
        CP_WIRE_RECORDS(CASE)
#undef CASE
    }
    uint32_t length = (uint32_t)(out->n - length_at - 4);
    for (size_t i = 0; i < 4; i++) out->p[length_at + i] = (char)(length >> (8 * i));
}

static bool decode_body(cp_wire *m, struct in *in) {
    switch (m->type) {
#define CASE(number, rec)                                                                                              \
    case CP_WIRE_##rec: get_rec_##rec(in, &m->rec); break;
        CP_WIRE_RECORDS(CASE)
#undef CASE
    default: return false;
    }
    return !in->bad && in->n == 0;
}

int cp_wire_decode(cp_wire *m, cp_str record, cp_err *err) {
    *m = (cp_wire){0};
    struct in in = {record.p, record.n, record.n > CP_WIRE_MAX};
    unsigned version = get_u16(&in);
    if (!in.bad && version != CP_WIRE_VERSION)
        return cp_fail(err, CP_E_INTERNAL_ERROR,
                       "keeper protocol: the other end speaks version %u, this one version %d", version,
                       CP_WIRE_VERSION);
    uint8_t type = get_u8(&in);
    m->type = (cp_wire_type)type;
    m->nfds = get_u8(&in);
    uint32_t length = get_u32(&in);
    if (in.bad || length != in.n || m->nfds > CP_WIRE_FDS || !decode_body(m, &in))
        return cp_fail(err, CP_E_INTERNAL_ERROR, "keeper protocol: malformed record (type %u, %zu bytes)", type,
                       record.n);
    return 0;
}

bool cp_wire_strings(cp_str data, uint32_t n, char **out) {
    for (uint32_t i = 0; i < n; i++) {
        const char *end = data.n ? memchr(data.p, '\0', data.n) : NULL;
        if (!end) return false;
        out[i] = (char *)(uintptr_t)data.p;
        data.n -= (size_t)(end - data.p) + 1;
        data.p = end + 1;
    }
    return data.n == 0;
}

const char *cp_wire_step_name(uint8_t step) {
    static const char *const names[] = {
#define X(name) #name,
        CP_WIRE_STEPS(X)
#undef X
    };
    return step < CP_COUNT(names) ? names[step] : "unknown";
}
