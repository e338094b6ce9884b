/*
 * origin.h - which web pages may use the daemon, and under which names it may
 * be reached.
 *
 * A browser sends any page's requests to any address, 127.0.0.1 included, and
 * says in Origin whose page it was. A page whose own name was made to resolve
 * to 127.0.0.1 (DNS rebinding) is its own origin, and is told by Host alone.
 */
#ifndef ROPED_HTTP_ORIGIN_H
#define ROPED_HTTP_ORIGIN_H

#include "http/head.h"

struct origin_rules {
    const char
        *allowed_origins;      /* "https://a.example, http://b:8080", or "*" */
    const char *allowed_hosts; /* "gpu.example, other" */
    bool is_private; /* listens on loopback alone and wants no token: then the
                        name it is asked by must be its own */
};

/* ROPED_FORBIDDEN and ROPED_WRONG_HOST name the setting that would allow it;
 * ROPED_INVALID: the Host is none. */
ROPED_MUST_CHECK enum roped_status
origin_check(const struct origin_rules *rules, const struct head *head,
             struct roped_error *err);

/* The request's origin where it is one of allowed_origins, for the answer's
 * Access-Control-Allow-Origin; else NULL. */
const char *origin_allowed(const struct origin_rules *rules,
                           const struct head *head);

/* A browser asks whether it may send a request from an allowed origin. */
bool origin_is_preflight(const struct origin_rules *rules,
                         const struct head *head);

#endif
