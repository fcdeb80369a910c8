#pragma once
/* Ctrl-C and its like while a command runs: the first signal goes to the command there, with all its descendants; the
 * second leaves it. */
#include <pthread.h>
#include <stdatomic.h>

#include "cli/cli.h"

typedef struct cli_interrupt {
    cli *c;
    const char *execution_id;
    pthread_t thread;
    bool started;
    int signals, wake, again; /* again: what was sent found no command, which may still be on its way */
    atomic_int passed;        /* the signal that was passed on; 0: none */
    pthread_mutex_t mu;
    char process_id[256]; /* under mu; "": none is known, and the execution is ended instead */
} cli_interrupt;

/* Before any other thread is started, which are to have these signals blocked. */
int cli_interrupt_start(cli_interrupt *i, cli *c, const char *execution_id);
void cli_interrupt_process(cli_interrupt *i, const char *process_id);
void cli_interrupt_stop(cli_interrupt *i);
