#pragma once
/* Scenarios whose figure is bytes per second. */
#include <stdint.h>

/* Prints the report; more as in window_report. */
void bytes_report(const char *name, uint64_t bytes, uint64_t ns, const char *more);
/* Sends this many bytes of text to a blocking socket. */
void bytes_send(int fd, uint64_t n);

int bytes_get(void);    /* GET opt.path */
int bytes_put(void);    /* PUT opt.size bytes to opt.path */
int bytes_stream(void); /* one stream on a WebSocket: bytes of the child's stdout */
int bytes_sse(void);    /* the same as server-sent events */
