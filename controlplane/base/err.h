#pragma once
/* The one error type. Caller-owned, fixed buffer; making one cannot fail.
 *
 *     int thing(…, cp_err *err) { … return cp_fail(err, CP_E_FILE_NOT_FOUND, "File not found: %s", path); }
 *
 * Functions that take a cp_err return 0 or a non-negative value on success and -1 on failure; err is written only on
 * failure. err may be NULL where the caller only wants the verdict. */
#include <stdbool.h>

typedef enum cp_code {
    CP_OK = 0,
#define X(name, http, retry, hint) CP_E_##name,
#include "schema/errors.def"
#undef X
    CP_E_COUNT
} cp_code;

typedef struct cp_err {
    cp_code code;
    int sys;        /* errno behind it, 0 if none */
    char field[64]; /* name of the request field at fault, "" if none */
    char msg[768];  /* for the client: never holds secrets, code or bodies */
} cp_err;

/* Fills err (code, message) and returns -1. errno is not consulted. */
int cp_fail(cp_err *err, cp_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* As cp_fail, with err->sys = sys and ": <strerror>" appended. */
int cp_fail_sys(cp_err *err, cp_code code, int sys, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* VALIDATION_FAILED that names the request field. */
int cp_fail_field(cp_err *err, const char *field, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "<prefix>: " in front of the message that is there; returns -1. */
int cp_wrap(cp_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "ENOENT" for an errno; "EUNKNOWN" for one without a name. Static storage. */
const char *cp_errno_name(int sys);

const char *cp_code_name(cp_code code); /* "FILE_NOT_FOUND"; static storage */
int cp_code_http(cp_code code);         /* HTTP status */
bool cp_code_retryable(cp_code code);
const char *cp_code_suggestion(cp_code code); /* NULL if none */
