/*
 * recover.h - a daemon that loses its device: what tests of it share. Include
 * it after check.h. The daemon is one with fault_backend.c in it.
 */
#ifndef ROPED_TESTS_HTTP_RECOVER_H
#define ROPED_TESTS_HTTP_RECOVER_H

#include "http/service.h"

static const char recover_table[] =
    "{\"head_dim\": 128, \"rope_theta\": 10000.0}";

/* Starts it with this fault. */
static inline void recover_start(struct server *server, const char *fault,
                                 const char *const *flags)
{
    setenv("ROPED_TEST_FAULT", fault, 1);
    server_start(server, flags);
    unsetenv("ROPED_TEST_FAULT");
}

/* The seconds until a call is right again; more than the limit: it never is. */
static inline double recover_seconds(const struct server *server, double limit)
{
    size_t bytes;
    bool is_right = false;
    double start = now_seconds();
    unsigned char *body = ones(2, 8, &bytes);
    while (!is_right && now_seconds() - start <= limit) {
        struct answer answer =
            ask(server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL);
        is_right = are_ones(&answer, 16);
        answer_free(&answer);
        if (!is_right)
            pause_seconds(0.005);
    }
    free(body);
    return now_seconds() - start;
}

/* Makes a call that meets the fault, and waits until one is right. */
static inline double recover_from_call(const struct server *server)
{
    size_t bytes;
    unsigned char *body = ones(2, 8, &bytes);
    double start = now_seconds();
    struct answer answer =
        ask(server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL);
    free(body);
    expect_code(answer, 500, "\"error\"", "a call that meets the fault");
    double seconds = recover_seconds(server, 10);
    CHECK(seconds <= 5);
    return now_seconds() - start;
}

#endif
