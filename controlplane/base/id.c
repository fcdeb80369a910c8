#include "base/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

void cp_random(void *p, size_t n) {
    char *c = p;
    while (n) {
        ssize_t k = getrandom(c, n, 0);
        if (k < 0) {
            perror("conflux: getrandom");
            abort();
        }
        c += k;
        n -= (size_t)k;
    }
}

static void pick(char *out, size_t n, const char *alphabet, unsigned size) {
    for (size_t i = 0; i < n;) {
        unsigned char raw[32];
        cp_random(raw, sizeof raw);
        for (size_t j = 0; j < sizeof raw && i < n; j++)
            if (raw[j] < 256 / size * size) out[i++] = alphabet[raw[j] % size];
    }
    out[n] = '\0';
}

void cp_random_base36(char *out, size_t n) { pick(out, n, "0123456789abcdefghijklmnopqrstuvwxyz", 36); }
void cp_random_hex(char *out, size_t n) { pick(out, n, "0123456789abcdef", 16); }
