/*
 * daemon.h - the HTTP server: start, drain, stop.
 */
#ifndef ROPED_HTTP_DAEMON_H
#define ROPED_HTTP_DAEMON_H

#include "config.h"
#include "exec/executor.h"
#include "handover.h"
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
    struct handover *handover; /* its sockets are used where they fit */
};

/* Listens and serves; *port is the first that is bound, 0: there are Unix
 * sockets alone. */
ROPED_MUST_CHECK enum roped_status
daemon_start(const struct daemon_options *options, struct daemon **out,
             uint16_t *port, struct roped_error *err);

/* Readiness turns 503, answers carry Connection: close; calls go on. */
void daemon_set_draining(struct daemon *daemon);

/* Reads again what the settings name: tokens and certificates. Where that
 * fails, what was read before stays in force. */
ROPED_MUST_CHECK enum roped_status daemon_reload(struct daemon *daemon,
                                                 struct roped_error *err);

/* Takes the connections that have come, and no more: the port is closed. Those
 * that are open are served on. */
void daemon_close_listener(struct daemon *daemon);

/* Takes no more connections, and leaves the sockets open; then notes them for
 * the process that takes this one's place. */
void daemon_leave_listener(struct daemon *daemon);
void daemon_hand_over(const struct daemon *daemon, struct handover *out);

/* Open connections; and those of them whose request is not answered to its last
 * byte, or has sent what is not read yet. */
int daemon_connections(struct daemon *daemon);
bool daemon_is_busy(struct daemon *daemon);

/* After exec_drain: cuts the connections that are left and frees all. */
void daemon_stop(struct daemon *daemon);

#endif
