/*
 * client.h - the reference client: one socket, whole requests, answers read in
 * 64 KiB pieces, SO_SNDBUF of 512 KiB. What a client costs, moves a loopback
 * figure more than what its server does: every server is measured with this.
 */
#ifndef ROPED_TESTS_LOAD_CLIENT_H
#define ROPED_TESTS_LOAD_CLIENT_H

#include "clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    CLIENT_PIECE_BYTES = 64 << 10,
    CLIENT_SEND_BUFFER_BYTES = 512 << 10,
    CLIENT_HEAD_BYTES = 1024
};

struct http_request {
    char head[CLIENT_HEAD_BYTES];
    size_t head_bytes;
    const void *body; /* the caller's */
    size_t body_bytes;
};

/* Phases of a call in microseconds, as the daemon's Server-Timing says. */
enum phase {
#define PHASE(id, ...)      PHASE_##id,
#define BODY_PHASE(id, ...) PHASE_##id,
#include "phase.def"
    N_PHASES
};
extern const char *const phase_name[N_PHASES];
struct phases {
    bool is_known;
    double us[N_PHASES];
};

struct http_answer {
    int code;
    uint64_t bytes;   /* of the body */
    bool closes;      /* it says Connection: close */
    bool has_a_retry; /* it says Retry-After */
    struct phases phases;
};

/* headers: further lines, each with "\r\n" behind, or "". */
struct http_request request_make(const char *method, const char *path,
                                 const char *headers, const void *body,
                                 size_t bytes);

/* Frees a body that was allocated for it. */
void request_free(struct http_request *request);

/* Sends what is behind so many bytes of a request, its head and at most so much
 * of its body, as far as it goes at once: how much that was, or -1 with errno.
 */
ssize_t request_send(int fd, const struct http_request *request, size_t sent,
                     size_t most);

/* Connects to a port of 127.0.0.1; -1 with errno: that failed. */
int client_connect(int port);

/* Connects to a Unix socket; -1 with errno: that failed. */
int client_connect_path(const char *path);

/* To a port, with the send buffer above and a minute's patience. */
int client_open(int port);

/* A port that was free a moment ago. Exits on failure. */
uint16_t free_port(void);

/*
 * Sends a request and reads its answer, into the given room as far as it goes
 * (into may be NULL). False: the connection broke, or the answer is none.
 */
bool client_exchange(int fd, const struct http_request *request,
                     unsigned char *into, size_t room,
                     struct http_answer *answer);

/*
 * Reads the head of an answer in text[0, bytes): the length of the head in
 * bytes, or 0 while it is not complete, or SIZE_MAX for what is no answer with
 * a Content-Length.
 */
size_t client_read_head(const char *text, size_t bytes,
                        struct http_answer *answer);

#endif
