/*
 * client.c - requests and answers over one blocking socket.
 */
#include "bench/http/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_SECONDS = 60 }; /* then a silent server has failed */

double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void request_make(struct http_request *request, const char *method,
                  const char *path, const char *headers, const void *body,
                  size_t bytes)
{
    char length[64] = "";
    if (body)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", bytes);
    int n = snprintf(request->head, sizeof request->head,
                     "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s%s\r\n", method,
                     path, length, headers);
    if (n < 0 || (size_t)n >= sizeof request->head) {
        fprintf(stderr, "bench_http: a request's head of %d bytes\n", n);
        exit(EXIT_FAILURE);
    }
    request->head_bytes = (size_t)n;
    request->body = body;
    request->body_bytes = bytes;
}

int client_connect(uint16_t port)
{
    int on = 1, send_bytes = CLIENT_SEND_BUFFER_BYTES;
    struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* "Server-Timing: receive;dur=0.0120, queue;dur=..." in milliseconds. */
static void read_stages(const char *line, const char *end, struct stages *out)
{
    static const struct {
        const char *name;
        size_t offset;
    } stage[] = {{"receive;dur=", offsetof(struct stages, receive)},
                 {"queue;dur=", offsetof(struct stages, queue)},
                 {"plan;dur=", offsetof(struct stages, plan)},
                 {"h2d;dur=", offsetof(struct stages, h2d)},
                 {"kernel;dur=", offsetof(struct stages, kernel)},
                 {"d2h;dur=", offsetof(struct stages, d2h)}};
    out->is_known = true;
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++) {
        const char *at = strstr(line, stage[i].name);
        double ms =
            at && at < end ? strtod(at + strlen(stage[i].name), NULL) : 0;
        memcpy((char *)out + stage[i].offset, &(double){ms * 1e3},
               sizeof(double));
    }
}

/* text is NUL-terminated somewhere behind bytes. */
size_t client_read_head(const char *text, size_t bytes,
                        struct http_answer *answer)
{
    const char *end = memmem(text, bytes, "\r\n\r\n", 4);
    bool has_length = false;
    if (!end)
        return 0;
    if (strncmp(text, "HTTP/1.1 ", 9) != 0)
        return SIZE_MAX;
    answer->code = (int)strtol(text + 9, NULL, 10);
    answer->stages.is_known = false;
    for (const char *line = strchr(text, '\n'); line && line < end;
         line = strchr(line, '\n')) {
        line++;
        if (strncasecmp(line, "Content-Length:", 15) == 0) {
            answer->bytes = strtoull(line + 15, NULL, 10);
            has_length = true;
        } else if (strncasecmp(line, "Server-Timing:", 14) == 0) {
            read_stages(line, end, &answer->stages);
        }
    }
    return has_length ? (size_t)(end - text) + 4 : SIZE_MAX;
}

/* ---------------------------------------------------------------- sending */

static bool send_all(int fd, const struct http_request *request)
{
    size_t at = 0, all = request->head_bytes + request->body_bytes;
    while (at < all) {
        struct iovec part[2];
        struct msghdr message = {.msg_iov = part};
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
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

/* -------------------------------------------------------------- receiving */

static bool receive_body(int fd, unsigned char *into, size_t room, uint64_t at,
                         uint64_t bytes)
{
    static _Thread_local unsigned char rest[CLIENT_PIECE_BYTES];
    while (at < bytes) {
        size_t left = bytes - at < CLIENT_PIECE_BYTES ? (size_t)(bytes - at)
                                                      : CLIENT_PIECE_BYTES;
        bool fits = into && at + left <= room;
        ssize_t n = recv(fd, fits ? into + at : rest, left, 0);
        if (n <= 0)
            return false;
        at += (uint64_t)n;
    }
    return true;
}

bool client_exchange(int fd, const struct http_request *request,
                     unsigned char *into, size_t room,
                     struct http_answer *answer)
{
    static _Thread_local char piece[CLIENT_PIECE_BYTES + 1];
    size_t at = 0, head = 0;
    if (!send_all(fd, request))
        return false;
    while (head == 0) {
        ssize_t n = recv(fd, piece + at, CLIENT_PIECE_BYTES - at, 0);
        if (n <= 0)
            return false;
        at += (size_t)n;
        piece[at] = '\0';
        head = client_read_head(piece, at, answer);
        if (head == 0 && at == CLIENT_PIECE_BYTES)
            return false;
    }
    if (head == SIZE_MAX)
        return false;
    size_t body = at - head;
    if (into)
        memcpy(into, piece + head, body < room ? body : room);
    return receive_body(fd, into, room, body, answer->bytes);
}
