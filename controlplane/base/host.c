#include "base/host.h"

#include <arpa/inet.h>
#include <string.h>

cp_str cp_host_unbracket(cp_str s) {
    if (s.n >= 2 && s.p[0] == '[' && s.p[s.n - 1] == ']') return (cp_str){s.p + 1, s.n - 2};
    return s;
}

bool cp_host_parse_ip(int family, cp_str s, void *out) {
    char z[INET6_ADDRSTRLEN];
    if (!s.n || s.n >= sizeof z || memchr(s.p, 0, s.n)) return false;
    memcpy(z, s.p, s.n);
    z[s.n] = '\0';
    return inet_pton(family, z, out) == 1;
}

bool cp_host_is_localhost(cp_str name) {
    return cp_str_ieq(name, CP_STR("localhost")) || cp_str_ieq(name, CP_STR("localhost."));
}

bool cp_host_is_loopback(cp_str host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (cp_host_is_localhost(host)) return true;
    if (cp_host_parse_ip(AF_INET, host, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
    return cp_host_parse_ip(AF_INET6, cp_host_unbracket(host), &v6) && IN6_IS_ADDR_LOOPBACK(&v6);
}
