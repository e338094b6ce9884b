/*
 * proxy.h - HAProxy, nginx and Envoy with the files of deploy/proxy, as child
 * processes in front of three daemons on ports of 127.0.0.1.
 */
#ifndef ROPED_TESTS_LOAD_PROXY_H
#define ROPED_TESTS_LOAD_PROXY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { PROXY_DAEMONS = 3 };

struct proxy_kind {
    const char *file, *port;    /* port: what stands before one in the file */
    const char *before, *after; /* what makes the file a whole one */
    char *command[8];           /* in a folder that has the file */
};
extern const struct proxy_kind proxy_haproxy, proxy_nginx, proxy_envoy;

struct proxy {
    const struct proxy_kind *kind;
    pid_t pid;
    uint16_t port;
    char folder[32]; /* of its files */
};

/* Where a program is: on PATH, or in /usr/sbin, which is often not on it. NULL:
 * nowhere; what is returned stays until the next call. */
const char *proxy_find_program(const char *name);

/* Starts one, and waits until requests through it are answered. False: it is
 * not installed, and a line has said so. Exits on failure. */
bool proxy_start(struct proxy *proxy, const struct proxy_kind *kind,
                 const uint16_t daemons[PROXY_DAEMONS]);
void proxy_stop(struct proxy *proxy);

#endif
