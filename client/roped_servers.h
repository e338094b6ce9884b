/*
 * roped_servers.h - a list of servers that are alike: which one gets a request,
 * and when it is sent again. It knows nothing of HTTP: whoever uses it makes
 * the attempts.
 */
#ifndef ROPED_CLIENT_SERVERS_H
#define ROPED_CLIENT_SERVERS_H

#include <roped/status.h>

#include <stdbool.h>
#include <stdint.h>

enum { SERVERS_MOST = 64 };

/* What became of an attempt that failed. */
enum fate {
    FATE_FINAL,     /* it is not sent again */
    FATE_UNKNOWN,   /* it may have run: the connection ended, or a proxy says
                       502, 503, 504 or 507 */
    FATE_UNREACHED, /* nothing was connected */
    FATE_REFUSED    /* the server is there, and did not run it */
};

struct servers_request {
    const char *method, *path;
    bool is_safe; /* it may run twice */
    bool is_kept; /* it needs what stays on a server: a region, a table,
                   * a program */
};

/* A GET, and a call of an operator that writes into no region, are safe. The
 * path may be percent-encoded. */
struct servers_request servers_request_make(const char *method,
                                            const char *path);

/* Seconds of a clock that only goes on. */
double servers_now(void);

struct servers {
    int n, home; /* home: -1 until something has to stay on a server */
    int rank[SERVERS_MOST]; /* by which home is chosen, the best first */
    double trusted_until[SERVERS_MOST]; /* of servers_now */
};

/* How high a server stands for a client's name; Python's client has the same,
 * so that both find each other's regions. */
uint64_t servers_rank(const char *name, const char *url);

void servers_init(struct servers *servers, const char *const *urls, int n,
                  const char *name);

/* Makes one attempt at server i, of the request, or of a readiness check where
 * the request is NULL. */
typedef enum roped_status
servers_attempt_fn(void *context, int i, const struct servers_request *request,
                   enum fate *fate, struct roped_error *err);

/* Attempts until one succeeds or nobody is left; each server once, the home
 * twice. */
enum roped_status servers_send(struct servers *servers,
                               const struct servers_request *request,
                               servers_attempt_fn *attempt, void *context,
                               struct roped_error *err);

#endif
