/*
 * peers.h - the open connections: their number, their deadlines, which of them
 * are idle, and whose client has left.
 *
 * A connection counts from the moment it is accepted until it is closed. The
 * HTTP library takes it over in between, on a thread of its own and later: so
 * whoever accepts counts, and not who serves.
 *
 * The library's own timeout is one of inactivity, which a byte now and then
 * defeats. So each connection has an absolute deadline, and a thread shuts down
 * those that have passed. Deadlines move without a lock, several times in a
 * request: one that passes while it is moved may or may not be kept.
 *
 * CLIENTS THAT LEAVE. The library waits for edges of an epoll descriptor, and
 * takes a read that was shorter than its buffer for the last one: a FIN right
 * behind a client's last bytes it never sees. The same thread finds those. What
 * a FIN says depends on the socket: over TCP a client that has closed looks
 * like one that has only ended its sending side and waits for its answer, so
 * the library is woken, reads what is left and then the end, and an answer
 * still goes out. A reset, and a Unix socket whose other end is closed, say
 * that nobody waits (peer_is_gone).
 *
 * How fast an answer is read only the kernel knows: the same thread asks how
 * much of it was acknowledged.
 *
 * LOCK. One mutex guards the lists. Whoever shuts down a descriptor holds it,
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
    bool is_admin;                  /* it counts among those of admin_listen */
    _Atomic uint64_t deadline_ns;   /* 0: none */
    _Atomic uint64_t idle_since_ns; /* 0: a request is under way */
    atomic_bool is_sending;         /* its answer is on its way */
    atomic_bool is_gone;            /* the thread's: see peer_is_gone */
    uint64_t seen_ns, seen_acked;   /* the thread's: when it first saw that,
                                       and what was acknowledged then; 0: not */
    void *exchange;        /* transport.c's: the request under way, or NULL */
    struct tls_link *link; /* transport.c's, of a connection with TLS */
    struct peer *previous, *next;
};

struct peers {
    int most[2];          /* connections; [1]: of admin_listen */
    pthread_mutex_t lock; /* guards the following */
    int n[2];
    struct peer *first, *unused;      /* that are served; that were */
    struct peer *accepted;            /* that are not served yet */
    bool is_awaited;                  /* who accepts waits for one to close */
    int closed_fd;                    /* readable: one has closed since */
    double least_rate, grace_seconds; /* of answers: bytes a second, after */
    void (*on_gone)(void *context);
    void *context;
    pthread_cond_t wake; /* closing */
    bool is_closing, has_thread;
    pthread_t thread;
};

/* So many connections may be open, and besides them so many of admin_listen. */
void peers_init(struct peers *peers, int most, int most_admin);
void peers_fini(struct peers *peers); /* the thread has been stopped */

struct peers_options {
    double least_rate, grace_seconds;
    /* called without the lock, and again and again, while a request of a
     * client that is gone is under way; may be NULL */
    void (*on_gone)(void *context);
    void *context;
};

/* Starts and stops the thread that keeps the deadlines, finds clients that have
 * left, and cuts connections that read an answer at less than so many bytes a
 * second. A deadline that has passed while what the client sent waits to be
 * read is the daemon's own fault, and is put off. */
ROPED_MUST_CHECK enum roped_status
peers_start(struct peers *peers, const struct peers_options *options,
            struct roped_error *err);
void peers_stop(struct peers *peers);

/* May one more be accepted? If not, closed_fd will be readable as soon as one
 * has closed; by one thread. */
bool peers_have_room(struct peers *peers, bool is_admin);

/* Makes closed_fd unreadable. */
void peers_heed_closed(struct peers *peers);

/* A connection has been accepted, and counts; false: no memory. */
bool peers_add(struct peers *peers, int fd, bool is_admin);

/* It was not taken over, and its descriptor is closed. */
void peers_drop(struct peers *peers, int fd);

/* It is served from now on, and its first request line must come by the
 * deadline. */
struct peer *peers_serve(struct peers *peers, int fd, uint64_t deadline_ns);
void peers_remove(struct peers *peers, struct peer *peer);

int peers_count(struct peers *peers);

/* Shuts down the connection that has been idle longest, of those that count
 * alike; false: none is. */
bool peers_evict(struct peers *peers, bool is_admin);

/* Is a request under way on any of them, or a byte of one waiting to be read?
 */
bool peers_are_busy(struct peers *peers);

/* Does nobody wait for an answer? Known within a quarter of a second of a
 * reset, or of the close of a Unix socket; a FIN over TCP does not say so. */
bool peer_is_gone(const struct peer *peer);

/* When the connection is cut; 0: not at all. peer NULL: nothing. */
void peer_set_deadline(struct peer *peer, uint64_t deadline_ns);

/* The answer is on its way; until peer_set_idle. */
void peer_set_sending(struct peer *peer);

/* Between requests, or in one. */
void peer_set_idle(struct peer *peer, bool is_idle);

#endif
