/*
 * daemon_internal.h - what the files of the HTTP room share: the open server.
 */
#ifndef ROPED_HTTP_DAEMON_INTERNAL_H
#define ROPED_HTTP_DAEMON_INTERNAL_H

#include "http/acceptor.h"
#include "http/daemon.h"
#include "http/request.h"

#include <pthread.h>
#include <stdatomic.h>

enum { DAEMON_TOKEN_BYTES = 256 };

struct daemon {
    const struct config *config;
    struct executor *exec;
    struct metrics *metrics;
    const struct models *models;
    const char *version;
    struct MHD_Daemon *mhd;
    int listen_fd; /* open until the end: who comes late waits, and is cut off
                      with the process */
    struct acceptor acceptor;
    uint64_t start_time_seconds;
    char token[DAEMON_TOKEN_BYTES]; /* "" : open to all */
    atomic_bool is_draining;        /* not ready, still taking calls */
    atomic_bool is_quiescent;       /* no new calls either */

    pthread_mutex_t requests_lock; /* guards the following */
    struct request *free_requests;
    int n_requests; /* begun and not completed */

    pthread_mutex_t peers_lock; /* guards the lists of peers and their number */
    struct peer *peers;
    struct peer *free_peers;
    int n_peers;
    pthread_cond_t reap; /* closing */
    bool is_closing;
    bool has_reaper;
    pthread_t reaper;
};

/* Sets when the peer's connection is cut; 0: not at all. peer NULL: none. */
void daemon_set_deadline(struct peer *peer, uint64_t deadline_ns);

/* CLOCK_MONOTONIC nanoseconds, now. */
uint64_t daemon_now_ns(void);

/* In some seconds, to the tick of the system's timer (1 to 10 ms early): for
 * deadlines that a reaper keeps, of which a request sets several. */
uint64_t daemon_after_ns(double seconds);

#endif
