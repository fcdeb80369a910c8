#pragma once
#include "services/exec.h"

/* Fills spec->fingerprint: equal for requests that ask for the same execution, whatever the order of their members.
 * -1 with cp_no_memory. */
int cp_exec_fingerprint(cp_exec_spec *spec, cp_err *err);
