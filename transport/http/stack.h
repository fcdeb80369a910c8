#pragma once
/* Gives the unused part of the calling thread's stack back to the kernel. A few hundred workers take turns in serving
 * connections: without this each keeps the pages of the deepest call it ever made, though it sleeps near the top. One
 * system call, a microsecond; the pages come back, zeroed, when the stack grows again. */
void cp_stack_trim(void);
