#include "base/err.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

static void fail_fills(void **state) {
    (void)state;
    cp_err err;
    memset(&err, 'x', sizeof err);
    assert_int_equal(cp_fail(&err, CP_E_FILE_NOT_FOUND, "File not found: %s", "/a"), -1);
    assert_int_equal(err.code, CP_E_FILE_NOT_FOUND);
    assert_int_equal(err.sys, 0);
    assert_string_equal(err.field, "");
    assert_string_equal(err.msg, "File not found: /a");
}

static void fail_sys_names_the_cause(void **state) {
    (void)state;
    cp_err err;
    cp_fail_sys(&err, CP_E_FILESYSTEM_ERROR, ENOSPC, "write %s", "f");
    assert_int_equal(err.sys, ENOSPC);
    assert_string_equal(err.msg, "write f: No space left on device");
    cp_fail_sys(&err, CP_E_FILESYSTEM_ERROR, 99999, "write");
    assert_string_equal(err.msg, "write: unknown error");
}

static void fail_field_names_it(void **state) {
    (void)state;
    cp_err err;
    assert_int_equal(cp_fail_field(&err, "timeoutMs", "timeoutMs must be a number"), -1);
    assert_int_equal(err.code, CP_E_VALIDATION_FAILED);
    assert_string_equal(err.field, "timeoutMs");
}

static void wrap_puts_in_front(void **state) {
    (void)state;
    cp_err err;
    cp_fail_sys(&err, CP_E_PERMISSION_DENIED, EACCES, "open");
    assert_int_equal(cp_wrap(&err, "read %s", "/x"), -1);
    assert_string_equal(err.msg, "read /x: open: Permission denied");
    assert_int_equal(err.code, CP_E_PERMISSION_DENIED);
    assert_int_equal(err.sys, EACCES);
}

static void long_texts_are_cut_and_null_is_allowed(void **state) {
    (void)state;
    char big[2000];
    memset(big, 'm', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    cp_err err;
    cp_fail_sys(&err, CP_E_INTERNAL_ERROR, EIO, "%s", big);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    cp_wrap(&err, "%s", big);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    cp_fail_field(&err, big, "no");
    assert_int_equal(strlen(err.field), sizeof err.field - 1);
    assert_int_equal(cp_fail(NULL, CP_E_NOT_FOUND, "x"), -1);
    assert_int_equal(cp_wrap(NULL, "x"), -1);
}

/* Values from the protocol page, section 1.1. */
static void table(void **state) {
    (void)state;
    assert_string_equal(cp_code_name(CP_E_FILE_NOT_FOUND), "FILE_NOT_FOUND");
    assert_int_equal(cp_code_http(CP_E_FILE_NOT_FOUND), 404);
    assert_int_equal(cp_code_http(CP_E_VALIDATION_FAILED), 400);
    assert_int_equal(cp_code_http(CP_E_SESSION_TERMINATED), 410);
    assert_int_equal(cp_code_http(CP_E_LIMIT_EXCEEDED), 429);
    assert_true(cp_code_retryable(CP_E_LIMIT_EXCEEDED));
    assert_false(cp_code_retryable(CP_E_FILE_NOT_FOUND));
    assert_null(cp_code_suggestion(CP_E_INTERNAL_ERROR));
    assert_string_equal(cp_code_name((cp_code)9999), "INTERNAL_ERROR");
    for (int c = CP_OK + 1; c < CP_E_COUNT; c++) assert_in_range(cp_code_http((cp_code)c), 400, 503);
}

static void errno_names(void **state) {
    (void)state;
    assert_string_equal(cp_errno_name(ENOENT), "ENOENT");
    assert_string_equal(cp_errno_name(EXDEV), "EXDEV");
    assert_string_equal(cp_errno_name(99999), "EUNKNOWN");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_fills),
        cmocka_unit_test(fail_sys_names_the_cause),
        cmocka_unit_test(fail_field_names_it),
        cmocka_unit_test(wrap_puts_in_front),
        cmocka_unit_test(long_texts_are_cut_and_null_is_allowed),
        cmocka_unit_test(table),
        cmocka_unit_test(errno_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
