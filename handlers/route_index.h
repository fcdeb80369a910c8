#pragma once
/* Finds the route of a method and a path. Pure; read-only once built, so any thread may match. */
#include "handlers/router.h"

typedef struct cp_route_index cp_route_index;

/* NULL when two routes of the tables serve the same method and pattern, or a pattern is malformed. */
cp_route_index *cp_route_index_new(const cp_route *const *tables, const size_t *counts, size_t ntables, cp_err *err);
void cp_route_index_free(cp_route_index *x);
size_t cp_route_index_count(const cp_route_index *x);
const cp_route *cp_route_index_at(const cp_route_index *x, size_t i);
/* *params is filled for {…} patterns. Returns the route's number, or -1. An exact path that lacks the method leaves the
 * request to a {…} pattern, as the reference does (GET /api/process/kill-all asks for a process of that name). */
int cp_route_index_find(const cp_route_index *x, cp_method method, cp_str path, cp_str params[CP_MAX_PARAMS]);
/* Bit per cp_method of what any route serves at this path. */
unsigned cp_route_index_methods(const cp_route_index *x, cp_str path);
