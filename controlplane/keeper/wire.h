#pragma once
/* Records between keeper and server: the codec, pure. One record is one SOCK_SEQPACKET message of at most CP_WIRE_MAX
 * bytes; descriptors travel beside it (keeper/wire_chan.h).
 *
 *     u16 version | u8 type | u8 number of descriptors | u32 length of the body | body
 *
 * Integers are little-endian; a str is a u32 length and that many bytes. The first two bytes of a record are its
 * version in every version there will ever be: a server upgraded by SIGHUP meets an older keeper, and the two must be
 * able to tell. The lists below are the only description of the fields: structs, encoder and decoder come from them. */
#include "base/buf.h"
#include "base/err.h"
#include "keeper/exit.h"

enum {
    CP_WIRE_VERSION = 2,
    CP_WIRE_MAX = 32 * 1024, /* a SEQPACKET send over 208 KiB fails; small records also keep the queues small */
    CP_WIRE_HEAD = 8,
    CP_WIRE_FDS = 12, /* 8 of the child, 3 to hold, 1 memfd */
    CP_WIRE_KEY_MAX = 255,
    CP_WIRE_DATA_MAX = 4 << 20, /* argv and env of one spawn; the kernel takes 2 MiB by default */
    CP_WIRE_GROUPS_MAX = 1024,
};

/* clang-format off */
/* ---- fields: F(kind, name) ---- */
#define CP_WIRE_F_EXIT(F) F(i32, code) F(i32, signal) F(u8, core) F(u64, max_rss) F(u64, cpu_us)
/* keeper to server. hello: descriptors: the configuration as a sealed memfd, and the socket that the former server
 * listened on, if there was one. */
#define CP_WIRE_F_hello(F) F(u32, generation) F(u16, port) F(i32, keeper_pid)
/* spawn and command are the mark of a child (base/mark.h). */
#define CP_WIRE_F_PROCESS(F) F(i32, pid) F(u64, start_time) F(u64, spawn) F(u64, command)
/* One durable child; descriptors: one for each bit of hold, lowest first. */
#define CP_WIRE_F_held(F) F(u64, tag) CP_WIRE_F_PROCESS(F) F(u8, hold) F(str, key) F(u8, exited) CP_WIRE_F_EXIT(F)
#define CP_WIRE_F_held_end(F)
/* The answer to spawn and adopt: sys is an errno, step an index into CP_WIRE_STEPS. */
#define CP_WIRE_F_spawned(F) F(u64, tag) F(i32, sys) F(u8, step) CP_WIRE_F_PROCESS(F)
#define CP_WIRE_F_exited(F)  F(u64, tag) CP_WIRE_F_EXIT(F)
#define CP_WIRE_F_closed(F)  F(u64, tag) F(u8, which)
#define CP_WIRE_F_drain(F)
#define CP_WIRE_F_handover(F)
/* server to keeper. ready: 1 descriptor, the socket that it listens on. */
#define CP_WIRE_F_ready(F)  F(u16, port)
#define CP_WIRE_F_failed(F) F(str, reason)
/* Descriptors: one for each bit of fds, then of hold, lowest first, then the memfd when CP_SPAWN_MEMFD. data (or the
 * memfd) is argc, then envc strings, each with its NUL. An empty key: the child dies with the server. mark: that of a
 * former child, to be taken for the same one; 0: a new one. groups: supplementary ones, as setgroups
 * takes them. */
#define CP_WIRE_F_spawn(F)                                                                                            \
    F(u64, tag) F(u8, flags) F(u32, uid) F(u32, gid) F(str, groups) F(str, key) F(str, cwd) F(u8, fds) F(u8, hold)      \
        F(u64, mark) F(u32, argc) F(u32, envc) F(str, data)
/* start_time 0: not known yet. Descriptors: one for each bit of hold. */
#define CP_WIRE_F_adopt(F)      F(u64, tag) CP_WIRE_F_PROCESS(F) F(str, key) F(u8, hold)
#define CP_WIRE_F_close_hold(F) F(u64, tag) F(u8, which)
#define CP_WIRE_F_ack(F)        F(u64, tag)

