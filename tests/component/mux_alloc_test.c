/* The way of a small request that is answered at once takes no memory from the heap, once its buffers have grown.
 * Under a sanitizer malloc is not ours to count; there the same way is walked for what the sanitizer finds. */
#include "component/mux_fixture.h"

static bool counting;
static unsigned long taken;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n) {
    taken += counting;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    taken += counting;
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    taken += counting;
    return __libc_realloc(p, n);
}
#else
#define COUNTS 0
#endif

/* `times` rounds of `n` requests in flight. No memory of the test's own is taken meanwhile. */
static void rounds(fixture *x, const cp_buf *frames, unsigned n, unsigned times) {
    static char got[64 * 1024];
    while (times--) {
        unsigned answers = 0;
        assert_int_equal(write(x->c->fd, frames->p, frames->n), frames->n);
        while (answers < n) {
            cp_loop_once(x->h->t.loop, 1);
            ssize_t k = read(x->c->fd, got, sizeof got - 1);
            if (k <= 0) continue;
            got[k] = '\0';
            for (char *p = got; (p = memmem(p, (size_t)(got + k - p), "\"done\":true}", 12)); p++) answers++;
        }
    }
}

static void requests_take_no_memory(void **state) {
    static const struct {
        const char *before, *after; /* the id's number */
    } messages[] = {
        {"{\"type\":\"request\",\"id\":\"r", "\",\"method\":\"GET\",\"path\":\"/ok\"}"},
        {"{\"type\":\"request\",\"id\":\"a longer id, with \\\"escapes\\\", ",
         "\",\"method\":\"POST\",\"path\":\"/ok?q=1\",\"headers\":{\"X-Session-Id\":\"s\"},\"body\":{\"a\":[1,2,3]},"
         "\"priority\":5}"},
    };
    fixture *x = *state;
    for (size_t i = 0; i < CP_COUNT(messages); i++) {
        for (unsigned n = 1; n <= 64; n *= 64) {
            cp_autobuf cp_buf frames = {0};
            for (unsigned k = 0; k < n; k++) {
                cp_autobuf cp_buf text = {0};
                cp_buf_addf(&text, "%s%u%s", messages[i].before, k, messages[i].after);
                cp_frame_put(&frames, CP_OP_TEXT, true, text.p, text.n, (const uint8_t[4]){1, 2, 3, 4});
            }
            rounds(x, &frames, n, 100);
            /* What a request takes, every attempt would show. One whose turn was cut short, because the machine was
             * busy, may take room for what has not had its turn: then another attempt is made. */
            taken = 1;
            for (int attempt = 0; taken && attempt < 20; attempt++) {
                taken = 0;
                counting = true;
                rounds(x, &frames, n, 100);
                counting = false;
            }
            if (COUNTS) assert_int_equal(taken, 0);
        }
    }
}

static void memory_is_counted(void **state) {
    (void)state;
    counting = true;
    taken = 0;
    free(cp_alloc(1));
    counting = false;
    assert_int_equal(taken, COUNTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test_setup_teardown(requests_take_no_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
