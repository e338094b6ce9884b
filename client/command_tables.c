/*
 * command_tables.c - tables: rotary tables of the server.
 */
#include "ropectl.h"

#include <stdlib.h>
#include <string.h>

static int put_table(const struct ropectl *ctl, const char *path,
                     const char *file)
{
    size_t bytes;
    unsigned char *body = read_input(file, &bytes);
    if (!body)
        return EXIT_FAILURE;
    int code = print_answer(ctl, &(struct request){"PUT", path, body, bytes});
    free(body);
    return code;
}

int command_tables(const struct ropectl *ctl, int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "list";
    int code;
    if (argc <= 2 && strcmp(verb, "list") == 0)
        return print_answer(ctl, &(struct request){"GET", "/v1/tables"});
    char *path = path_to("/v1/tables/", argc > 2 ? argv[2] : "");
    if (argc == 3 && strcmp(verb, "get") == 0)
        code = print_answer(ctl, &(struct request){"GET", path});
    else if (argc == 3 && strcmp(verb, "delete") == 0)
        code = print_answer(ctl, &(struct request){"DELETE", path});
    else if (argc == 4 && strcmp(verb, "put") == 0)
        code = put_table(ctl, path, argv[3]);
    else
        code = usage("tables", "unknown verb '%s' with %d arguments", verb,
                     argc > 2 ? argc - 2 : 0);
    free(path);
    return code;
}
