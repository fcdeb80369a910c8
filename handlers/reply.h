#pragma once
/* What handlers share when they answer. */
#include "handlers/router.h"

/* {"success":true … "timestamp":"…"}: begin sets status 200 and leaves the object open for members. */
cp_jw cp_success_begin(cp_result *res);
void cp_success_end(cp_jw *w);
