#pragma once
/* The resolved options (schema/options.def). Strings and lists are owned by whoever filled the struct
 * (controlplane/config.c) and are never NULL; the struct is read-only once the layers are open. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cp_strlist {
    char **v;
    size_t n;
} cp_strlist;

#define CP_FIELD_STR(f)  char *f;
#define CP_FIELD_INT(f)  int64_t f;
#define CP_FIELD_BOOL(f) bool f;
#define CP_FIELD_LIST(f) cp_strlist f;
typedef struct cp_config {
#define X(field, kind, flag, arg, def, min, max, help) CP_FIELD_##kind(field)
#include "schema/options.def"
#undef X
    bool has_token;
    uint8_t token_sha256[32]; /* the token itself is never kept */
} cp_config;
