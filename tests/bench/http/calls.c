/*
 * calls.c - building requests.
 */
#include "bench/http/calls.h"

#include "wire/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 4096, HQ = 32, HK = 8, HEAD = 128 };

static void *take(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "bench_http: no memory for a body of %zu bytes\n",
                bytes);
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* bf16 between 1 and 2, or the upper and lower half of such a float32. */
static void fill(unsigned char *to, size_t bytes)
{
    uint32_t state = 12345;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        state = state * 1664525u + 1013904223u;
        uint16_t code = (uint16_t)(0x3F80 | (state >> 25));
        memcpy(to + i, &code, sizeof code);
    }
}

struct http_request call_live(size_t unused)
{
    (void)unused;
    return request_make("GET", "/v2/health/live", "", NULL, 0);
}

static struct http_request post_filled(const char *path, const char *headers,
                                       size_t bytes)
{
    void *body = take(bytes);
    fill(body, bytes);
    return request_make("POST", path, headers, body, bytes);
}

struct http_request call_plain(size_t bytes)
{
    return post_filled("/", "", bytes);
}

struct http_request call_echo(size_t bytes)
{
    return post_filled(CALL_ECHO_PATH, CALL_ECHO_HEADER "\r\n", bytes);
}

/* A safetensors file of n tensors, those of type I32 counting up. */
static struct http_request send_tensors(const char *method, const char *path,
                                        struct safetensors_output *tensors,
                                        int n)
{
    struct roped_error err;
    struct buffer header;
    uint64_t data_bytes;
    buffer_init(&header);
    if (safetensors_write_header(&header, tensors, n, NULL, 0, false,
                                 &data_bytes, &err)) {
        fprintf(stderr, "bench_http: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
    unsigned char *body = take(header.bytes + data_bytes);
    memcpy(body, header.text, header.bytes);
    for (int i = 0; i < n; i++) {
        const struct roped_tensor *tensor = tensors[i].tensor;
        unsigned char *to = body + header.bytes + tensors[i].offset;
        if (tensor->dtype != ROPED_I32)
            fill(to, (size_t)roped_tensor_bytes(tensor));
        for (int32_t j = 0; tensor->dtype == ROPED_I32 && j < tensor->dims[0];
             j++)
            memcpy(to + (size_t)j * sizeof j, &(int32_t){j % 4096}, sizeof j);
    }
    size_t bytes = header.bytes + data_bytes;
    buffer_fini(&header);
    return request_make(method, path, "", body, bytes);
}

static struct http_request
post_tensors(const char *path, struct safetensors_output *tensors, int n)
{
    return send_tensors("POST", path, tensors, n);
}

struct http_request call_put_region(const char *name,
                                    const struct roped_tensor *tensor)
{
    char path[256];
    struct safetensors_output tensors[] = {{name, tensor, 0}};
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    return send_tensors("PUT", path, tensors, 1);
}

struct http_request call_rmsnorm(size_t bytes)
{
    int64_t width = bytes < 2 * WIDE ? (int64_t)bytes / 2 : WIDE;
    struct roped_tensor x = {
        .dtype = ROPED_BF16,
        .rank = 2,
        .dims = {(int64_t)(bytes / ((size_t)width * 2)), width}};
    struct safetensors_output tensors[] = {{"x", &x, 0}};
    return post_tensors("/v1/rmsnorm", tensors, 1);
}

struct http_request call_rope(size_t n_tokens)
{
    int64_t n = (int64_t)n_tokens;
    struct roped_tensor positions = {
        .dtype = ROPED_I32, .rank = 1, .dims = {n}};
    struct roped_tensor q = {
        .dtype = ROPED_BF16, .rank = 3, .dims = {n, HQ, HEAD}};
    struct roped_tensor k = {
        .dtype = ROPED_BF16, .rank = 3, .dims = {n, HK, HEAD}};
    struct safetensors_output tensors[] = {
        {"positions", &positions, 0}, {"q", &q, 0}, {"k", &k, 0}};
    return post_tensors("/v1/rope", tensors, 3);
}

struct http_request call_indexes(const char *path, size_t n_tokens,
                                 bool has_slots)
{
    struct roped_tensor indexes = {
        .dtype = ROPED_I32, .rank = 1, .dims = {(int64_t)n_tokens}};
    struct safetensors_output tensors[] = {{"positions", &indexes, 0},
                                           {"slots", &indexes, 0}};
    return post_tensors(path, tensors, has_slots ? 2 : 1);
}

struct http_request call_rope_in(size_t n_tokens, const char *query)
{
    char path[512];
    snprintf(path, sizeof path, "/v1/rope?%s", query);
    return call_indexes(path, n_tokens, false);
}

struct http_request call_rope_at(const char *query)
{
    char path[512];
    snprintf(path, sizeof path, "/v1/rope?offset=0&%s", query);
    return post_tensors(path, NULL, 0);
}
