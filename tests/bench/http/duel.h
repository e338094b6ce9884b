/*
 * duel.h - several servers measured in turns, again and again, so that a
 * machine that is slow for a while is slow for all of them.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_DUEL_H
#define ROPED_TESTS_BENCH_HTTP_DUEL_H

#include "bench/http/servers.h"
#include "load/client.h"
#include "load/stats.h"

enum { DUEL_MOST_CALLS = 20000 /* in a run */ };

struct contender {
    const struct server *server;
    struct http_request request; /* its body is the contender's: duel_free */
    bool by_curl;                /* through libcurl: no phases */
    const char *ca_file;         /* by_curl: over TLS; or NULL */
    const char *socket;  /* the path of a Unix socket to ask over, or NULL */
    int refusal;         /* by_curl: a code that is taken as well, or 0 */
    size_t answer_bytes; /* at most, where more than its body's */

    /* results */
    struct samples calls;   /* seconds of each */
    struct samples medians; /* of each run */
    struct samples rates;   /* calls per second of each run */
    struct samples phase[N_PHASES];
    uint64_t n_failed;
    double cpu_seconds; /* of the server, for n_asked calls, warm-up included */
    uint64_t n_asked;
};

struct duel_plan {
    int n_runs;
    double seconds; /* of a contender in a run, at least one call */
};

/* One connection each, one call after another. */
void duel_latency(struct contender *contenders, int n,
                  const struct duel_plan *plan);

/* So many connections at once, each with a call under way. */
void duel_rate(struct contender *contenders, int n,
               const struct duel_plan *plan, int n_connections);

/* Medians over the runs, and the best of them, in microseconds. */
double duel_median_us(struct contender *contender);
double duel_best_us(struct contender *contender);
double duel_rate_of(struct contender *contender);

/* CPU time of the server per call, user and kernel, in microseconds: what
 * other programs do on its CPU hardly moves it. 0: not known. */
double duel_cpu_us(const struct contender *contender);

/* Medians of the phases that the daemon named. */
struct phases duel_phases(struct contender *contender);

void duel_free(struct contender *contenders, int n);

#endif
