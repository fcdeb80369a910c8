#pragma once
/* Everything as schema/options.def says. The strings are the table's: nothing is to be freed. */
#include <stdint.h>

#include "config.h"

#define DEFAULT_STR(f, d)  cfg->f = (char *)(uintptr_t)(d);
#define DEFAULT_INT(f, d)  cfg->f = (d);
#define DEFAULT_BOOL(f, d) cfg->f = (d);
#define DEFAULT_LIST(f, d) cfg->f = (cp_strlist){0};
static inline void config_defaults(cp_config *cfg) {
#define X(field, kind, flag, arg, def, min, max, help) DEFAULT_##kind(field, def)
#include "schema/options.def"
#undef X
}
