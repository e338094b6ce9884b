/*
 * client_consumer.c - a program of someone else, in C11 and in C++11: it uses
 * what the client's header declares, and what the headers do that come with it.
 */
#include <roped_client.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *what)
{
    fprintf(stderr, "consumer: %s\n", what);
    return EXIT_FAILURE;
}

int main(void)
{
    float x[4] = {1, 2, 3, 4};
    struct roped_client_options options;
    struct roped_client_tensor in, *read;
    struct roped_client_result result;
    struct roped_client *client;
    struct roped_error err;
    void *file;
    size_t bytes;
    int n;
    memset(&options, 0, sizeof options);
    memset(&in, 0, sizeof in);
    in.name = "x";
    in.tensor.dtype = ROPED_F32;
    in.tensor.rank = 1;
    in.tensor.dims[0] = 4;
    in.tensor.data = x;
    if (roped_client_write(&in, 1, &file, &bytes, &err) ||
        roped_client_read(file, bytes, &read, &n, &err))
        return refuse(err.text);
    if (n != 1 || strcmp(read->name, "x") != 0 ||
        roped_tensor_bytes(&read->tensor) != sizeof x ||
        memcmp(read->tensor.data, x, sizeof x) != 0)
        return refuse("what was read is not what was written");
    free(read);
    free(file);
    if (!roped_op_find("rmsnorm") || roped_op_check_table(&err))
        return refuse("the operator table is not there");
    options.url = "127.0.0.1:1";
    if (roped_client_open(&options, &client, &err))
        return refuse(err.text);
    if (roped_client_call(client, "rmsnorm", NULL, &in, 1, &result, &err) ==
            ROPED_OK ||
        !strstr(err.text, "could not connect"))
        return refuse(err.text);
    roped_client_close(client);
    puts(roped_status_token(err.status));
    return EXIT_SUCCESS;
}
