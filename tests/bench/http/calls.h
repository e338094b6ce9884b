/*
 * calls.h - the requests that are measured, and their bodies.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_CALLS_H
#define ROPED_TESTS_BENCH_HTTP_CALLS_H

#include "bench/http/client.h"

enum {
    CALL_ROPE_TOKEN_BYTES = (32 + 8) * 128 * 2 /* bf16 q and k of a token */
};

struct call {
    struct http_request request;
    void *memory; /* its body; call_free */
};

/* GET of a path. */
void call_get(struct call *call, const char *path);

/* POST of so many bytes to a server that only echoes or drops them. */
void call_plain(struct call *call, size_t bytes);

/* The demo model identity_fp32 over v2 with one raw tensor: what came in goes
 * out behind a line of JSON. bytes is a multiple of 4. */
void call_echo(struct call *call, size_t bytes);

/* /v1/rmsnorm of bf16 rows, about bytes of them: 4,096 wide, or one row. */
void call_rmsnorm(struct call *call, size_t bytes);

/* /v1/rope of bf16, 32 + 8 heads x 128, with positions. */
void call_rope(struct call *call, int64_t n_tokens);

/* The same with q and k read from and written to places that the query names;
 * positions alone are in the body. */
void call_rope_in(struct call *call, int64_t n_tokens, const char *query);

/* The same without positions: a token's is its index. The body is empty. */
void call_rope_at(struct call *call, const char *query);

void call_free(struct call *call);

#endif
