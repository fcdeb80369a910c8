#pragma once
/* SHA-1 and SHA-256 (FIPS 180-4). Pure. SHA-1 is here for the WebSocket handshake only, where nothing rests on its
 * strength. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CP_SHA1_SIZE = 20, CP_SHA256_SIZE = 32 };

void cp_sha1(const void *p, size_t n, uint8_t out[CP_SHA1_SIZE]);

/* Streaming: init, any number of updates, final once. Holds no memory. */
typedef struct cp_sha256 {
    uint64_t total;
    uint32_t h[8];
    uint8_t block[64];
} cp_sha256;

void cp_sha256_init(cp_sha256 *s);
void cp_sha256_update(cp_sha256 *s, const void *p, size_t n);
void cp_sha256_final(cp_sha256 *s, uint8_t out[CP_SHA256_SIZE]);
void cp_sha256_of(const void *p, size_t n, uint8_t out[CP_SHA256_SIZE]);

/* Lower-case hex and a NUL. */
void cp_sha256_hex(const uint8_t digest[CP_SHA256_SIZE], char out[2 * CP_SHA256_SIZE + 1]);

/* Compares in a time that does not depend on where the bytes differ. */
bool cp_equal_ct(const void *a, const void *b, size_t n);
