#pragma once
/* Names and addresses of hosts. Pure; any thread. */
#include <stdbool.h>

#include "base/buf.h"

/* s without the brackets around an IPv6 address; points into s. */
cp_str cp_host_unbracket(cp_str s);
/* s is an address of that family (AF_INET, AF_INET6) and nothing else; fills in the in_addr or in6_addr at out. */
bool cp_host_parse_ip(int family, cp_str s, void *out);
/* "localhost", also with the root's dot (RFC 6761 section 6.3). */
bool cp_host_is_localhost(cp_str name);
/* localhost, an address of 127.0.0.0/8, or ::1 with or without brackets. A name that only begins like one is none. */
bool cp_host_is_loopback(cp_str host);
