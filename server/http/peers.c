/*
 * peers.c - the open connections and their deadlines.
 */
#include "http/peers.h"

#include "http/clock.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REAP_INTERVAL_MS = 250, BATCH = 64 };

static const uint64_t serve_ns = 1000000000; /* what is accepted is served by
                                                then, or looked after */

void peers_init(struct peers *peers, int most, int most_admin)
{
    pthread_condattr_t monotonic;
    *peers = (struct peers){.most = {most, most_admin}, .closed_fd = -1};
    pthread_mutex_init(&peers->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&peers->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void free_list(struct peer *first)
{
    while (first) {
        struct peer *peer = first;
        first = peer->next;
        free(peer);
    }
}

void peers_fini(struct peers *peers)
{
    free_list(peers->unused);
    free_list(peers->accepted);
    if (peers->closed_fd >= 0)
        close(peers->closed_fd);
    pthread_cond_destroy(&peers->wake);
    pthread_mutex_destroy(&peers->lock);
}

/* Under lock. */
static void list(struct peer **list, struct peer *peer)
{
    peer->previous = NULL;
    peer->next = *list;
    if (peer->next)
        peer->next->previous = peer;
    *list = peer;
}

/* Under lock. */
static void unlist(struct peer **list, struct peer *peer)
{
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        *list = peer->next;
    if (peer->next)
        peer->next->previous = peer->previous;
}

/* Under lock: it is on no list, and counts no more. */
static void forget(struct peers *peers, struct peer *peer)
{
    peer->next = peers->unused;
    peers->unused = peer;
    peers->n[peer->is_admin]--;
    if (peers->is_awaited)
        (void)eventfd_write(peers->closed_fd, 1);
    peers->is_awaited = false;
}

/* Under lock: one that is accepted and not served, or NULL. Few are. */
static struct peer *find_accepted(struct peers *peers, int fd)
{
    struct peer *peer = peers->accepted;
    while (peer && peer->fd != fd)
        peer = peer->next;
    return peer;
}

void peers_drop(struct peers *peers, int fd)
{
    pthread_mutex_lock(&peers->lock);
    struct peer *peer = find_accepted(peers, fd);
    if (peer) {
        unlist(&peers->accepted, peer);
        forget(peers, peer);
    }
    pthread_mutex_unlock(&peers->lock);
}

bool peers_have_room(struct peers *peers, bool is_admin)
{
    pthread_mutex_lock(&peers->lock);
    bool has_room = peers->n[is_admin] < peers->most[is_admin];
    peers->is_awaited = !has_room;
    pthread_mutex_unlock(&peers->lock);
    return has_room;
}

void peers_heed_closed(struct peers *peers)
{
    eventfd_t n;
    (void)eventfd_read(peers->closed_fd, &n);
}

bool peers_add(struct peers *peers, int fd, bool is_admin)
{
    peers_drop(peers, fd); /* that number was closed without a word */
    pthread_mutex_lock(&peers->lock);
    struct peer *peer = peers->unused;
    if (peer)
        peers->unused = peer->next;
    else
        peer = malloc(sizeof *peer);
    if (peer) {
        uint64_t now = clock_after_ns(0);
        *peer =
            (struct peer){.fd = fd, .is_admin = is_admin, .idle_since_ns = now};
        list(&peers->accepted, peer);
        peers->n[is_admin]++;
    }
    pthread_mutex_unlock(&peers->lock);
    return peer != NULL;
}

struct peer *peers_serve(struct peers *peers, int fd, uint64_t deadline_ns)
{
    pthread_mutex_lock(&peers->lock);
    struct peer *peer = find_accepted(peers, fd);
    if (peer) {
        unlist(&peers->accepted, peer);
        list(&peers->first, peer);
        peer_set_deadline(peer, deadline_ns);
    }
    pthread_mutex_unlock(&peers->lock);
    return peer;
}

void peers_remove(struct peers *peers, struct peer *peer)
{
    pthread_mutex_lock(&peers->lock);
    unlist(&peers->first, peer);
    forget(peers, peer);
    pthread_mutex_unlock(&peers->lock);
}

int peers_count(struct peers *peers)
{
    pthread_mutex_lock(&peers->lock);
    int n = peers->n[false] + peers->n[true];
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

bool peers_evict(struct peers *peers, bool is_admin)
{
    struct peer *oldest = NULL;
    uint64_t least = UINT64_MAX;
    pthread_mutex_lock(&peers->lock);
    for (struct peer *peer = peers->first; peer; peer = peer->next) {
        uint64_t since =
            atomic_load_explicit(&peer->idle_since_ns, memory_order_relaxed);
        if (peer->is_admin != is_admin || since == 0 || since >= least)
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
    for (struct peer *peer = peers->accepted; peer && !are_busy;
         peer = peer->next)
        are_busy = is_busy(peer);
    pthread_mutex_unlock(&peers->lock);
    return are_busy;
}

bool peer_is_gone(const struct peer *peer)
{
    return atomic_load_explicit(&peer->is_gone, memory_order_relaxed);
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

/* Under lock: cuts what is late or slow. */
static void keep_time(struct peers *peers, uint64_t now)
{
    for (struct peer *peer = peers->first; peer; peer = peer->next)
        if (is_late(peer, now) || is_slow(peers, peer, now))
            cut(peer);
}

/*
 * Under lock: tells the library that a client sends no more. That wakes it,
 * every time: it may have read but the rest of what was sent. What was not read
 * stays to be read, and what is to be sent is sent.
 */
static void end_input(struct peer *peer, int events)
{
    if (events & (POLLHUP | POLLERR))
        atomic_store_explicit(&peer->is_gone, true, memory_order_relaxed);
    (void)shutdown(peer->fd, SHUT_RD);
}

static bool is_idle(const struct peer *peer)
{
    return atomic_load_explicit(&peer->idle_since_ns, memory_order_relaxed) !=
           0;
}

/* Under lock: whose client has left? True where nobody waits for a request that
 * is under way. */
static bool find_the_gone(struct peers *peers)
{
    struct peer *peer = peers->first, *batch[BATCH];
    struct pollfd look[BATCH];
    bool are_gone = false;
    while (peer) {
        nfds_t n = 0;
        for (; peer && n < BATCH; peer = peer->next) {
            look[n] = (struct pollfd){peer->fd, POLLRDHUP, 0};
            batch[n++] = peer;
        }
        if (poll(look, n, 0) <= 0)
            continue;
        for (nfds_t i = 0; i < n; i++)
            if (look[i].revents) {
                end_input(batch[i], look[i].revents);
                are_gone |= peer_is_gone(batch[i]) && !is_idle(batch[i]);
            }
    }
    return are_gone;
}

static bool is_socket(int fd)
{
    struct stat file;
    return fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode);
}

/* Under lock. Without memory the library closes what was accepted and says
 * nothing: those are not to count for ever. */
static void forget_the_lost(struct peers *peers, uint64_t now)
{
    for (struct peer *peer = peers->accepted, *next; peer; peer = next) {
        next = peer->next;
        if (now - peer->idle_since_ns < serve_ns || is_socket(peer->fd))
            continue;
        unlist(&peers->accepted, peer);
        forget(peers, peer);
    }
}

/* Under lock, which it lets go where it calls on_gone. */
static void look_after(struct peers *peers, uint64_t now)
{
    keep_time(peers, now);
    forget_the_lost(peers, now);
    if (!find_the_gone(peers) || !peers->on_gone)
        return;
    pthread_mutex_unlock(&peers->lock);
    peers->on_gone(peers->context);
    pthread_mutex_lock(&peers->lock);
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
        look_after(peers, now);
        if (!peers->is_closing)
            pthread_cond_timedwait(&peers->wake, &peers->lock, &until);
    }
    pthread_mutex_unlock(&peers->lock);
    return NULL;
}

enum roped_status peers_start(struct peers *peers,
                              const struct peers_options *options,
                              struct roped_error *err)
{
    peers->least_rate = options->least_rate;
    peers->grace_seconds = options->grace_seconds;
    peers->on_gone = options->on_gone;
    peers->context = options->context;
    peers->closed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    peers->has_thread = peers->closed_fd >= 0 &&
                        pthread_create(&peers->thread, NULL, reap, peers) == 0;
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
