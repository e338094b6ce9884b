/*
 * acceptor.c - the thread that accepts connections.
 */
#include "http/acceptor.h"

#include "io.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PAUSE_MS = 2, /* where there is no room: until it looks again */
    LAST_MS = 50, /* at the end: for handshakes under way */
    PAUSES = 500  /* at the end: for room, together a second */
};

static struct peers *peers_of(const struct listener *listener)
{
    return &listener->transport->service->peers;
}

static bool has_come(const struct listener *listener)
{
    struct pollfd wait = {listener->fd, POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
}

/* Takes one connection. False where none waits, or none can be taken now: then
 * *must_pause says that one still waits. */
static bool take(const struct listener *listener, bool *must_pause)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    if (!peers_have_room(peers_of(listener), listener->is_admin)) {
        if (!has_come(listener))
            return false;
        *must_pause = true; /* an idle one goes for it, which takes a moment */
        (void)peers_evict(peers_of(listener), listener->is_admin);
        return false;
    }
    int fd = accept4(listener->fd, (struct sockaddr *)&address, &bytes,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        bool is_over = errno == EAGAIN || errno == EWOULDBLOCK;
        bool is_lost = errno == EINTR || errno == ECONNABORTED;
        *must_pause |= !is_over && !is_lost; /* no descriptors, no memory */
        return is_lost;
    }
    if (peers_add(peers_of(listener), fd, listener->is_admin))
        transport_add(listener->transport, fd, (struct sockaddr *)&address,
                      bytes);
    else
        close(fd);
    return true;
}

/* All that have come, wherever. False where one waits that cannot be taken. */
static bool take_all(const struct listeners *listeners)
{
    bool must_pause = false;
    for (int i = 0; i < listeners->n; i++)
        while (take(&listeners->item[i], &must_pause))
            ;
    return !must_pause;
}

/* Where a stop is seen, that there is room again, and who has come. */
enum { STOP, ROOM, COME, MOST_WAITS = COME + MOST_LISTENERS };

static int wait_list(const struct acceptor *acceptor,
                     struct pollfd out[MOST_WAITS])
{
    const struct listeners *listeners = &acceptor->listeners;
    out[STOP] = (struct pollfd){acceptor->stop_fd, POLLIN, 0};
    out[ROOM] =
        (struct pollfd){peers_of(&listeners->item[0])->closed_fd, POLLIN, 0};
    for (int i = 0; i < listeners->n; i++)
        out[COME + i] = (struct pollfd){listeners->item[i].fd, POLLIN, 0};
    return COME + listeners->n;
}

/* Those whose handshake was under way: until none comes for LAST_MS. A socket
 * that was passed keeps who comes later for the next daemon. */
static void take_the_last(struct acceptor *acceptor)
{
    struct listeners *listeners = &acceptor->listeners;
    struct pollfd wait[MOST_WAITS];
    int n = wait_list(acceptor, wait);
    for (int i = 0; i < listeners->n; i++) {
        listener_let_nobody_in(&listeners->item[i]);
        if (listeners->item[i].is_passed)
            wait[COME + i].fd = -1;
    }
    for (int i = 0;
         i < PAUSES && poll(wait + COME, (nfds_t)(n - COME), LAST_MS) > 0; i++)
        if (!take_all(listeners))
            (void)poll(NULL, 0, PAUSE_MS);
}

static void *run(void *context)
{
    struct acceptor *acceptor = context;
    struct pollfd wait[MOST_WAITS];
    int n = wait_list(acceptor, wait);
    bool must_pause = false;
    for (;;) {
        if (must_pause)
            (void)poll(wait, COME, PAUSE_MS);
        else
            (void)poll(wait, (nfds_t)n, -1);
        if (wait[STOP].revents && atomic_load(&acceptor->leaves))
            return NULL;
        if (wait[ROOM].revents)
            peers_heed_closed(peers_of(&acceptor->listeners.item[0]));
        must_pause = !take_all(&acceptor->listeners);
        if (wait[STOP].revents) {
            take_the_last(acceptor);
            return NULL;
        }
    }
}

enum roped_status acceptor_start(struct acceptor *acceptor,
                                 struct roped_error *err)
{
    acceptor->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (acceptor->stop_fd < 0)
        return roped_fail(err, ROPED_INTERNAL, "cannot create an eventfd: %s",
                          strerror(errno));
    acceptor->has_thread =
        pthread_create(&acceptor->thread, NULL, run, acceptor) == 0;
    if (acceptor->has_thread)
        return ROPED_OK;
    close(acceptor->stop_fd);
    return roped_fail(err, ROPED_NO_MEMORY,
                      "cannot start the thread that accepts connections");
}

static void end_thread(struct acceptor *acceptor)
{
    if (!acceptor->has_thread)
        return;
    io_wake(acceptor->stop_fd);
    pthread_join(acceptor->thread, NULL);
    close(acceptor->stop_fd);
    acceptor->has_thread = false;
}

void acceptor_stop(struct acceptor *acceptor)
{
    end_thread(acceptor);
    listeners_close(&acceptor->listeners);
}

void acceptor_leave(struct acceptor *acceptor)
{
    atomic_store(&acceptor->leaves, true);
    end_thread(acceptor);
}
