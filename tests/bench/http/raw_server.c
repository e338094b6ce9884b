/*
 * raw_server.c - an echo over epoll.
 */
#include "bench/http/raw_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 64 << 10,
    SEND_BUFFER_BYTES = 512 << 10,
    HEAD_BYTES = 8 << 10,
    BATCH = 64
};

#define MOST_BODY_BYTES ((size_t)4 << 30)

struct connection {
    int fd;
    char head[HEAD_BYTES];
    size_t head_bytes; /* of it, received */
    bool is_sending;
    unsigned char *body;
    size_t body_room, body_bytes, received;
    char answer[128];
    size_t answer_bytes, sent; /* of answer and body together */
};

static void drop(struct connection *connection)
{
    close(connection->fd);
    free(connection->body);
    free(connection);
}

static void watch(int epoll, struct connection *connection, uint32_t events,
                  int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = connection};
    epoll_ctl(epoll, operation, connection->fd, &event);
}

/* Sends what the socket takes; false: broken. */
static bool send_more(int epoll, struct connection *connection)
{
    size_t all = connection->answer_bytes + connection->body_bytes;
    while (connection->sent < all) {
        struct iovec part[2];
        struct msghdr message = {.msg_iov = part};
        size_t at = connection->sent;
        if (at < connection->answer_bytes)
            part[message.msg_iovlen++] = (struct iovec){
                connection->answer + at, connection->answer_bytes - at};
        size_t body_at =
            at > connection->answer_bytes ? at - connection->answer_bytes : 0;
        if (body_at < connection->body_bytes)
            part[message.msg_iovlen++] = (struct iovec){
                connection->body + body_at, connection->body_bytes - body_at};
        ssize_t n = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            if (!connection->is_sending)
                watch(epoll, connection, EPOLLOUT, EPOLL_CTL_MOD);
            connection->is_sending = true;
            return true;
        }
        if (n <= 0)
            return false;
        connection->sent += (size_t)n;
    }
    if (connection->is_sending)
        watch(epoll, connection, EPOLLIN, EPOLL_CTL_MOD);
    connection->is_sending = false;
    connection->head_bytes = connection->received = 0;
    connection->body_bytes = 0;
    return true;
}

static bool answer(int epoll, struct connection *connection)
{
    connection->answer_bytes =
        (size_t)snprintf(connection->answer, sizeof connection->answer,
                         "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                         connection->body_bytes);
    connection->sent = 0;
    return send_more(epoll, connection);
}

/* The head is complete: what of the body came along goes where it belongs. */
static bool begin_body(struct connection *connection, size_t head_end)
{
    const char *length = strcasestr(connection->head, "\r\nContent-Length:");
    size_t extra = connection->head_bytes - head_end;
    connection->body_bytes = length ? strtoull(length + 17, NULL, 10) : 0;
    if (connection->body_bytes > MOST_BODY_BYTES ||
        extra > connection->body_bytes)
        return false;
    if (connection->body_bytes > connection->body_room) {
        free(connection->body);
        connection->body = malloc(connection->body_bytes);
        connection->body_room = connection->body ? connection->body_bytes : 0;
    }
    if (!connection->body && connection->body_bytes > 0)
        return false;
    if (extra > 0)
        memcpy(connection->body, connection->head + head_end, extra);
    connection->received = extra;
    return true;
}

static bool receive_head(struct connection *connection, bool *is_complete)
{
    ssize_t n = recv(connection->fd, connection->head + connection->head_bytes,
                     HEAD_BYTES - 1 - connection->head_bytes, 0);
    *is_complete = false;
    if (n < 0 && errno == EAGAIN)
        return true;
    if (n <= 0)
        return false;
    connection->head_bytes += (size_t)n;
    connection->head[connection->head_bytes] = '\0';
    const char *end = strstr(connection->head, "\r\n\r\n");
    if (!end)
        return connection->head_bytes < HEAD_BYTES - 1;
    *is_complete = true;
    return begin_body(connection, (size_t)(end - connection->head) + 4);
}

/* Something has arrived; false: broken, or no request. */
static bool receive(int epoll, struct connection *connection)
{
    bool is_complete = connection->body_bytes > 0;
    if (!is_complete && !receive_head(connection, &is_complete))
        return false;
    if (!is_complete)
        return true;
    while (connection->received < connection->body_bytes) {
        size_t left = connection->body_bytes - connection->received;
        ssize_t n =
            recv(connection->fd, connection->body + connection->received,
                 left < PIECE_BYTES ? left : PIECE_BYTES, 0);
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0)
            return false;
        connection->received += (size_t)n;
    }
    return answer(epoll, connection);
}

static void take_connection(int epoll, int listener)
{
    int bytes = SEND_BUFFER_BYTES, on = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct connection *connection =
        fd < 0 ? NULL : calloc(1, sizeof *connection);
    if (!connection) {
        if (fd >= 0)
            close(fd);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->fd = fd;
    watch(epoll, connection, EPOLLIN, EPOLL_CTL_ADD);
}

static int listen_anywhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        listen(fd, 1024) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        perror("raw server");
        return -1;
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int raw_server_main(void)
{
    struct epoll_event events[BATCH];
    int listener = listen_anywhere();
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (listener < 0 || epoll < 0)
        return EXIT_FAILURE;
    struct epoll_event mine = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &mine);
    for (;;) {
        int n = epoll_wait(epoll, events, BATCH, -1);
        if (n < 0 && errno != EINTR)
            return EXIT_FAILURE;
        for (int i = 0; i < n; i++) {
            struct connection *connection = events[i].data.ptr;
            if (!connection)
                take_connection(epoll, listener);
            else if (!(connection->is_sending ? send_more(epoll, connection)
                                              : receive(epoll, connection)))
                drop(connection);
        }
    }
}
