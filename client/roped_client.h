/*
 * roped_client.h - calls to a roped daemon from C and C++: tensors in, tensors
 * out. One library to link: -lroped_client.
 *
 *     struct roped_client *client;
 *     struct roped_client_options options = {0};
 *     roped_client_open(&options, &client, &err);
 *     roped_client_call(client, "rmsnorm", "eps=1e-6", in, 2, &result, &err);
 *     ... roped_client_output(&result, "y")->data ...
 *     roped_client_result_free(&result);
 *     roped_client_close(client);
 *
 * A client is one keep-alive connection and belongs to one thread at a time;
 * different clients may be opened and used by different threads at once. What
 * a function hands out is written only where it returns ROPED_OK.
 *
 * The server is not trusted. Whatever comes back, a request ends within
 * timeout_seconds, from connecting to the last byte, and within
 * max_answer_bytes and some 200 KiB beside; a redirection is not followed. An
 * error is one line that a terminal may show: control characters of a server's
 * sentence are escaped, "\u001b[31m". What an answer holds, such as a tensor's
 * name, is as it came.
 */
#ifndef ROPED_CLIENT_H
#define ROPED_CLIENT_H

#include <roped/op.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct roped_client;

enum { ROPED_CLIENT_TENSORS = ROPED_MAX_INPUTS };

/* Zero what you do not set, as {.url = url} does: members may be added at the
 * end. */
struct roped_client_options {
    const char *url;        /* NULL: $ROPED_URL, else http://127.0.0.1:8000; or
                               unix:/path; or several, with commas between
                               them: calls go to them in turn, and to another
                               one where one does not answer or drains */
    const char *token_file; /* file with a bearer token, or NULL */
    const char *ca_file; /* PEM of the CAs that https:// may name; NULL: those
                            of the system */
    const char *cert_file, *key_file; /* PEM, ours, where the server asks for
                                         it, or NULL */
    double timeout_seconds;           /* of one request; 0: 300 */
    /* (optional) bytes sent and received so far, and in all (0: unknown) */
    void (*progress)(void *context, uint64_t sent, uint64_t to_send,
                     uint64_t received, uint64_t to_receive);
    void *progress_context;
    uint64_t max_answer_bytes; /* of one answer; 0: 1 GiB */
    const char *name; /* sent as X-Roped-Client with what uses a region or a
                         table; of several servers it chooses the one that
                         keeps these. NULL: none is sent */
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
    void *memory; /* the answer's body: a safetensors file */
    size_t bytes; /* of it */
};

/* Makes a client; nothing is sent yet. options need not outlive the call, but
 * for progress_context. ROPED_INVALID where token_file cannot be used. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_open(const struct roped_client_options *options,
                  struct roped_client **out, struct roped_error *err);
ROPED_API void roped_client_close(struct roped_client *client);

/*
 * Calls an operator, or runs a program: op is "programs/NAME" then. query holds
 * parameters as "name=value&...", or NULL; with "from.x=REGION" input x is one
 * that the server keeps, and inputs leaves it out, with "into.y=REGION" output
 * y stays there. The error is the server's own sentence, or names the URL and
 * what went wrong on the way.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_call(struct roped_client *client, const char *op,
                  const char *query, const struct roped_client_tensor *inputs,
                  int n_inputs, struct roped_client_result *result,
                  struct roped_error *err);

/* The same with a safetensors file that is already made. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_call_bytes(struct roped_client *client, const char *op,
                        const char *query, const void *body, size_t bytes,
                        struct roped_client_result *result,
                        struct roped_error *err);

/* An output by name, or NULL. */
ROPED_API const struct roped_tensor *
roped_client_output(const struct roped_client_result *result, const char *name);
ROPED_API void roped_client_result_free(struct roped_client_result *result);

/*
 * Any other request: GET /metrics, PUT /v1/tables/x, ... *text is the answer's
 * body, NUL-terminated, to be freed. Not a 2xx: the status of the refusal's
 * code (ROPED_NO_REGION for "no_region") and its sentence.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_request(struct roped_client *client, const char *method,
                     const char *path, const void *body, size_t bytes,
                     char **text, struct roped_error *err);

/* The same for an answer that is no text: GET /v1/regions/x. *answer, to be
 * freed, holds *answer_bytes and a NUL behind them. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_request_bytes(struct roped_client *client, const char *method,
                           const char *path, const void *body, size_t bytes,
                           void **answer, size_t *answer_bytes,
                           struct roped_error *err);

/* The HTTP status of the client's last request: 400, 503, ...; 0: there was no
 * answer, or no request. */
ROPED_API int roped_client_http_status(const struct roped_client *client);

/* The bytes of a safetensors file of these tensors, to be freed. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_write(const struct roped_client_tensor *tensors, int n_tensors,
                   void **file, size_t *file_bytes, struct roped_error *err);

/* The tensors of a safetensors file in the file's order, views into it.
 * *tensors is one block, names included, to be freed. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_client_read(void *file, size_t file_bytes,
                  struct roped_client_tensor **tensors, int *n_tensors,
                  struct roped_error *err);

#ifdef __cplusplus
}
#endif

#endif
