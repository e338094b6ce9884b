/*
 * command_tables.c - tables: rotary tables of the server.
 */
#include "ropectl.h"

#include <stdlib.h>
#include <string.h>

static bool set_style(void *target, const char *text)
{
    *(const char **)target = text; /* the server knows which there are */
    return true;
}

static const struct option_row put_options[] = {
    {"style", set_style, "neox or gptj"}, {NULL, NULL, NULL}};

/* argv is FILE and options. */
static int put_table(const struct ropectl *ctl, const char *path, int argc,
                     char **argv)
{
    const char *style = NULL;
    char *query = NULL, *whole;
    size_t bytes;
    int code = take_options("tables", put_options, argc - 1, argv + 1, &style);
    if (code)
        return code;
    unsigned char *body = read_input(argv[0], &bytes);
    if (!body)
        return EXIT_FAILURE;
    if (style)
        query_add(&query, "style", style);
    if (asprintf(&whole, "%s%s%s", path, query ? "?" : "", query ? query : "") <
        0)
        whole = NULL;
    code = print_answer(
        ctl, &(struct request){"PUT", must_have(whole), body, bytes});
    free(whole);
    free(query);
    free(body);
    return code;
}

int command_tables(const struct ropectl *ctl, int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "list";
    int code;
    if (argc <= 2 && strcmp(verb, "list") == 0)
        return print_answer(ctl, &(struct request){"GET", "/v1/tables"});
    if (argc <= 2)
        return usage("tables", "unknown verb '%s' with 0 arguments", verb);
    char *path = path_to("/v1/tables/", argv[2]);
    if (!path)
        return EXIT_USAGE;
    if (argc == 3 && strcmp(verb, "get") == 0)
        code = print_answer(ctl, &(struct request){"GET", path});
    else if (argc == 3 && strcmp(verb, "delete") == 0)
        code = print_answer(ctl, &(struct request){"DELETE", path});
    else if (argc >= 4 && strcmp(verb, "put") == 0)
        code = put_table(ctl, path, argc - 3, argv + 3);
    else
        code = usage("tables", "unknown verb '%s' with %d arguments", verb,
                     argc - 2);
    free(path);
    return code;
}
