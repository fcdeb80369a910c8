#include "base/buf.h"
#include "base/fd.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static bool cloexec(int fd) { return fcntl(fd, F_GETFD) == FD_CLOEXEC; }

static void close_empties(void **state) {
    (void)state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), copy = fd;
    cp_close(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(fcntl(copy, F_GETFD), -1);
    assert_int_equal(errno, EBADF);
    cp_close(&fd);
}

static void pipe_is_close_on_exec(void **state) {
    (void)state;
    int rw[2];
    assert_int_equal(cp_pipe(rw, O_NONBLOCK), 0);
    cp_autofd int r = rw[0];
    cp_autofd int w = rw[1];
    assert_true(cloexec(r) && cloexec(w));
    char c;
    assert_int_equal(read(r, &c, 1), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(cp_write_all(w, "abc", 3), 0);
    cp_close(&w);
    char got[8];
    assert_int_equal(cp_read_full(r, got, sizeof got), 3);
    assert_memory_equal(got, "abc", 3);
}

static void nonblock_sets_it(void **state) {
    (void)state;
    int rw[2];
    assert_int_equal(cp_pipe(rw, 0), 0);
    cp_autofd int r = rw[0];
    cp_autofd int w = rw[1];
    assert_int_equal(cp_nonblock(r), 0);
    assert_true(fcntl(r, F_GETFL) & O_NONBLOCK);
    assert_false(fcntl(w, F_GETFL) & O_NONBLOCK);
    assert_int_equal(cp_nonblock(-1), -1);
}

static void memfd_is_sealed(void **state) {
    (void)state;
    cp_autofd int fd = cp_memfd("test", "hello", 5);
    assert_true(fd >= 0);
    assert_true(cloexec(fd));
    char got[8];
    assert_int_equal(cp_read_full(fd, got, sizeof got), 5); /* from offset 0 */
    assert_memory_equal(got, "hello", 5);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

static void memfd_may_be_empty(void **state) {
    (void)state;
    cp_autofd int fd = cp_memfd("empty", NULL, 0);
    assert_true(fd >= 0);
    char c;
    assert_int_equal(read(fd, &c, 1), 0);
}

static void read_file_keeps_to_the_limit(void **state) {
    (void)state;
    char path[] = "/tmp/conflux-fd-XXXXXX";
    cp_autofd int fd = mkstemp(path);
    assert_true(fd >= 0);
    cp_autobuf cp_buf b = {0};
    for (int i = 0; i < 10000; i++) cp_buf_addc(&b, (char)('a' + i % 26));
    assert_int_equal(cp_write_all(fd, b.p, b.n), 0);

    cp_autofree char *whole = NULL;
    char *none = NULL;
    size_t n = 0;
    assert_int_equal(cp_read_file(path, 10000, &whole, &n), 0);
    assert_int_equal(n, 10000);
    assert_memory_equal(whole, b.p, n);
    assert_int_equal(whole[n], '\0');
    assert_int_equal(cp_read_file(path, 9999, &none, &n), -1);
    assert_int_equal(errno, EFBIG);
    assert_null(none);
    unlink(path);
    assert_int_equal(cp_read_file(path, 9999, &none, &n), -1);
    assert_int_equal(errno, ENOENT);
}

static void read_file_reads_endless_files_up_to_the_limit_only(void **state) {
    (void)state;
    char *none = NULL;
    size_t n;
    assert_int_equal(cp_read_file("/dev/zero", 100000, &none, &n), -1);
    assert_int_equal(errno, EFBIG);
    cp_autofree char *empty = NULL;
    assert_int_equal(cp_read_file("/dev/null", 0, &empty, &n), 0);
    assert_int_equal(n, 0);
    assert_string_equal(empty, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_empties),
        cmocka_unit_test(pipe_is_close_on_exec),
        cmocka_unit_test(nonblock_sets_it),
        cmocka_unit_test(memfd_is_sealed),
        cmocka_unit_test(memfd_may_be_empty),
        cmocka_unit_test(read_file_keeps_to_the_limit),
        cmocka_unit_test(read_file_reads_endless_files_up_to_the_limit_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
