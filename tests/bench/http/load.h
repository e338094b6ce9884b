/*
 * load.h - many keep-alive connections on one thread, each with one request
 * under way at any time: rates, and how long calls take under them.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_LOAD_H
#define ROPED_TESTS_BENCH_HTTP_LOAD_H

#include "bench/http/client.h"
#include "bench/http/stats.h"

enum { LOAD_MOST_CONNECTIONS = 1024 };

struct load {
    uint64_t n_calls; /* answered with 200, and counted */
    uint64_t n_all;   /* those of the warm-up too */
    uint64_t n_failed;
    double seconds;         /* that they took together */
    struct samples latency; /* seconds per call; stats_free */
};

/* Sends request over n connections to a port for so long, after a tenth of
 * that which is not counted. False, with a line: no connection. */
bool load_run(uint16_t port, const struct http_request *request,
              int n_connections, double seconds, struct load *out);

#endif
