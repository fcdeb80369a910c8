#pragma once
/* Structured logs, one line per record on a file descriptor: logfmt or JSON. Any thread, never blocks on
 * a pipe or socket that nobody reads (the line is dropped and counted); one write(2) per record.
 * Values are escaped. Callers never pass secrets, code, environment values or file bodies. */
#include "base/buf.h"

typedef enum { CP_LOG_DEBUG, CP_LOG_INFO, CP_LOG_WARN, CP_LOG_ERROR } cp_log_level;

void cp_log_setup(int fd, cp_log_level min, bool json); /* before the first thread starts */
bool cp_log_on(cp_log_level level);

/* cp_log(CP_LOG_WARN, "process.kill", "process survived", CP_KVI("pid", pid), CP_KVZ("id", id)): event is a dotted
 * name, msg a plain sentence. A value is cut after CP_LOG_VALUE_MAX bytes; pairs that would take the line over
 * CP_LOG_LINE_MAX are left out and the line says truncated=true. */
#define CP_LOG_VALUE_MAX 1024
#define CP_LOG_LINE_MAX  4096 /* PIPE_BUF: lines of several threads and processes do not mix in a pipe */
typedef struct cp_kv {
    const char *key;
    cp_str value;
} cp_kv;
void cp_log_write(cp_log_level level, const char *event, const char *msg, const cp_kv *kv, size_t n);
#define cp_log(level, event, msg, ...)                                                                                 \
    do {                                                                                                               \
        if (cp_log_on(level)) {                                                                                        \
            const cp_kv kv_[] = {{0}, ##__VA_ARGS__};                                                                  \
            cp_log_write(level, event, msg, kv_ + 1, sizeof kv_ / sizeof *kv_ - 1);                                    \
        }                                                                                                              \
    } while (0)
#define CP_KVZ(k, z) ((cp_kv){(k), cp_str_of(z)})
#define CP_KVS(k, s) ((cp_kv){(k), (s)})
/* A number: the text lives in the caller's frame. */
#define CP_KVI(k, i) ((cp_kv){(k), cp_str_of(cp_log_num((char[24]){0}, (long long)(i)))})
const char *cp_log_num(char buf[24], long long v);
