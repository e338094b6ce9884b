/*
 * calls.h - the requests that are measured; request_free frees their bodies.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_CALLS_H
#define ROPED_TESTS_BENCH_HTTP_CALLS_H

#include "load/client.h"

#include <roped/tensor.h>

enum {
    CALL_ROPE_TOKEN_BYTES = (32 + 8) * 128 * 2 /* bf16 q and k of a token */
};

/* GET of a page without a body; of what size is not asked. */
struct http_request call_live(size_t unused);

/* POST of so many bytes to a server that only echoes or drops them. */
struct http_request call_plain(size_t bytes);

/* The demo model identity_fp32 over v2 with one raw tensor: what came in goes
 * out behind a line of JSON. bytes is a multiple of 4. */
#define CALL_ECHO_PATH   "/v2/models/identity_fp32/infer"
#define CALL_ECHO_HEADER "Inference-Header-Content-Length: 0"
struct http_request call_echo(size_t bytes);

/* PUT of a region that holds such a tensor, of values between 1 and 2. */
struct http_request call_put_region(const char *name,
                                    const struct roped_tensor *tensor);

/* /v1/rmsnorm of bf16 rows, about bytes of them: 4,096 wide, or one row. */
struct http_request call_rmsnorm(size_t bytes);

/* /v1/rope of bf16, 32 + 8 heads x 128, with positions. */
struct http_request call_rope(size_t n_tokens);

/* The same with q and k read from and written to places that the query names;
 * positions alone are in the body. */
struct http_request call_rope_in(size_t n_tokens, const char *query);

/* A file of positions, and slots, of so many tokens to a path with its query:
 * both count up. */
struct http_request call_indexes(const char *path, size_t n_tokens,
                                 bool has_slots);

/* call_rope_in without positions: a token's is its index. The body is empty. */
struct http_request call_rope_at(const char *query);

#endif
