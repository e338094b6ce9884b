/*
 * hostile_client.c - a small program on libroped_client: asks everything of the
 * server at a URL and prints a line of each, "NAME: STATUS: sentence". Whatever
 * comes back, it ends with 0.
 */
#include "roped_client.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print(const char *name, enum roped_status status,
                  const struct roped_error *err)
{
    printf("%s: %s: %s\n", name, roped_status_token(status),
           status ? err->text : "");
}

/* Is what came back what the header promises? Every byte is read. */
static void touch(const struct roped_client_result *result)
{
    const struct roped_client_timing *timing = &result->timing;
    unsigned sum = 0;
    for (int i = 0; i < result->n_tensors; i++) {
        const struct roped_tensor *tensor = &result->tensor[i];
        const unsigned char *at = tensor->data;
        for (int64_t n = roped_tensor_bytes(tensor); n > 0; n--)
            sum += *at++;
    }
    if (!isfinite(timing->queue + timing->plan + timing->kernel +
                  timing->receive + timing->d2h) ||
        timing->receive < 0 || sum == 1)
        printf("call: the timing is none\n");
}

static void call(struct roped_client *client)
{
    float x[1][4] = {{1, 2, 3, 4}};
    struct roped_client_tensor in = {
        "x", {.dtype = ROPED_F32, .rank = 2, .dims = {1, 4}, .data = x}};
    struct roped_client_result result;
    struct roped_error err;
    enum roped_status status =
        roped_client_call(client, "rmsnorm", NULL, &in, 1, &result, &err);
    print("call", status, &err);
    if (!status)
        touch(&result);
    roped_client_result_free(&result);
}

static void ask(struct roped_client *client, const char *name, const char *path)
{
    struct roped_error err;
    char *text = NULL;
    print(name, roped_client_request(client, "GET", path, NULL, 0, &text, &err),
          &err);
    free(text);
}

static void get(struct roped_client *client)
{
    struct roped_client_tensor *tensors;
    struct roped_error err;
    void *answer;
    size_t bytes;
    int n;
    enum roped_status status = roped_client_request_bytes(
        client, "GET", "/v1/regions/r", NULL, 0, &answer, &bytes, &err);
    print("region", status, &err);
    if (status)
        return;
    status = roped_client_read(answer, bytes, &tensors, &n, &err);
    print("file", status, &err);
    if (!status)
        free(tensors);
    free(answer);
}

int main(int argc, char **argv)
{
    struct roped_client_options options = {.url = argc > 1 ? argv[1] : NULL,
                                           .timeout_seconds = 0.5,
                                           .max_answer_bytes = 4 << 20};
    struct roped_client *client;
    struct roped_error err;
    if (roped_client_open(&options, &client, &err)) {
        printf("open: %s\n", err.text);
        return EXIT_FAILURE;
    }
    call(client);
    ask(client, "document", "/v1/regions");
    ask(client, "metrics", "/metrics");
    get(client);
    roped_client_close(client);
    return EXIT_SUCCESS;
}
