/*
 * load.h - ordinary clients in a process of their own: each sends a whole
 * request, then reads its answer, then sends the next one over the same
 * connection for as long as the server keeps that open. One thread and one
 * epoll descriptor, so that the clients take little of the machine.
 */
#ifndef ROPED_TESTS_ATTACK_LOAD_H
#define ROPED_TESTS_ATTACK_LOAD_H

#include "attack/attack.h"

#include <stdatomic.h>
#include <stdint.h>

struct load {
    int port, n_clients;
    double seconds;              /* then no more requests are sent */
    double patience_seconds;     /* for the answers that are due by then */
    const struct bytes *request; /* each client begins with another one */
    int n_requests;
    double pause_seconds; /* before each request but the first; one client */
    bool ends_refused; /* a refused connection ends its client, and is no loss:
                          the server has stopped listening */
};

/* What became of the requests. A lost one was begun, and its connection was
 * reset or closed before it was all sent or answered, or its answer did not
 * come in time. */
enum { LOAD_SAMPLES = 1 << 20, LOAD_WHY_BYTES = 128 };
struct load_result {
    int64_t n_sent;
    int64_t n_ok;      /* 200 */
    int64_t n_refused; /* 503 with Retry-After */
    int64_t n_wrong;   /* any other answer */
    int64_t n_lost;
    int64_t n_unconnected; /* connections that were refused */
    size_t n_samples;
    double sample[LOAD_SAMPLES]; /* seconds from the first byte sent to the
                                    last one of a 200 read */
    char why[LOAD_WHY_BYTES];    /* of the first that was lost or wrong */
    atomic_bool is_over;         /* set it to end the load early */
};

/* The process and where its figures appear. */
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

/* One line of figures on standard output. */
void load_print(const char *name, struct load_result *result, double seconds);

#endif
