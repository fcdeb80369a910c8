#pragma once
/* In place of handlers/router.c for tests of the transport: a table of the test's own. What router.c would define is
 * defined here and by the two fixtures that include this, so the linker leaves that file out. */
#include "handlers/router.h"

extern const cp_route test_routes[];
extern const size_t test_nroutes;

cp_match cp_router_match(cp_router *r, cp_method method, cp_str path) {
    (void)r;
    cp_match m = {
        .method_unknown = method == CP_METHOD_UNKNOWN, .is_head = method == CP_HEAD, .index = (unsigned)test_nroutes};
    for (size_t i = 0; i < test_nroutes; i++)
        if (test_routes[i].method == (m.is_head ? CP_GET : method) && cp_str_is(path, test_routes[i].pattern))
            m.route = &test_routes[m.index = (unsigned)i];
        else if (cp_str_is(path, test_routes[i].pattern)) m.method_unknown = true;
    if (m.route) m.method_unknown = false;
    return m;
}

const cp_route *cp_router_route(const cp_router *r, unsigned index) {
    (void)r;
    return index < test_nroutes ? &test_routes[index] : NULL;
}

void cp_router_refuse(const cp_match *m, cp_result *res) {
    cp_err err;
    cp_fail(&err, m->method_unknown ? CP_E_METHOD_NOT_ALLOWED : CP_E_UNKNOWN_ERROR,
            "The requested endpoint was not found");
    if (!m->method_unknown) res->status = 404;
    cp_error_result(res, &err, NULL, (cp_str){0});
}
