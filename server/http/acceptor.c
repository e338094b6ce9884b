/*
 * acceptor.c - the thread that accepts connections.
 */
#include "http/acceptor.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PAUSE_MS = 2,  /* where there is no room: until it looks again */
    LAST_MS = 50,  /* at the end: for handshakes under way */
    PAUSES = 500,  /* at the end: for room, together a second */
    FLAGS_AT = 13, /* the byte of a TCP header that holds its flags */
};

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
static bool take(const struct acceptor *acceptor, bool *must_pause)
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

/* Closing a listening socket resets the connections in its backlog, and one
 * may come between the last accept and close. So the kernel drops every SYN
 * from here on: a client sends it again a second later, and is refused then. */
static void let_nobody_in(const struct acceptor *acceptor)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS_AT),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_SYN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),          /* drop */
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX), /* keep all of it */
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code,
                                 .filter = code};
    /* without it clients that come in the last moment are reset */
    (void)setsockopt(acceptor->listen_fd, SOL_SOCKET, SO_ATTACH_FILTER,
                     &program, sizeof program);
}

/* Those whose handshake was under way: until none comes for LAST_MS. */
static void take_the_last(const struct acceptor *acceptor)
{
    struct pollfd wait = {acceptor->listen_fd, POLLIN, 0};
    bool must_pause = false;
    let_nobody_in(acceptor);
    for (int i = 0; i < PAUSES && poll(&wait, 1, LAST_MS) == 1; i++) {
        while (take(acceptor, &must_pause))
            ;
        if (must_pause)
            (void)poll(NULL, 0, PAUSE_MS);
    }
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
        if (wait[0].revents) {
            take_the_last(acceptor);
            return NULL;
        }
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
