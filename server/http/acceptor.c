/*
 * acceptor.c - the thread that accepts connections.
 */
#include "http/acceptor.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAUSE_MS = 2 }; /* where there is no room: until it looks again */

static bool is_full(const struct acceptor *acceptor)
{
    struct service *service = acceptor->transport->service;
    return peers_count(&service->peers) >= service->config->max_connections;
}

static bool has_come(const struct acceptor *acceptor)
{
    struct pollfd wait = {acceptor->listen_fd, POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
}

/* Takes one connection. False where none waits, or none can be taken now: then
 * *must_pause says that one still waits. */
static bool take(struct acceptor *acceptor, bool *must_pause)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    *must_pause = is_full(acceptor) && has_come(acceptor);
    if (*must_pause) { /* an idle one goes for it, which takes a moment */
        (void)peers_evict(&acceptor->transport->service->peers);
        return false;
    }
    int fd = accept4(acceptor->listen_fd, (struct sockaddr *)&address, &bytes,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        bool is_over = errno == EAGAIN || errno == EWOULDBLOCK;
        bool is_lost = errno == EINTR || errno == ECONNABORTED;
        *must_pause = !is_over && !is_lost; /* no descriptors, no memory */
        return is_lost;
    }
    transport_add(acceptor->transport, fd, (struct sockaddr *)&address, bytes);
    return true;
}

static void *run(void *context)
{
    struct acceptor *acceptor = context;
    bool must_pause = false;
    for (;;) {
        struct pollfd wait[2] = {{acceptor->stop_fd, POLLIN, 0},
                                 {acceptor->listen_fd, POLLIN, 0}};
        if (must_pause)
            (void)poll(wait, 1, PAUSE_MS);
        else
            (void)poll(wait, 2, -1);
        while (take(acceptor, &must_pause))
            ;
        if (wait[0].revents)
            return NULL;
    }
}

enum roped_status acceptor_start(struct acceptor *acceptor,
                                 struct transport *transport, int listen_fd,
                                 struct roped_error *err)
{
    *acceptor =
        (struct acceptor){.transport = transport, .listen_fd = listen_fd};
    acceptor->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (acceptor->stop_fd < 0)
        return roped_fail(err, ROPED_INTERNAL, "no eventfd: %s",
                          strerror(errno));
    acceptor->has_thread =
        pthread_create(&acceptor->thread, NULL, run, acceptor) == 0;
    if (acceptor->has_thread)
        return ROPED_OK;
    close(acceptor->stop_fd);
    return roped_fail(err, ROPED_NO_MEMORY, "cannot start a thread");
}

void acceptor_stop(struct acceptor *acceptor)
{
    if (!acceptor->has_thread)
        return;
    (void)eventfd_write(acceptor->stop_fd, 1);
    pthread_join(acceptor->thread, NULL);
    close(acceptor->stop_fd);
    close(acceptor->listen_fd);
    acceptor->has_thread = false;
}
