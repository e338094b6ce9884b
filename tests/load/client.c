/*
 * client.c - requests and answers over one blocking socket.
 */
#include "load/client.h"

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
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE_SECONDS = 60 }; /* then a silent server has failed */

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "client: %s\n", what);
    exit(EXIT_FAILURE);
}

struct http_request request_make(const char *method, const char *path,
                                 const char *headers, const void *body,
                                 size_t bytes)
{
    struct http_request request = {.body = body, .body_bytes = bytes};
    char length[64] = "";
    if (body)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", bytes);
    int n = snprintf(request.head, sizeof request.head,
                     "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s%s\r\n", method,
                     path, length, headers);
    if (n < 0 || (size_t)n >= sizeof request.head)
        die("a request's head is too long");
    request.head_bytes = (size_t)n;
    return request;
}

void request_free(struct http_request *request)
{
    free((void *)(uintptr_t)request->body);
    request->body = NULL;
}

/* ------------------------------------------------------------ connections */

int client_connect(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int client_connect_path(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int client_open(int port)
{
    int send_bytes = CLIENT_SEND_BUFFER_BYTES, fd = client_connect(port);
    struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        die("no free port");
    close(fd);
    return ntohs(address.sin_port);
}

/* ---------------------------------------------------------------- answers */

const char *const phase_name[N_PHASES] = {
#define PHASE(id, name, ...) #name,
#define BODY_PHASE(...)      PHASE(__VA_ARGS__)
#include "phase.def"
};

/* "Server-Timing: receive;dur=0.0120, queue;dur=..." in milliseconds. */
static void read_phases(const char *line, const char *end, struct phases *out)
{
    out->is_known = true;
    for (int i = 0; i < N_PHASES; i++) {
        const char *at = strstr(line, phase_name[i]);
        size_t name_bytes = strlen(phase_name[i]) + sizeof ";dur=" - 1;
        out->us[i] = at && at < end ? strtod(at + name_bytes, NULL) * 1e3 : 0;
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
    answer->phases.is_known = answer->closes = answer->has_a_retry = false;
    for (const char *line = strchr(text, '\n'); line && line < end;
         line = strchr(line, '\n')) {
        line++;
        if (strncasecmp(line, "Content-Length:", 15) == 0) {
            answer->bytes = strtoull(line + 15, NULL, 10);
            has_length = true;
        } else if (strncasecmp(line, "Server-Timing:", 14) == 0) {
            read_phases(line, end, &answer->phases);
        } else if (strncasecmp(line, "Retry-After:", 12) == 0) {
            answer->has_a_retry = true;
        } else if (strncasecmp(line, "Connection: close", 17) == 0) {
            answer->closes = true;
        }
    }
    return has_length ? (size_t)(end - text) + 4 : SIZE_MAX;
}

/* -------------------------------------------------------------- exchanges */

ssize_t request_send(int fd, const struct http_request *request, size_t sent,
                     size_t most)
{
    struct iovec part[2];
    struct msghdr message = {.msg_iov = part};
    size_t head = request->head_bytes, at = sent > head ? sent - head : 0;
    size_t left = request->body_bytes - at;
    if (sent < head)
        part[message.msg_iovlen++] = (struct iovec){
            (char *)(uintptr_t)request->head + sent, head - sent};
    if (left > 0)
        part[message.msg_iovlen++] = (struct iovec){
            (char *)(uintptr_t)request->body + at, left < most ? left : most};
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

static bool send_all(int fd, const struct http_request *request)
{
    for (size_t at = 0; at < request->head_bytes + request->body_bytes;) {
        ssize_t n = request_send(fd, request, at, SIZE_MAX);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

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
