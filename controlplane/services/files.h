#pragma once
/* File operations: blocking, any thread, no loop. Paths are resolved by the caller's base folder and, with a file root,
 * confined to it (openat2 RESOLVE_BENEATH; design.md section 11). Cut as you need; see files*.c. */
#include "base/buf.h"
#include "base/err.h"
