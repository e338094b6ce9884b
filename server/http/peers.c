/*
 * peers.c - the open connections and their deadlines.
 */
#include "http/peers.h"

#include "http/clock.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

enum { REAP_INTERVAL_MS = 250 };

void peers_init(struct peers *peers)
{
    pthread_condattr_t monotonic;
    *peers = (struct peers){.n = 0};
    pthread_mutex_init(&peers->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&peers->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void peers_fini(struct peers *peers)
{
    while (peers->unused) {
        struct peer *peer = peers->unused;
        peers->unused = peer->next;
        free(peer);
    }
    pthread_cond_destroy(&peers->wake);
    pthread_mutex_destroy(&peers->lock);
}

struct peer *peers_add(struct peers *peers, int fd, uint64_t deadline_ns)
{
    pthread_mutex_lock(&peers->lock);
    struct peer *peer = peers->unused;
    if (peer)
        peers->unused = peer->next;
    else
        peer = malloc(sizeof *peer);
    if (peer) {
        *peer = (struct peer){.fd = fd,
                              .deadline_ns = deadline_ns,
                              .idle_since_ns = clock_after_ns(0),
                              .next = peers->first};
        if (peers->first)
            peers->first->previous = peer;
        peers->first = peer;
        peers->n++;
    }
    pthread_mutex_unlock(&peers->lock);
    return peer;
}

void peers_remove(struct peers *peers, struct peer *peer)
{
    pthread_mutex_lock(&peers->lock);
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        peers->first = peer->next;
    if (peer->next)
        peer->next->previous = peer->previous;
    peer->next = peers->unused;
    peers->unused = peer;
    peers->n--;
    pthread_mutex_unlock(&peers->lock);
}

int peers_count(struct peers *peers)
{
    pthread_mutex_lock(&peers->lock);
    int n = peers->n;
    pthread_mutex_unlock(&peers->lock);
    return n;
}

/* Under lock. */
static void cut(struct peer *peer)
{
    shutdown(peer->fd, SHUT_RDWR);
    peer_set_deadline(peer, 0);
    peer_set_idle(peer, false);
}

bool peers_evict(struct peers *peers)
{
    struct peer *oldest = NULL;
    uint64_t least = UINT64_MAX;
    pthread_mutex_lock(&peers->lock);
    for (struct peer *peer = peers->first; peer; peer = peer->next) {
        uint64_t since =
            atomic_load_explicit(&peer->idle_since_ns, memory_order_relaxed);
        if (since == 0 || since >= least)
            continue;
        least = since;
        oldest = peer;
    }
    if (oldest)
        cut(oldest);
    pthread_mutex_unlock(&peers->lock);
    return oldest != NULL;
}

static bool has_input(const struct peer *peer)
{
    int bytes = 0;
    return ioctl(peer->fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

static bool is_busy(const struct peer *peer)
{
    return atomic_load(&peer->idle_since_ns) == 0 || has_input(peer);
}

bool peers_are_busy(struct peers *peers)
{
    bool are_busy = false;
    pthread_mutex_lock(&peers->lock);
    for (struct peer *peer = peers->first; peer && !are_busy; peer = peer->next)
        are_busy = is_busy(peer);
    pthread_mutex_unlock(&peers->lock);
    return are_busy;
}

/* With TLS the goodbye itself is bytes, so these say nothing. */
bool peer_has_left(const struct peer *peer)
{
    struct pollfd connection = {.fd = peer->fd, .events = POLLRDHUP};
    return poll(&connection, 1, 0) == 1;
}

void peer_set_deadline(struct peer *peer, uint64_t deadline_ns)
{
    if (peer)
        atomic_store_explicit(&peer->deadline_ns, deadline_ns,
                              memory_order_relaxed);
}

void peer_set_idle(struct peer *peer, bool is_idle)
{
    if (!peer)
        return;
    if (is_idle)
        atomic_store_explicit(&peer->is_sending, false, memory_order_relaxed);
    atomic_store_explicit(&peer->idle_since_ns, is_idle ? clock_after_ns(0) : 0,
                          memory_order_relaxed);
}

void peer_set_sending(struct peer *peer)
{
    if (peer)
        atomic_store_explicit(&peer->is_sending, true, memory_order_relaxed);
}

/* Bytes that the other side has acknowledged; UINT64_MAX: nobody knows. */
static uint64_t acknowledged(const struct peer *peer)
{
    struct tcp_info info = {.tcpi_bytes_acked = UINT64_MAX};
    socklen_t bytes = sizeof info;
    if (getsockopt(peer->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return UINT64_MAX;
    return info.tcpi_bytes_acked;
}

/* Under lock: has it been given long enough? */
static bool is_late(const struct peer *peer, uint64_t now)
{
    uint64_t deadline =
        atomic_load_explicit(&peer->deadline_ns, memory_order_relaxed);
    return deadline != 0 && deadline < now &&
           (atomic_load_explicit(&peer->is_sending, memory_order_relaxed) ||
            !has_input(peer));
}

/* Under lock: is its answer read too slowly? */
static bool is_slow(const struct peers *peers, struct peer *peer, uint64_t now)
{
    if (!atomic_load_explicit(&peer->is_sending, memory_order_relaxed)) {
        peer->seen_ns = 0;
        return false;
    }
    uint64_t acked = acknowledged(peer);
    if (acked == UINT64_MAX) /* a Unix socket: its deadline has to do */
        return false;
    if (peer->seen_ns == 0) {
        peer->seen_ns = now;
        peer->seen_acked = acked;
    }
    double seconds =
        (double)(now - peer->seen_ns) * 1e-9 - peers->grace_seconds;
    return seconds > 0 &&
           (double)(acked - peer->seen_acked) < seconds * peers->least_rate;
}

static void *reap(void *context)
{
    struct peers *peers = context;
    pthread_mutex_lock(&peers->lock);
    while (!peers->is_closing) {
        uint64_t now = clock_now_ns();
        uint64_t next = now + REAP_INTERVAL_MS * 1000000ull;
        struct timespec until = {(time_t)(next / 1000000000u),
                                 (long)(next % 1000000000u)};
        for (struct peer *peer = peers->first; peer; peer = peer->next)
            if (is_late(peer, now) || is_slow(peers, peer, now))
                cut(peer);
        pthread_cond_timedwait(&peers->wake, &peers->lock, &until);
    }
    pthread_mutex_unlock(&peers->lock);
    return NULL;
}

enum roped_status peers_start(struct peers *peers, double least_rate,
                              double grace_seconds, struct roped_error *err)
{
    peers->least_rate = least_rate;
    peers->grace_seconds = grace_seconds;
    peers->has_thread = pthread_create(&peers->thread, NULL, reap, peers) == 0;
    return peers->has_thread
               ? ROPED_OK
               : roped_fail(
                     err, ROPED_NO_MEMORY,
                     "cannot start the thread that ends slow connections");
}

void peers_stop(struct peers *peers)
{
    if (!peers->has_thread)
        return;
    pthread_mutex_lock(&peers->lock);
    peers->is_closing = true;
    pthread_cond_signal(&peers->wake);
    pthread_mutex_unlock(&peers->lock);
    pthread_join(peers->thread, NULL);
    peers->has_thread = false;
}
