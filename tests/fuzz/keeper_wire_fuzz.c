/* What the decoder takes, the encoder must write back byte for byte; nothing is read outside the record. */
#include "keeper/wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void split(const cp_wire_rec_spawn *r) {
    uint64_t n = (uint64_t)r->argc + r->envc;
    if (n > r->data.n) return;
    char **v = cp_alloc((n + 1) * sizeof *v);
    size_t total = 0;
    if (cp_wire_strings(r->data, (uint32_t)n, v)) {
        for (uint64_t i = 0; i < n; i++) total += strlen(v[i]) + 1;
        if (total != r->data.n) abort();
    }
    free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_wire m;
    cp_err err;
    if (cp_wire_decode(&m, (cp_str){(const char *)data, size}, &err) < 0) {
        if (!err.msg[0]) abort();
        return 0;
    }
    cp_autobuf cp_buf again = {0};
    cp_wire_encode(&again, &m);
    if (!cp_str_eq(cp_buf_str(&again), (cp_str){(const char *)data, size})) abort();
    if (m.type == CP_WIRE_spawn) split(&m.spawn);
    return 0;
}
