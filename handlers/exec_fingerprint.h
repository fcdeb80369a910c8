#pragma once
#include "services/exec.h"

/* Fills spec->fingerprint: equal for requests that ask for the same execution, whatever the order of their members. */
void cp_exec_fingerprint(cp_exec_spec *spec);
