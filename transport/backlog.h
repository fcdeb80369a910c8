#pragma once
/* The texts of messages that wait to be served, of one connection. They come and go by the ten thousand while what
 * lives long is allocated in between, so they share blocks: each with an allocation of its own would leave a hole that
 * nothing fits. Loop thread only. */
#include "base/buf.h"

typedef struct backlog_block backlog_block;
typedef struct backlog {
    backlog_block *open; /* has room, as far as is known; NULL: none */
    size_t held;         /* bytes of all blocks: what is to be bounded, since one text keeps a whole block */
} backlog;

char *backlog_add(backlog *b, cp_str text); /* a copy, for backlog_del */
void backlog_del(backlog *b, char *text);   /* when the last is gone nothing is held */
