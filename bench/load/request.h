#pragma once
/* The requests of an operation. The body is a template: $OFFSET is step * step size, $LAST is true in the last step,
 * $ID a number that no other operation has, $DATA as many bytes of text as a step holds, 77 to a line, escaped as in
 * JSON. So one command line describes a call, an upload in pieces or a ranged download. */
#include "base/buf.h"
#include "load/load.h"

/* Reads opt.body once. */
void request_prepare(void);
/* True when every request has the same text: it can be made once. */
bool request_fixed(void);
bool request_has_body(void);
/* Appends the body for this step of this operation. */
void request_body(cp_buf *out, uint64_t op, uint64_t step);
