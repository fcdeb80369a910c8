/* The text given to a session's shell, and what it answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "services/session_script.h"

static void a_record_has_three_elements(void **state) {
    (void)state;
    char a[] = "A=it's", b[] = "B=";
    char *env[] = {a, b, NULL};
    const cp_script s = {
        .dir = "/d", .seq = 7, .command = "echo '", .cwd = "/w", .env = env, .in = "i3", .pair = 3, .last_status = 300};
    bool (*const makers[])(cp_buf *, const cp_script *) = {cp_script_foreground, cp_script_background,
                                                           cp_script_silent};
    for (size_t i = 0; i < CP_COUNT(makers); i++) {
        cp_autobuf cp_buf out = {0};
        assert_true(makers[i](&out, &s));
        const char *p = out.p, *end = out.p + out.n;
        const char *element[3];
        for (int k = 0; k < 3; k++) {
            assert_true(p < end);
            element[k] = p;
            p += strlen(p) + 1;
        }
        assert_ptr_equal(p, end);
        assert_null(strstr(element[0], "echo '")); /* the command is data: never part of our text */
        assert_string_equal(element[1], "echo '");
        assert_non_null(strstr(element[2], "'d7 %s\\n'"));
    }
}

/* The number comes before the command; in the background the shell itself has none. */
static void commands_are_numbered(void **state) {
    (void)state;
    cp_script s = {.dir = "/d", .seq = 7, .command = "x", .marked = true};
    static const char number[] = "\\builtin ulimit -Sx 7||:\n", none[] = "\\builtin ulimit -Sx hard||:\n";
    cp_autobuf cp_buf fore = {0}, back = {0}, plain = {0};
    cp_script_foreground(&fore, &s);
    assert_ptr_equal(strstr(fore.p, number), fore.p);
    cp_script_background(&back, &s);
    assert_ptr_equal(strstr(back.p, none), back.p);
    assert_ptr_equal(strstr(back.p, number), back.p + sizeof none - 1 + 2); /* "( " */
    s.marked = false;
    cp_script_foreground(&plain, &s);
    cp_script_background(&plain, &s);
    assert_null(memmem(plain.p, plain.n, "ulimit", 6));
}

/* Our loop is left out where a `break` of the command would leave it. */
static void stray_breaks_are_seen(void **state) {
    (void)state;
    static const char *const fine[] = {
        "",
        "echo a; breakfast",
        "for i in 1 2; do sleep 1 && break; done; echo b",
        "while :; do for i in 1 2; do continue 2; done; done",
        "until x; do if y; then break>f; fi; done",
        "while :\ndo\n  z || break # enough\ndone",
        "while :; do break 1>f; done",
        "while :; do (break); done",
    };
    static const char *const stray[] = {
        "break",
        "a; break; b",
        "for i in 1; do :; done; continue",
        "for i in 1; do break 2; done",
        "for i in 1; do break $n; done",
        "for i in 1; do break 18446744073709551616; done",
        "for i in 1; do break 0; done",
        "done; break; do",
        "f() { \\break; }",
    };
    for (size_t i = 0; i < CP_COUNT(fine); i++) assert_true(cp_script_interruptible(fine[i]));
    for (size_t i = 0; i < CP_COUNT(stray); i++) assert_false(cp_script_interruptible(stray[i]));
    for (int k = 0; k < 2; k++) {
        const cp_script s = {.dir = "/d", .command = "x", .interruptible = k};
        cp_autobuf cp_buf out = {0};
        cp_script_foreground(&out, &s);
        assert_int_equal(strstr(out.p, ";do ") != NULL, k);
    }
}

static void reports(void **state) {
    (void)state;
    cp_report r;
    assert_true(cp_report_parse(CP_STR("d12 137"), &r));
    assert_true(r.kind == 'd' && r.seq == 12 && r.value == 137);
    assert_true(cp_report_parse(CP_STR("p18446744073709551615 2147483647"), &r));
    assert_true(r.kind == 'p' && r.seq == UINT64_MAX && r.value == INT32_MAX);
    assert_true(cp_report_parse(CP_STR("i5"), &r));
    assert_true(r.kind == 'i' && r.seq == 5);
    static const char *const bad[] = {"",  "d",    "d1",   "d 1",   "d1 ",   "d1 x", "d1  2", "p1 2147483648",
                                      "i", "i1 2", "x1 2", "d-1 2", "d1 2 3"};
    for (size_t i = 0; i < CP_COUNT(bad); i++) assert_false(cp_report_parse(cp_str_of(bad[i]), &r));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_has_three_elements),
        cmocka_unit_test(commands_are_numbered),
        cmocka_unit_test(stray_breaks_are_seen),
        cmocka_unit_test(reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
