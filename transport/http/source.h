#pragma once
/* How many connections each address has. Any thread. */
#include <sys/socket.h>

#include "base/err.h"

typedef struct cp_sources cp_sources;
/* One for each address with a connection; lives as long as it has one. */
typedef struct cp_source_count cp_source_count;

cp_sources *cp_sources_new(void);
void cp_sources_free(cp_sources *s);
/* Counts a connection from this address (an IPv6 client is its /64, an IPv4-mapped one its IPv4 address). NULL: it has
 * `most` already (0: no limit), or memory is short. */
cp_source_count *cp_source_add(cp_sources *s, const struct sockaddr_storage *addr, unsigned most);
void cp_source_drop(cp_sources *s, cp_source_count *c);
/* For comparing: c may have been dropped meanwhile (its memory stays), then the number is another's. */
unsigned cp_source_now(const cp_source_count *c);
