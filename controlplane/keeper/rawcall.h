#pragma once
/* System calls for code that runs beside us on our memory (spawn.c): the result, or -errno. libc's wrappers would write
 * the errno of the thread that cloned it, which goes on meanwhile.
 *
 * CP_RAWCALL is 0 on a processor that is not listed here: there the call is libc's, and whoever clones has to wait. */
#include <errno.h>
#include <unistd.h>

#define CP_BARE __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread")))

#if defined(__x86_64__) && !defined(__ILP32__)
#define CP_RAWCALL 1
CP_BARE static inline long cp_rawcall(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
#define CP_RAWCALL 1
CP_BARE static inline long cp_rawcall(long number, long a, long b, long c, long d) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#elif defined(__riscv) && __riscv_xlen == 64
#define CP_RAWCALL 1
CP_BARE static inline long cp_rawcall(long number, long a, long b, long c, long d) {
    register long a7 __asm__("a7") = number;
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    register long a3 __asm__("a3") = d;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3) : "memory");
    return a0;
}
#else
#define CP_RAWCALL 0
CP_BARE static inline long cp_rawcall(long number, long a, long b, long c, long d) {
    long result = syscall(number, a, b, c, d);
    return result < 0 ? -errno : result;
}
#endif
