#pragma once
/* cp_str: borrowed bytes (pointer, length; need not end in NUL). cp_buf: a growable byte buffer that owns its memory.
 *
 * Without memory an append ends the program with a message, so appends return nothing: that is for what is small, or of
 * a fixed size (Linux overcommits; the keeper starts a server that has ended again). Where a client says how much, room
 * is made first by what may fail: cp_buf_try_reserve, or cp_room with an error (base/budget.h). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct cp_str {
    const char *p;
    size_t n;
} cp_str;

#define CP_STR(lit) ((cp_str){"" lit, sizeof(lit) - 1})
static inline cp_str cp_str_of(const char *z) { return z ? (cp_str){z, strlen(z)} : (cp_str){NULL, 0}; }
static inline bool cp_str_eq(cp_str a, cp_str b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0); }
static inline bool cp_str_is(cp_str a, const char *z) { return cp_str_eq(a, cp_str_of(z)); }
bool cp_str_ieq(cp_str a, cp_str b); /* ASCII case-insensitive */
bool cp_str_starts(cp_str s, cp_str prefix);
cp_str cp_str_trim(cp_str s); /* space, tab, CR, LF off both ends */
/* Whole string as a decimal number, no sign, no blanks; false when malformed or over max. */
bool cp_str_u64(cp_str s, uint64_t max, uint64_t *out);
/* A NUL-terminated heap copy; owner frees. */
char *cp_str_dup(cp_str s);
char *cp_str_try_dup(cp_str s); /* NULL: there is no memory */

/* Never NULL: ends the program when memory is exhausted. */
void *cp_alloc(size_t n); /* zeroed */
void *cp_realloc(void *p, size_t n);
#define cp_new(T) ((T *)cp_alloc(sizeof(T)))

typedef struct cp_buf {
    char *p;
    size_t n, cap;
} cp_buf;

void cp_buf_free(cp_buf *b);                     /* frees and zeroes */
void cp_buf_reserve(cp_buf *b, size_t more);     /* room for `more` bytes after n */
bool cp_buf_try_reserve(cp_buf *b, size_t more); /* the same; false: there is no memory, and nothing has changed */
void cp_buf_add(cp_buf *b, const void *p, size_t n);
void cp_buf_addz(cp_buf *b, const char *z);
void cp_buf_addc(cp_buf *b, char c);
void cp_buf_addf(cp_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cp_buf_addu(cp_buf *b, uint64_t v);      /* decimal */
void cp_buf_add_word(cp_buf *b, cp_str word); /* as one word of a POSIX shell, in single quotes */
void cp_buf_consume(cp_buf *b, size_t n);     /* drops n bytes from the front */
const char *cp_buf_z(cp_buf *b);              /* NUL-terminated view, valid until the next change */
static inline void cp_buf_clear(cp_buf *b) { b->n = 0; }
static inline cp_str cp_buf_str(const cp_buf *b) { return (cp_str){b->p, b->n}; }
/* Clears and gives memory over `keep` bytes back: for scratch buffers that once held something big. */
void cp_buf_reset(cp_buf *b, size_t keep);

/* Scoped cleanup: cp_autobuf cp_buf b = {0};  cp_autofree char *s = …;  a transfer is spelled cp_take(s). */
static inline void cp_autobuf_(cp_buf *b) { cp_buf_free(b); }
void cp_autofree_(void *pp);
#define cp_autobuf  __attribute__((cleanup(cp_autobuf_)))
#define cp_autofree __attribute__((cleanup(cp_autofree_)))
#define cp_take(v)                                                                                                     \
    ({                                                                                                                 \
        __typeof__(v) taken_ = (v);                                                                                    \
        (v) = (__typeof__(v)){0};                                                                                      \
        taken_;                                                                                                        \
    })
#define CP_CONTAINER(ptr, T, member) ((T *)(void *)((char *)(ptr)-offsetof(T, member)))
#define CP_COUNT(a)                  (sizeof(a) / sizeof((a)[0]))
