/*
 * load.h - many clients on one thread and one epoll descriptor, so that they
 * take little of the machine: each sends a whole request, then reads its
 * answer, then sends the next one over the same connection for as long as the
 * server keeps that open. In this process, or beside it in one of their own.
 */
#ifndef ROPED_TESTS_LOAD_LOAD_H
#define ROPED_TESTS_LOAD_LOAD_H

#include "load/client.h"
#include "load/stats.h"

#include <stdatomic.h>

struct load {
    int port, n_clients;
    const struct http_request *request; /* each client begins with another */
    int n_requests;
    bool keeps_request;      /* and repeats it instead of taking the next */
    double warm_up_seconds;  /* calls that end by then are not timed */
    double seconds;          /* after that; then no more requests are sent */
    double patience_seconds; /* for the answers that are due by then */
    double pause_seconds;    /* before each request but the first; one client */
    bool ends_refused; /* a refused connection ends its client, and is no loss:
                          the server has stopped listening */
};

/* What became of the requests. A lost one was begun, and its connection was
 * reset or closed before it was all sent or answered, or its answer did not
 * come in time. */
enum { LOAD_WHY_BYTES = 128 };
struct load_result {
    int64_t n_sent;
    int64_t n_ok;      /* 200 */
    int64_t n_refused; /* 503 with Retry-After */
    int64_t n_wrong;   /* any other answer */
    int64_t n_lost;
    int64_t n_unconnected;    /* connections that were refused */
    int64_t n_timed;          /* of n_ok */
    double seconds;           /* that those took together */
    struct samples latency;   /* of each: seconds from the first byte sent to
                                 the last one read */
    char why[LOAD_WHY_BYTES]; /* of the first that was lost or wrong */
    atomic_bool is_over;      /* set it to end the load early */
};

/* Runs the load. Free result->latency. */
void load_run(const struct load *load, struct load_result *result);

/* A process that runs it, and where its figures appear. */
struct load_child {
    pid_t pid;
    struct load_result *result;
};

/* Starts the clients. The requests may be freed after that. */
struct load_child load_start(const struct load *load);

/* Waits for them; then the figures stand still. Fails the test (exit) where
 * their process ended badly. */
void load_wait(struct load_child *child);
void load_free(struct load_child *child);

/*
 * Runs the load with its clients shared out to processes, one for every two
 * cores: one thread asks some 130,000 times a second, which a daemon of 16
 * cores answers with a few of them. The figures are those of all together; why
 * is the first one's that has a reason. Free result->latency.
 */
void load_run_spread(const struct load *load, struct load_result *result);

/* One line of figures on standard output. */
void load_print(const char *name, struct load_result *result, double seconds);

#endif
