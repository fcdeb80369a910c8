#pragma once
/* Loopback sockets: no other address is ever dialled. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Connects to 127.0.0.1:opt.port, TCP_NODELAY. sock_dial blocks until it is open; sock_begin does not wait for it. */
int sock_dial(void);
int sock_begin(void);
/* Listens on a free port of 127.0.0.1 and writes that into *port. */
int sock_listen(uint16_t *port);
int sock_accept(int listener, int flags);
/* Sends all, waiting where the peer is slow. */
void sock_send(int fd, const void *p, size_t n);
/* Closes so that no port stays in TIME_WAIT: a client that connects for each request runs out of them otherwise. */
void sock_drop(int *fd);
/* As many descriptors as may be. */
void sock_raise_limit(void);
/* Epoll with a data pointer. */
void sock_watch(int ep, int op, int fd, uint32_t events, void *p);
