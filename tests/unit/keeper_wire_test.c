#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "keeper/wire.h"

#define BYTES(lit)  ((cp_str){"" lit, sizeof(lit) - 1})
#define EXIT_FIELDS .code = -1, .signal = 9, .core = 1, .max_rss = 0x1234567, .cpu_us = 1000000

/* Written by hand from the layout in wire.h. */
static const struct golden {
    cp_wire m;
    cp_str bytes;
} golden[] = {
    {{.type = CP_WIRE_hello, .nfds = 1, .hello = {0x01020304, 3000, 77}},
     BYTES("\x02\x00\x01\x01\x0a\x00\x00\x00"
           "\x04\x03\x02\x01"
           "\xb8\x0b"
           "\x4d\x00\x00\x00")},
    {{.type = CP_WIRE_held,
      .nfds = 2,
      .held = {.tag = 0x10000000001,
               .pid = 5,
               .start_time = 6,
               .spawn = 0x4000003000000009,
               .command = 7,
               .hold = 6,
               .key = {"p", 1},
               .exited = 1,
               EXIT_FIELDS}},
     BYTES("\x02\x00\x02\x02\x44\x00\x00\x00"
           "\x01\x00\x00\x00\x00\x01\x00\x00"
           "\x05\x00\x00\x00"
           "\x06\x00\x00\x00\x00\x00\x00\x00"
           "\x09\x00\x00\x00\x30\x00\x00\x40"
           "\x07\x00\x00\x00\x00\x00\x00\x00"
           "\x06"
           "\x01\x00\x00\x00p"
           "\x01"
           "\xff\xff\xff\xff\x09\x00\x00\x00\x01"
           "\x67\x45\x23\x01\x00\x00\x00\x00"
           "\x40\x42\x0f\x00\x00\x00\x00\x00")},
    {{.type = CP_WIRE_held_end}, BYTES("\x02\x00\x03\x00\x00\x00\x00\x00")},
    {{.type = CP_WIRE_spawned,
      .spawned =
          {.tag = 2, .sys = 13, .step = CP_STEP_chdir, .pid = 0x10000, .start_time = 1, .spawn = 2, .command = 3}},
     BYTES("\x02\x00\x04\x00\x29\x00\x00\x00"
           "\x02\x00\x00\x00\x00\x00\x00\x00"
           "\x0d\x00\x00\x00"
           "\x0f"
           "\x00\x00\x01\x00"
           "\x01\x00\x00\x00\x00\x00\x00\x00"
           "\x02\x00\x00\x00\x00\x00\x00\x00"
           "\x03\x00\x00\x00\x00\x00\x00\x00")},
    {{.type = CP_WIRE_exited, .exited = {.tag = 3, EXIT_FIELDS}},
     BYTES("\x02\x00\x05\x00\x21\x00\x00\x00"
           "\x03\x00\x00\x00\x00\x00\x00\x00"
           "\xff\xff\xff\xff\x09\x00\x00\x00\x01"
           "\x67\x45\x23\x01\x00\x00\x00\x00"
           "\x40\x42\x0f\x00\x00\x00\x00\x00")},
    {{.type = CP_WIRE_closed, .closed = {4, 2}},
     BYTES("\x02\x00\x06\x00\x09\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x02")},
    {{.type = CP_WIRE_drain}, BYTES("\x02\x00\x07\x00\x00\x00\x00\x00")},
    {{.type = CP_WIRE_handover}, BYTES("\x02\x00\x08\x00\x00\x00\x00\x00")},
    {{.type = CP_WIRE_ready, .ready = {65535}}, BYTES("\x02\x00\x10\x00\x02\x00\x00\x00\xff\xff")},
    {{.type = CP_WIRE_failed, .failed = {{"why", 3}}}, BYTES("\x02\x00\x11\x00\x07\x00\x00\x00\x03\x00\x00\x00why")},
    {{.type = CP_WIRE_spawn,
      .nfds = 3,
      .spawn = {.tag = 5,
                .flags = CP_SPAWN_SESSION | CP_SPAWN_USER,
                .uid = 1000,
                .gid = 100,
                .groups = {"grps", 4},
                .key = {"k", 1},
                .cwd = {"/", 1},
                .fds = 3,
                .hold = 4,
                .mark = 0x4000003000000001,
                .argc = 1,
                .envc = 1,
                .data = {"a\0B=", 5}}},
     BYTES("\x02\x00\x12\x03\x3e\x00\x00\x00"
           "\x05\x00\x00\x00\x00\x00\x00\x00"
           "\x03"
           "\xe8\x03\x00\x00\x64\x00\x00\x00"
           "\x04\x00\x00\x00grps"
           "\x01\x00\x00\x00k"
           "\x01\x00\x00\x00/"
           "\x03\x04"
           "\x01\x00\x00\x00\x30\x00\x00\x40"
           "\x01\x00\x00\x00\x01\x00\x00\x00"
           "\x05\x00\x00\x00"
           "a\x00"
           "B=\x00")},
    {{.type = CP_WIRE_adopt, .adopt = {.tag = 6, .pid = 7, .start_time = 8, .spawn = 9, .command = 10}},
     BYTES("\x02\x00\x13\x00\x29\x00\x00\x00"
           "\x06\x00\x00\x00\x00\x00\x00\x00"
           "\x07\x00\x00\x00"
           "\x08\x00\x00\x00\x00\x00\x00\x00"
           "\x09\x00\x00\x00\x00\x00\x00\x00"
           "\x0a\x00\x00\x00\x00\x00\x00\x00"
           "\x00\x00\x00\x00"
           "\x00")},
    {{.type = CP_WIRE_close_hold, .close_hold = {7, 1}},
     BYTES("\x02\x00\x14\x00\x09\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x01")},
    {{.type = CP_WIRE_ack, .ack = {8}}, BYTES("\x02\x00\x15\x00\x08\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00")},
};

