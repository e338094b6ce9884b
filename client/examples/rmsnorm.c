/*
 * rmsnorm.c - the C client in thirty lines: normalise two rows on a server.
 *     rmsnorm_example [http://127.0.0.1:8000]
 */
#include "roped_client.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    float x[2][4] = {{1, 2, 3, 4}, {-1, 0, 1, 0}}, weight[4] = {1, 1, 2, 2};
    struct roped_client_tensor in[] = {
        {"x", {.dtype = ROPED_F32, .rank = 2, .dims = {2, 4}, .data = x}},
        {"weight",
         {.dtype = ROPED_F32, .rank = 1, .dims = {4}, .data = weight}}};
    struct roped_client_options options = {.url = argc > 1 ? argv[1] : NULL};
    struct roped_client *client;
    struct roped_client_result result;
    struct roped_error err;
    if (roped_client_open(&options, &client, &err) ||
        roped_client_call(client, "rmsnorm", "eps=1e-6", in, 2, &result,
                          &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const float *y = (const float *)roped_client_output(&result, "y")->data;
    for (int i = 0; i < 8; i++)
        printf("%9.6f%s", (double)y[i], i % 4 == 3 ? "\n" : " ");
    printf("kernel %.1f us\n", result.timing.kernel * 1e6);
    roped_client_result_free(&result);
    roped_client_close(client);
    return 0;
}
