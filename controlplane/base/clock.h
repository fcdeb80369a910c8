#pragma once
/* Time. Deadlines and durations use the monotonic clock in milliseconds; what clients see is wall-clock time. */
#include <stddef.h>
#include <stdint.h>

uint64_t cp_now_ms(void); /* CLOCK_MONOTONIC */
uint64_t cp_now_us(void);
uint64_t cp_now_ns(void);
int64_t cp_wall_ms(void); /* CLOCK_REALTIME, milliseconds since the epoch */
#define CP_ISO_LEN 24
/* "YYYY-MM-DDTHH:MM:SS.mmmZ" with NUL into out[CP_ISO_LEN + 1]; any thread. */
void cp_iso(int64_t wall_ms, char out[CP_ISO_LEN + 1]);
