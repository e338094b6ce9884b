/*
 * peers.h - the open connections: their number, their deadlines, and which of
 * them are idle.
 *
 * The HTTP library's own timeout is one of inactivity, which a byte now and
 * then defeats. So each connection has an absolute deadline, and a thread shuts
 * down those that have passed. Deadlines move without a lock, several times in
 * a request: one that passes while it is moved may or may not be kept.
 *
 * How fast an answer is read only the kernel knows: the same thread asks how
 * much of it was acknowledged.
 *
 * LOCK. One mutex guards the list. Whoever shuts down a descriptor holds it,
 * and so does the removal of a connection before its descriptor is closed: a
 * descriptor is never shut down after its number was reused.
 */
#ifndef ROPED_HTTP_PEERS_H
#define ROPED_HTTP_PEERS_H

#include <roped/status.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One open connection. */
struct peer {
    int fd;
    _Atomic uint64_t deadline_ns;   /* 0: none */
    _Atomic uint64_t idle_since_ns; /* 0: a request is under way */
    atomic_bool is_sending;         /* its answer is on its way */
    uint64_t seen_ns, seen_acked;   /* the thread's: when it first saw that,
                                       and what was acknowledged then; 0: not */
    void *exchange;        /* transport.c's: the request under way, or NULL */
    struct tls_link *link; /* transport.c's, of a connection with TLS */
    struct peer *previous, *next;
};

struct peers {
    pthread_mutex_t lock; /* guards the lists */
    struct peer *first, *unused;
    int n;
    double least_rate, grace_seconds; /* of answers: bytes a second, after */
    pthread_cond_t wake;              /* closing */
    bool is_closing, has_thread;
    pthread_t thread;
};

void peers_init(struct peers *peers);
void peers_fini(struct peers *peers); /* the thread has been stopped */

/* Starts and stops the thread that keeps the deadlines, and cuts connections
 * that read an answer at less than so many bytes a second. A deadline that has
 * passed while what the client sent waits to be read is the daemon's own fault,
 * and is put off. */
ROPED_MUST_CHECK enum roped_status peers_start(struct peers *peers,
                                               double least_rate,
                                               double grace_seconds,
                                               struct roped_error *err);
void peers_stop(struct peers *peers);

/* A connection has opened, and its first request line must come by the
 * deadline; NULL: no memory. */
struct peer *peers_add(struct peers *peers, int fd, uint64_t deadline_ns);
void peers_remove(struct peers *peers, struct peer *peer);

int peers_count(struct peers *peers);

/* Shuts down the connection that has been idle longest; false: none is. */
bool peers_evict(struct peers *peers);

/* Is a request under way on any of them, or a byte of one waiting to be read?
 */
bool peers_are_busy(struct peers *peers);

/* Has the other side closed the connection, at least for sending? Bytes that
 * it sent before that may wait. */
bool peer_has_left(const struct peer *peer);

/* When the connection is cut; 0: not at all. peer NULL: nothing. */
void peer_set_deadline(struct peer *peer, uint64_t deadline_ns);

/* The answer is on its way; until peer_set_idle. */
void peer_set_sending(struct peer *peer);

/* Between requests, or in one. */
void peer_set_idle(struct peer *peer, bool is_idle);

#endif
