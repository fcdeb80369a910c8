#pragma once
/* Random identifiers (getrandom). Any thread. */
#include <stddef.h>

void cp_random(void *p, size_t n);
/* n characters of 0-9a-z and a NUL into out[n + 1]. */
void cp_random_base36(char *out, size_t n);
/* n lower-case hex digits and a NUL into out[n + 1]. */
void cp_random_hex(char *out, size_t n);
