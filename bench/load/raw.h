#pragma once
/* The raw limits: what this machine gives to anybody. Each is a scenario: prints its report, returns the exit status.
 */
#include <sys/types.h>

int raw_echo_server(void); /* prints its port; ends with stdin */
int raw_mux_server(void);  /* likewise */
int raw_spawn(void);
int raw_pipe(void);
int raw_socket(void);
int raw_commit(void);
int raw_dd_get(void);
int raw_dd_put(void);

/* Starts a program, found by PATH, with these for its standard descriptors; -1: with ours. argv ends with NULL. */
pid_t raw_start(const char *const argv[], int in, int out, int err);

/* A frame of the raw mux: this head, then `length` bytes. Id 0 carries the output of the command (to the server: the
 * command itself), any other id comes back as it was sent. */
typedef struct raw_head {
    unsigned length, id;
} raw_head;
enum { RAW_CALL = 64 /* a whole call, head included: as long as the message of an echo */ };
