/*
 * daemon.h - the HTTP server: start, drain, stop. libmicrohttpd is known to
 * the files of this room and to nothing else.
 */
#ifndef ROPED_HTTP_DAEMON_H
#define ROPED_HTTP_DAEMON_H

#include "config.h"
#include "exec/executor.h"
#include "metrics.h"
#include "wire/models.h"

#include <stdint.h>

struct daemon;

struct daemon_options {
    const struct config *config;
    struct executor *exec;
    struct metrics *metrics;
    const struct models *models; /* outlive the daemon */
    const char *version;
};

/* Listens and serves; *port is the one bound. */
ROPED_MUST_CHECK enum roped_status
daemon_start(const struct daemon_options *options, struct daemon **out,
             uint16_t *port, struct roped_error *err);

/* Readiness turns 503, answers carry Connection: close; calls go on. */
void daemon_set_draining(struct daemon *daemon);

/* Stops accepting connections and calls; requests in flight go on. */
void daemon_quiesce(struct daemon *daemon);

/* Requests whose answer is not yet sent to its last byte. */
int daemon_requests(struct daemon *daemon);

/* After exec_drain: cuts the connections that are left and frees all. */
void daemon_stop(struct daemon *daemon);

#endif
