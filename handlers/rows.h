#pragma once
/* Answers that hold a list as long as clients make it. They are written in rounds of the loop, so that others have
 * their turn; a few at a time, the others wait. What a list holds is settled when its turn begins, each row is what it
 * is when it is written. A short list is answered before cp_rows_answer returns. Loop thread. */
#include "handlers/router.h"

typedef struct cp_rows cp_rows;
typedef struct cp_rows_ops {
    const char *key;                   /* of the array in {"success":true, …, "timestamp"} */
    void (*begin)(cp_rows *r);         /* its turn has come: takes down what there is; may be NULL */
    bool (*row)(cp_rows *r, cp_jw *w); /* writes the next row, or passes one over; false: there was none */
    void (*free)(cp_rows *r);
} cp_rows_ops;

/* Embed in the list's own, on the heap, zeroed. */
struct cp_rows {
    const cp_rows_ops *ops;
    cp_ctx *ctx;
    cp_reply *reply;       /* NULL: the client has gone */
    cp_rows *next, **link; /* of those that wait for their turn; link: what points to it */
    bool waits;
    cp_task task;
    cp_result res;
    cp_jw w;
};

/* Takes r, which is freed by its ops when it is over. */
void cp_rows_answer(cp_rows *r, const cp_rows_ops *ops, cp_ctx *ctx, cp_reply *reply);
