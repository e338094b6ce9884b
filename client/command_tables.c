/*
 * command_tables.c - tables: rotary tables of the server.
 */
#include "ropectl.h"

#include <stdlib.h>

static bool set_style(void *target, const char *text)
{
    *(const char **)target = text; /* the server knows which there are */
    return true;
}

static const struct option_row put_options[] = {
    {"style", set_style, "neox or gptj"}, {NULL, NULL, NULL}};

/* argv is NAME, FILE and options. */
static int put_table(const struct ropectl *ctl, const char *path, int argc,
                     char **argv)
{
    const char *style = NULL;
    char *query = NULL, *whole;
    size_t bytes;
    int code = take_options("tables", put_options, argc - 2, argv + 2, &style);
    if (code)
        return code;
    unsigned char *body = read_input(argv[1], &bytes);
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

static int list(const struct ropectl *ctl, const char *path, int argc,
                char **argv)
{
    (void)path;
    return verb_get(ctl, "/v1/tables", argc, argv);
}

static const struct verb verbs[] = {{"list", "", false, list},
                                    {"get", "NAME", false, verb_get},
                                    {"put", "NAME FILE", true, put_table},
                                    {"delete", "NAME", false, verb_delete},
                                    {NULL}};

int command_tables(const struct ropectl *ctl, int argc, char **argv)
{
    return run_verb(ctl, "tables", "/v1/tables/", verbs, argc, argv);
}
