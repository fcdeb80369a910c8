/* Ids of uploads, and the records that say how far they are: a crash may have cut one anywhere. */
#include "services/upload_impl.h"

#include <ctype.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void id(cp_str s) {
    bool ok = s.n >= 1 && s.n <= CP_UPLOAD_ID_MAX;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        ok &= (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
              c == ':' || c == '-';
    }
    require(ok == cp_upload_id_valid(s));
    if (ok) require(!memchr(s.p, '/', s.n));
}

static size_t strings(cp_str s, size_t most, size_t *third) {
    size_t n = 0;
    for (size_t i = 0; i < s.n && n < most; i++)
        if (!s.p[i] && ++n == 3) *third = i + 1;
    return n;
}

static void record(cp_str s) {
    static cp_upload u;
    size_t third = 0, n = strings(s, 4, &third);
    u = CP_UPLOAD_EMPTY;
    bool begun = cp_upload_record_parse(s, &u);
    require((!begun || n >= 3) && u.begun == begun);
    if (n < 3) return;
    const char *full = s.p + strlen(s.p) + 1, *temp = full + strlen(full) + 1;
    /* The temporary file is a name beside the target, which is told from the root on. */
    require(begun == (full[0] == '/' && temp[0] && !strchr(temp, '/')));
    if (!begun) return;
    require((size_t)u.head == third && u.last == (n == 4));
    require(strncmp(u.state.path, s.p, sizeof u.state.path - 1) == 0);
    require(strncmp(u.full, full, sizeof u.full - 1) == 0 && strncmp(u.temp, temp, sizeof u.temp - 1) == 0);
    require(u.last || u.state.size == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cp_str s = {(const char *)data, size};
    id(s);
    record(s);
    return 0;
}
