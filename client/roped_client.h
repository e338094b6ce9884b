/*
 * roped_client.h - calls to a roped daemon from C: tensors in, tensors out.
 *
 *     struct roped_client *client;
 *     roped_client_open(&(struct roped_client_options){0}, &client, &err);
 *     roped_client_call(client, "rmsnorm", "eps=1e-6", in, 2, &result, &err);
 *     ... roped_client_output(&result, "y")->data ...
 *     roped_client_result_free(&result);
 *     roped_client_close(client);
 *
 * A client is one keep-alive connection and belongs to one thread at a time.
 */
#ifndef ROPED_CLIENT_H
#define ROPED_CLIENT_H

#include <roped/op.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roped_client;

enum { ROPED_CLIENT_TENSORS = 16 };

struct roped_client_options {
    const char *url;        /* NULL: $ROPED_URL, else http://127.0.0.1:8000 */
    const char *token_file; /* file with a bearer token, or NULL */
    double timeout_seconds; /* of one request; 0: 300 */
    /* (optional) bytes sent and received so far, and in all (0: unknown) */
    void (*progress)(void *context, uint64_t sent, uint64_t to_send,
                     uint64_t received, uint64_t to_receive);
    void *progress_context;
};

struct roped_client_tensor {
    const char *name;
    struct roped_tensor tensor;
};

/* Seconds, from the answer's Server-Timing; wall as the client saw it. */
struct roped_client_timing {
    double receive, queue, plan, h2d, kernel, d2h, wall;
};

/* Outputs are views into memory, which roped_client_result_free frees. */
struct roped_client_result {
    int n_tensors;
    char name[ROPED_CLIENT_TENSORS][ROPED_NAME_BYTES];
    struct roped_tensor tensor[ROPED_CLIENT_TENSORS];
    struct roped_client_timing timing;
    void *memory;
    size_t bytes; /* of the answer's body, at memory */
};

ROPED_MUST_CHECK enum roped_status
roped_client_open(const struct roped_client_options *options,
                  struct roped_client **out, struct roped_error *err);
void roped_client_close(struct roped_client *client);

/*
 * Calls an operator. query holds parameters as "name=value&...", or NULL; with
 * "from.x=REGION" input x is one that the server keeps, and inputs leaves it
 * out, with "into.y=REGION" output y stays there. The error is the server's
 * own sentence, or says what to do about the connection.
 */
ROPED_MUST_CHECK enum roped_status
roped_client_call(struct roped_client *client, const char *op,
                  const char *query, const struct roped_client_tensor *inputs,
                  int n_inputs, struct roped_client_result *result,
                  struct roped_error *err);

/* The same with a safetensors file that is already made. */
ROPED_MUST_CHECK enum roped_status
roped_client_call_bytes(struct roped_client *client, const char *op,
                        const char *query, const void *body, size_t bytes,
                        struct roped_client_result *result,
                        struct roped_error *err);

/* An output by name, or NULL. */
const struct roped_tensor *
roped_client_output(const struct roped_client_result *result, const char *name);
void roped_client_result_free(struct roped_client_result *result);

/*
 * Any other request: GET /metrics, PUT /v1/tables/x, ... *text is the answer's
 * body, NUL-terminated, to be freed. Not a 2xx: the status and its error.
 */
ROPED_MUST_CHECK enum roped_status
roped_client_request(struct roped_client *client, const char *method,
                     const char *path, const void *body, size_t bytes,
                     char **text, struct roped_error *err);

/* The same for an answer that is no text: GET /v1/regions/x. *answer, to be
 * freed, holds *answer_bytes and a NUL behind them. */
ROPED_MUST_CHECK enum roped_status
roped_client_request_bytes(struct roped_client *client, const char *method,
                           const char *path, const void *body, size_t bytes,
                           void **answer, size_t *answer_bytes,
                           struct roped_error *err);

#endif
