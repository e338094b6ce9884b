/*
 * acceptor.h - takes connections off the listening sockets and deals them out
 * to the threads that serve them.
 *
 * Threads that accept for themselves do not share: one that is awake takes
 * whatever has come, and eight clients that connect at once may all be served
 * by one of four threads for as long as they stay. Dealt out by the number of
 * the descriptor they are spread evenly.
 */
#ifndef ROPED_HTTP_ACCEPTOR_H
#define ROPED_HTTP_ACCEPTOR_H

#include "http/listeners.h"
#include "http/transport.h"

#include <roped/status.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct acceptor {
    struct listeners listeners; /* the caller opens them */
    int stop_fd;                /* readable: stop */
    atomic_bool leaves;         /* set before: those that come are left */
    bool has_thread;
    pthread_t thread;
};

/* Starts its thread. The transports of the listeners must run, and take
 * connections until acceptor_stop. Where as many are open as may be
 * (peers_init), the one that has been idle longest is closed for the next;
 * where none is idle, those that come wait in the backlog. */
ROPED_MUST_CHECK enum roped_status acceptor_start(struct acceptor *acceptor,
                                                  struct roped_error *err);

/* Takes what has come, and closes the listening sockets: none that the kernel
 * has let in is reset, and who comes later is refused. Takes 50 ms. Once or
 * several times, also where it never started. */
void acceptor_stop(struct acceptor *acceptor);

/* Takes no more, at once; the sockets stay open, and who comes waits in the
 * backlog for another process. */
void acceptor_leave(struct acceptor *acceptor);

#endif
