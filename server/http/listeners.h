/*
 * listeners.h - the sockets that clients connect to: those that the settings
 * name, or those that the service manager passes (LISTEN_FDS, systemd).
 */
#ifndef ROPED_HTTP_LISTENERS_H
#define ROPED_HTTP_LISTENERS_H

#include "config.h"
#include "handover.h"

#include <roped/status.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { MOST_LISTENERS = 16 };

struct transport;

struct listener {
    int fd;                       /* not blocking */
    const char *setting;          /* that asks for it; NULL: passed */
    char text[CONFIG_TEXT_BYTES]; /* of that setting */
    struct sockaddr_storage address;
    bool is_admin;
    bool is_passed;              /* it listens on when the daemon has ended */
    dev_t device;                /* of a Unix socket's file that is ours */
    ino_t inode;                 /* 0: none is */
    struct transport *transport; /* the caller's: who serves it */
};

struct listeners {
    int n;
    struct listener item[MOST_LISTENERS];
};

/* Listens everywhere: what was handed over for a place is taken for it.
 * ROPED_INVALID names the setting and its text. Where it fails nothing is left
 * open. */
ROPED_MUST_CHECK enum roped_status listeners_open(const struct config *config,
                                                  struct handover *handover,
                                                  struct listeners *out,
                                                  struct roped_error *err);
void listeners_close(struct listeners *listeners);

/* Notes them for the process that takes the place of this one, and keeps them
 * open for it. */
void listeners_hand_over(const struct listeners *listeners,
                         struct handover *out);

/* From here on nobody new gets in; those that are in wait to be accepted. */
void listener_let_nobody_in(struct listener *listener);

/* A Unix socket: no TLS, no port. */
bool listener_is_local(const struct listener *listener);

uint16_t listener_port(const struct listener *listener); /* 0: it has none */

#endif