/* ---- records: M(number, name) ---- */
#define CP_WIRE_RECORDS(M)                                                                                            \
    M(1, hello) M(2, held) M(3, held_end) M(4, spawned) M(5, exited) M(6, closed) M(7, drain) M(8, handover)          \
        M(16, ready) M(17, failed) M(18, spawn) M(19, adopt) M(20, close_hold) M(21, ack)
/* clang-format on */

enum { /* flags of spawn */
       CP_SPAWN_SESSION = 1,
       CP_SPAWN_USER = 2,
       CP_SPAWN_MEMFD = 4,
};

/* Where a spawn can fail. The names go to the client of the server. */
/* clang-format off */
#define CP_WIRE_STEPS(X)                                                                                              \
    X(request) X(key) X(children) X(fds) X(memory) X(memfd) X(groups) X(clone) X(setsid) X(setpgid) X(dup) X(setrlimit)           \
        X(setgroups) X(setgid) X(setuid) X(chdir) X(execve) X(adopt)
/* clang-format on */
enum {
#define X(name) CP_STEP_##name,
    CP_WIRE_STEPS(X)
#undef X
};
const char *cp_wire_step_name(uint8_t step); /* "execve"; static storage */

typedef uint8_t cp_wire_u8;
typedef uint16_t cp_wire_u16;
typedef uint32_t cp_wire_u32;
typedef int32_t cp_wire_i32;
typedef uint64_t cp_wire_u64;
typedef cp_str cp_wire_str;

#define CP_WIRE_MEMBER(kind, name) cp_wire_##kind name;
#define CP_WIRE_STRUCT(number, name)                                                                                   \
    typedef struct cp_wire_rec_##name {                                                                                \
        CP_WIRE_F_##name(CP_WIRE_MEMBER)                                                                               \
    } cp_wire_rec_##name;
CP_WIRE_RECORDS(CP_WIRE_STRUCT)
#undef CP_WIRE_STRUCT

typedef enum cp_wire_type {
#define CP_WIRE_ENUM(number, name) CP_WIRE_##name = (number),
    CP_WIRE_RECORDS(CP_WIRE_ENUM)
#undef CP_WIRE_ENUM
} cp_wire_type;

typedef struct cp_wire {
    cp_wire_type type;
    uint8_t nfds;
    union {
#define CP_WIRE_FIELD(number, name) cp_wire_rec_##name name;
        CP_WIRE_RECORDS(CP_WIRE_FIELD)
#undef CP_WIRE_FIELD
    };
} cp_wire;

/* The bytes of the record: exact, so that it can be encoded into memory that is there. */
size_t cp_wire_size(const cp_wire *m);
/* Appends one record to out. The caller checks that it is not over CP_WIRE_MAX. */
void cp_wire_encode(cp_buf *out, const cp_wire *m);
/* Fills *m from one whole record; strings are borrowed from it. -1: another version, an unknown type, a body that is
 * too short or too long for its type, too many descriptors. */
int cp_wire_decode(cp_wire *m, cp_str record, cp_err *err);

/* Splits `n` NUL-terminated strings, which must fill data exactly, into out[0..n). false when they do not. */
bool cp_wire_strings(cp_str data, uint32_t n, char **out);

/* The exit fields of held and exited. */
#define CP_WIRE_SET_EXIT(rec, x)                                                                                       \
    ((rec)->code = (x)->code, (rec)->signal = (x)->signal, (rec)->core = (x)->core, (rec)->max_rss = (x)->max_rss,     \
     (rec)->cpu_us = (x)->cpu_us)
#define CP_WIRE_GET_EXIT(rec)                                                                                          \
    ((cp_exit){.code = (rec)->code,                                                                                    \
               .signal = (rec)->signal,                                                                                \
               .core = (rec)->core != 0,                                                                               \
               .max_rss = (rec)->max_rss,                                                                              \
               .cpu_us = (rec)->cpu_us})
