/*
 * transport.h - between the HTTP library and requests: feeds each request what
 * arrives, runs its jobs, sends its reply. The one place that answers.
 */
#ifndef ROPED_HTTP_TRANSPORT_H
#define ROPED_HTTP_TRANSPORT_H

#include "http/shared.h"

#include <netinet/in.h>

struct tls;

struct transport {
    struct service *service;
    struct tls *tls; /* NULL: plain HTTP */
    bool is_admin;   /* health and metrics alone, on one thread */
    struct MHD_Daemon *mhd;
    struct exchange_cache *_Atomic caches; /* one of each thread */
};

/* Starts the threads that serve connections, as its first fields, which are
 * set, say; stops them, and cuts what is still open. Stopping one that never
 * started does nothing. */
ROPED_MUST_CHECK enum roped_status transport_start(struct transport *transport,
                                                   struct roped_error *err);
void transport_stop(struct transport *transport);

/* Serves a connection that counts (peers_add), and takes its descriptor. */
void transport_add(struct transport *transport, int fd,
                   const struct sockaddr *address, socklen_t bytes);

#endif
