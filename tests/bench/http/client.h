/*
 * client.h - the reference client: one socket, whole requests, answers read in
 * 64 KiB pieces, SO_SNDBUF of 512 KiB. What a client costs, moves a loopback
 * figure more than what its server does: every server is measured with this.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_CLIENT_H
#define ROPED_TESTS_BENCH_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Stages of a call in microseconds, as the daemon's Server-Timing says. */
struct stages {
    bool is_known;
    double receive, queue, plan, h2d, kernel, d2h;
};

struct http_answer {
    int code;
    uint64_t bytes; /* of the body */
    struct stages stages;
};

/* headers: further lines, each with "\r\n" behind, or "". */
void request_make(struct http_request *request, const char *method,
                  const char *path, const char *headers, const void *body,
                  size_t bytes);

/* Connects to a port of 127.0.0.1; -1 with errno: that failed. */
int client_connect(uint16_t port);

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

/* CLOCK_MONOTONIC, in seconds. */
double now_seconds(void);

#endif