static void test_golden_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < CP_COUNT(golden); i++) {
        cp_autobuf cp_buf out = {0}, again = {0};
        cp_wire_encode(&out, &golden[i].m);
        assert_int_equal(out.n, golden[i].bytes.n);
        assert_int_equal(cp_wire_size(&golden[i].m), out.n);
        assert_memory_equal(out.p, golden[i].bytes.p, out.n);
        cp_wire m;
        cp_err err;
        assert_int_equal(cp_wire_decode(&m, golden[i].bytes, &err), 0);
        assert_int_equal(m.type, golden[i].m.type);
        assert_int_equal(m.nfds, golden[i].m.nfds);
        cp_wire_encode(&again, &m);
        assert_true(cp_str_eq(cp_buf_str(&again), golden[i].bytes));
    }
}

static int decode_copy(const char *p, size_t n, cp_err *err) {
    cp_wire m;
    char *copy = malloc(n ? n : 1); /* of the exact size, for the sanitizer */
    assert_non_null(copy);
    memcpy(copy, p, n);
    int rc = cp_wire_decode(&m, (cp_str){copy, n}, err);
    free(copy);
    return rc;
}

/* Cut anywhere, with the length as sent and with one that agrees; and with a byte too many. */
static void test_every_truncation_is_refused(void **state) {
    (void)state;
    cp_err err;
    for (size_t i = 0; i < CP_COUNT(golden); i++) {
        cp_str whole = golden[i].bytes;
        char copy[256];
        assert_true(whole.n < sizeof copy);
        for (size_t n = 0; n <= whole.n + 1; n++) {
            if (n == whole.n) continue;
            memset(copy, 0, sizeof copy);
            memcpy(copy, whole.p, whole.n);
            assert_int_equal(decode_copy(copy, n, &err), -1);
            if (n < CP_WIRE_HEAD) continue;
            copy[4] = (char)(n - CP_WIRE_HEAD);
            assert_int_equal(decode_copy(copy, n, &err), -1);
        }
    }
}

static void test_other_versions_are_told(void **state) {
    (void)state;
    cp_err err;
    /* Of a version to come not even the length of the head is known. */
    assert_int_equal(decode_copy("\x03\x00", 2, &err), -1);
    assert_string_equal(err.msg, "keeper protocol: the other end speaks version 3, this one version 2");
    assert_int_equal(decode_copy("\x00\x01\x07\x00\x00\x00\x00\x00", 8, &err), -1);
    assert_string_equal(err.msg, "keeper protocol: the other end speaks version 256, this one version 2");
}

static void test_malformed(void **state) {
    (void)state;
    cp_err err;
    assert_int_equal(decode_copy("\x02\x00\x09\x00\x00\x00\x00\x00", 8, &err), -1); /* no such type */
    assert_int_equal(decode_copy("\x02\x00\x00\x00\x00\x00\x00\x00", 8, &err), -1);
    assert_int_equal(decode_copy("\x02\x00\x07\x0d\x00\x00\x00\x00", 8, &err), -1); /* 13 descriptors */
    /* A string that claims 4 GiB. */
    assert_int_equal(decode_copy("\x02\x00\x11\x00\x07\x00\x00\x00\xff\xff\xff\xffwhy", 15, &err), -1);
    cp_autofree char *big = cp_alloc(CP_WIRE_MAX + 1);
    size_t body = CP_WIRE_MAX + 1 - CP_WIRE_HEAD, text = body - 4;
    memcpy(big, "\x02\x00\x11\x00", 4);
    for (int i = 0; i < 4; i++) {
        big[4 + i] = (char)(body >> (8 * i));
        big[8 + i] = (char)(text >> (8 * i));
    }
    assert_int_equal(decode_copy(big, CP_WIRE_MAX + 1, &err), -1); /* right but too long */
}

static void test_strings(void **state) {
    (void)state;
    char *v[4];
    assert_true(cp_wire_strings(BYTES("a\0\0bc\0"), 3, v));
    assert_string_equal(v[0], "a");
    assert_string_equal(v[1], "");
    assert_string_equal(v[2], "bc");
    assert_true(cp_wire_strings((cp_str){NULL, 0}, 0, v));
    assert_false(cp_wire_strings((cp_str){NULL, 0}, 1, v));
    assert_false(cp_wire_strings(BYTES("a\0b\0"), 1, v));
    assert_false(cp_wire_strings(BYTES("a\0b\0"), 3, v));
    assert_false(cp_wire_strings(BYTES("a\0b"), 2, v));
}

static void test_step_names(void **state) {
    (void)state;
    assert_string_equal(cp_wire_step_name(CP_STEP_execve), "execve");
    assert_string_equal(cp_wire_step_name(CP_STEP_setuid), "setuid");
    assert_string_equal(cp_wire_step_name(CP_STEP_adopt), "adopt");
    assert_string_equal(cp_wire_step_name(CP_STEP_adopt + 1), "unknown");
    assert_string_equal(cp_wire_step_name(255), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bytes),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_other_versions_are_told),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_step_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
