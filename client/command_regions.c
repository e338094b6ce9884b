/*
 * command_regions.c - regions: memory that stays on the server.
 */
#include "query.h"
#include "ropectl.h"

#include <stdlib.h>
#include <string.h>

/* Writes what the server keeps there into a file. */
static int get_region(const struct ropectl *ctl, const char *path,
                      const char *file)
{
    struct roped_error err;
    void *answer;
    size_t bytes;
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_request_bytes(
        client, "GET", path, NULL, 0, &answer, &bytes, &err);
    roped_client_close(client);
    if (status)
        return fail(&err);
    bool is_written = write_output(file, answer, bytes);
    free(answer);
    return is_written ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* A region of zeros, as large as the arguments "--name=value" say. */
static int make_zeros(const struct ropectl *ctl, struct buffer *path, int argc,
                      char **argv)
{
    struct buffer query;
    int code = EXIT_SUCCESS;
    buffer_init(&query);
    for (int i = 3; i < argc && code == EXIT_SUCCESS; i++)
        if (!query_add(&query, argv[i]))
            code = usage("regions",
                         "'%s', expected --bytes=N or --dtype=T --shape=N,N",
                         argv[i]);
    if (code == EXIT_SUCCESS) {
        buffer_printf(path, "?%s", query.text ? query.text : "");
        code = print_answer(ctl, "PUT", path->text, "", 0);
    }
    buffer_fini(&query);
    return code;
}

int command_regions(const struct ropectl *ctl, int argc, char **argv)
{
    struct buffer path;
    const char *verb = argc > 1 ? argv[1] : "list";
    int code;
    if (argc <= 2 && strcmp(verb, "list") == 0)
        return print_answer(ctl, "GET", "/v1/regions", NULL, 0);
    buffer_init(&path);
    buffer_text(&path, "/v1/regions/");
    if (argc > 2)
        query_encode(&path, argv[2], NULL);
    if (argc == 4 && strcmp(verb, "put") == 0)
        code = put_file(ctl, path.text, argv[3]);
    else if (argc >= 4 && strcmp(verb, "zeros") == 0)
        code = make_zeros(ctl, &path, argc, argv);
    else if (argc == 4 && strcmp(verb, "get") == 0)
        code = get_region(ctl, path.text, argv[3]);
    else if (argc == 3 && strcmp(verb, "delete") == 0)
        code = print_answer(ctl, "DELETE", path.text, NULL, 0);
    else
        code = usage("regions", "'%s' is no verb with %d arguments", verb,
                     argc > 2 ? argc - 2 : 0);
    buffer_fini(&path);
    return code;
}
