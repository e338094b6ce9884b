/*
 * acceptor.c - the thread that accepts connections.
 */
#include "http/acceptor.h"

#include "http/daemon_internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAUSE_MS = 10 }; /* where there is no room: until it looks again */

static bool has_room(struct daemon *daemon)
{
    pthread_mutex_lock(&daemon->peers_lock);
    bool has_room = daemon->n_peers < daemon->config->max_connections;
    pthread_mutex_unlock(&daemon->peers_lock);
    return has_room;
}

/* Takes one connection. False where none waits, or none can be taken now: then
 * *must_pause says that one still waits. */
static bool take(struct acceptor *acceptor, bool *must_pause)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    *must_pause = !has_room(acceptor->daemon);
    if (*must_pause)
        return false;
    int fd = accept4(acceptor->listen_fd, (struct sockaddr *)&address, &bytes,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        bool is_over = errno == EAGAIN || errno == EWOULDBLOCK;
        bool is_lost = errno == EINTR || errno == ECONNABORTED;
        *must_pause = !is_over && !is_lost; /* no descriptors, no memory */
        return is_lost;
    }
    /* on failure it has closed fd, and said why in the log */
    (void)MHD_add_connection(acceptor->daemon->mhd, fd,
                             (struct sockaddr *)&address, bytes);
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
        if (wait[0].revents)
            return NULL;
        while (take(acceptor, &must_pause))
            ;
    }
}

enum roped_status acceptor_start(struct acceptor *acceptor,
                                 struct daemon *daemon, int listen_fd,
                                 struct roped_error *err)
{
    *acceptor = (struct acceptor){.daemon = daemon, .listen_fd = listen_fd};
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
    acceptor->has_thread = false;
}
