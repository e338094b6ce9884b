/*
 * load.c - the load generator, over epoll.
 */
#include "bench/http/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD_BYTES = 2048, BATCH = 64, STALL_MS = 20000 };

struct link {
    int fd;
    bool is_waiting_to_send;
    size_t sent;
    double started;
    char head[HEAD_BYTES]; /* the part of an answer's head that has arrived */
    size_t head_bytes;
    uint64_t left; /* of the answer's body */
    bool is_in_body;
    struct http_answer answer;
};

struct generator {
    const struct http_request *request;
    int epoll, n;
    struct link *link;
    struct load *load;
    double count_from; /* calls that end earlier are not counted */
    bool is_ending;
    int n_busy;
};

static void watch(struct generator *generator, struct link *link,
                  uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = link};
    epoll_ctl(generator->epoll, EPOLL_CTL_MOD, link->fd, &event);
}

static void fail(struct generator *generator, struct link *link)
{
    close(link->fd);
    link->fd = -1;
    generator->load->n_failed++;
    generator->n_busy--;
}

static void send_more(struct generator *generator, struct link *link)
{
    const struct http_request *request = generator->request;
    size_t all = request->head_bytes + request->body_bytes;
    while (link->sent < all) {
        struct iovec part[2];
        struct msghdr message = {.msg_iov = part};
        size_t at = link->sent;
        if (at < request->head_bytes)
            part[message.msg_iovlen++] =
                (struct iovec){(char *)(uintptr_t)request->head + at,
                               request->head_bytes - at};
        size_t body_at =
            at > request->head_bytes ? at - request->head_bytes : 0;
        if (body_at < request->body_bytes)
            part[message.msg_iovlen++] =
                (struct iovec){(char *)(uintptr_t)request->body + body_at,
                               request->body_bytes - body_at};
        ssize_t n = sendmsg(link->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            if (!link->is_waiting_to_send)
                watch(generator, link, EPOLLIN | EPOLLOUT);
            link->is_waiting_to_send = true;
            return;
        }
        if (n <= 0) {
            fail(generator, link);
            return;
        }
        link->sent += (size_t)n;
    }
    if (link->is_waiting_to_send)
        watch(generator, link, EPOLLIN);
    link->is_waiting_to_send = false;
}

static void start_call(struct generator *generator, struct link *link,
                       double now)
{
    link->sent = 0;
    link->head_bytes = 0;
    link->is_in_body = false;
    link->started = now;
    send_more(generator, link);
}

static void end_call(struct generator *generator, struct link *link)
{
    double now = now_seconds();
    if (link->answer.code != 200) {
        fail(generator, link);
        return;
    }
    generator->load->n_all++;
    if (now >= generator->count_from) {
        generator->load->n_calls++;
        stats_add(&generator->load->latency, now - link->started);
    }
    if (generator->is_ending)
        generator->n_busy--;
    else
        start_call(generator, link, now);
}

/* Bytes of an answer; false: it is none. */
static bool take(struct generator *generator, struct link *link,
                 const char *bytes, size_t n)
{
    if (!link->is_in_body) {
        size_t kept = link->head_bytes;
        size_t more = n < HEAD_BYTES - 1 - kept ? n : HEAD_BYTES - 1 - kept;
        memcpy(link->head + kept, bytes, more);
        link->head[kept + more] = '\0';
        size_t head = client_read_head(link->head, kept + more, &link->answer);
        link->head_bytes += more;
        if (head == 0)
            return link->head_bytes < HEAD_BYTES - 1;
        if (head == SIZE_MAX)
            return false;
        link->is_in_body = true;
        link->left = link->answer.bytes;
        n -= head - kept; /* what is behind the head */
    }
    if (n > link->left)
        return false;
    link->left -= n;
    if (link->left == 0)
        end_call(generator, link);
    return true;
}

static void receive(struct generator *generator, struct link *link)
{
    static char piece[CLIENT_PIECE_BYTES];
    ssize_t n = recv(link->fd, piece, sizeof piece, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0 || !take(generator, link, piece, (size_t)n))
        fail(generator, link);
}

static void turn(struct generator *generator)
{
    struct epoll_event events[BATCH];
    int n = epoll_wait(generator->epoll, events, BATCH, STALL_MS);
    for (int i = 0; i < n; i++) {
        struct link *link = events[i].data.ptr;
        if (link->fd >= 0 && events[i].events & EPOLLOUT)
            send_more(generator, link);
        if (link->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT)
            receive(generator, link);
    }
    if (n == 0) { /* nobody answers any more */
        generator->load->n_failed += (uint64_t)generator->n_busy;
        generator->n_busy = 0;
    }
}

static bool connect_all(struct generator *generator, uint16_t port)
{
    for (int i = 0; i < generator->n; i++) {
        struct link *link = &generator->link[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
        link->fd = client_connect(port);
        if (link->fd < 0) {
            fprintf(stderr, "bench_http: connection %d to port %d: %s\n", i,
                    port, strerror(errno));
            return false;
        }
        fcntl(link->fd, F_SETFL, O_NONBLOCK);
        epoll_ctl(generator->epoll, EPOLL_CTL_ADD, link->fd, &event);
    }
    return true;
}

static void drive(struct generator *generator, double seconds)
{
    double start = now_seconds(), end = start + seconds * 1.1;
    generator->count_from = start + seconds * 0.1;
    generator->n_busy = generator->n;
    for (int i = 0; i < generator->n; i++)
        start_call(generator, &generator->link[i], start);
    while (generator->n_busy > 0) {
        turn(generator);
        generator->is_ending = now_seconds() >= end;
    }
    generator->load->seconds = now_seconds() - generator->count_from;
}

bool load_run(uint16_t port, const struct http_request *request,
              int n_connections, double seconds, struct load *out)
{
    struct generator generator = {
        .request = request, .n = n_connections, .load = out};
    memset(out, 0, sizeof *out);
    if (n_connections < 1 || n_connections > LOAD_MOST_CONNECTIONS)
        return false;
    generator.link = calloc((size_t)n_connections, sizeof *generator.link);
    generator.epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < n_connections && generator.link; i++)
        generator.link[i].fd = -1;
    bool is_connected =
        generator.link && generator.epoll >= 0 && connect_all(&generator, port);
    if (is_connected)
        drive(&generator, seconds);
    for (int i = 0; i < n_connections && generator.link; i++)
        if (generator.link[i].fd >= 0)
            close(generator.link[i].fd);
    if (generator.epoll >= 0)
        close(generator.epoll);
    free(generator.link);
    return is_connected;
}
