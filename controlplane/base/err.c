#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct code_info {
    const char *name;
    int http;
    bool retryable;
    const char *suggestion;
} codes[CP_E_COUNT] = {
    [CP_OK] = {"OK", 200, false, NULL},
#define X(n, h, r, s) [CP_E_##n] = {#n, h, r, s},
#include "schema/errors.def"
#undef X
};

static const struct code_info *info(cp_code code) {
    return &codes[(unsigned)code < CP_E_COUNT ? code : CP_E_INTERNAL_ERROR];
}

const char *cp_code_name(cp_code code) { return info(code)->name; }
int cp_code_http(cp_code code) { return info(code)->http; }
bool cp_code_retryable(cp_code code) { return info(code)->retryable; }
const char *cp_code_suggestion(cp_code code) { return info(code)->suggestion; }

const char *cp_errno_name(int sys) {
    const char *name = strerrorname_np(sys);
    return name ? name : "EUNKNOWN";
}

__attribute__((format(printf, 5, 0))) static void fill(cp_err *err, cp_code code, int sys, const char *field,
                                                       const char *fmt, va_list ap) {
    if (!err) return;
    err->code = code;
    err->sys = sys;
    snprintf(err->field, sizeof err->field, "%s", field);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    if (sys && n >= 0 && (size_t)n < sizeof err->msg) {
        const char *text = strerrordesc_np(sys);
        snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", text ? text : "unknown error");
    }
}

int cp_fail(cp_err *err, cp_code code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, 0, "", fmt, ap);
    va_end(ap);
    return -1;
}

int cp_fail_sys(cp_err *err, cp_code code, int sys, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, sys, "", fmt, ap);
    va_end(ap);
    return -1;
}

int cp_fail_field(cp_err *err, const char *field, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, CP_E_VALIDATION_FAILED, 0, field, fmt, ap);
    va_end(ap);
    return -1;
}

int cp_wrap(cp_err *err, const char *fmt, ...) {
    if (!err) return -1;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->msg) snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old);
    return -1;
}
