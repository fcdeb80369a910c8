#pragma once
/* SHA-256's compression of whole blocks (FIPS 180-4, section 6.2.2), by several means with one result. base/sha*.c and
 * its test only. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void sha256_blocks_fn(uint32_t h[8], const uint8_t *p, size_t blocks);

extern const uint32_t sha256_k[64];

sha256_blocks_fn sha256_blocks_portable;
#if defined(__x86_64__)
bool sha256_x86_usable(void); /* the processor has the SHA extensions */
sha256_blocks_fn sha256_blocks_x86;
#endif
