#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Does any socket of this network namespace listen on the TCP port? Reads /proc/net/tcp and tcp6: blocks for as long as
 * the kernel takes to print its table, so not for the loop. Asking the table disturbs nobody, where a connection would
 * be accepted by the program that is being waited for. */
bool cp_port_listening(uint16_t port);
/* One line of the table: a listening socket on this port? Pure. */
bool cp_port_line_listens(const char *line, uint16_t port);
