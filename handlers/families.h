#pragma once
/* The route tables, one per family; router.c indexes them all. */
#include "handlers/router.h"

#define CP_FAMILIES(X)                                                                                                 \
    X(misc)                                                                                                            \
    X(health) X(exec) X(execution) X(process) X(session) X(files) X(watch) X(events) X(ports) X(usage) X(openapi)

#define X(family)                                                                                                      \
    extern const cp_route cp_##family##_routes[];                                                                      \
    extern const size_t cp_##family##_nroutes;
CP_FAMILIES(X)
#undef X
