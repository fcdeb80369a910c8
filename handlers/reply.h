#pragma once
/* What handlers share when they answer. */
#include "handlers/router.h"

/* {"success":true … "timestamp":"…"}: begin sets status 200 and leaves the object open for members. */
cp_jw cp_success_begin(cp_result *res);
void cp_success_end(cp_jw *w);

/* The same body as cp_error_result's in two steps: between them the value of "context" is written. */
void cp_error_begin(cp_jw *w, const cp_err *err);
void cp_error_end(cp_jw *w, const cp_err *err, const char *op, int status);
