/*
 * options.c - the one reader of options: words that start with "--", which are
 * those of every command, rows of a command's table, or parameters of an
 * operator.
 */
#include "ropectl.h"

#include "number.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const unsigned long long most_answer_bytes = 1ULL << 50;

/* Setters of the options that every command takes. */
#define TEXT_OPTION(member)                                                    \
    static bool set_##member(void *target, const char *text)                   \
    {                                                                          \
        ((struct ropectl *)target)->options.member = text;                     \
        return text[0] != '\0';                                                \
    }
TEXT_OPTION(url)
TEXT_OPTION(token_file)
TEXT_OPTION(ca_file)
TEXT_OPTION(cert_file)
TEXT_OPTION(key_file)
TEXT_OPTION(name)

static bool set_timeout(void *target, const char *text)
{
    return read_number(text, 1e6,
                       &((struct ropectl *)target)->options.timeout_seconds);
}

static bool set_max_answer(void *target, const char *text)
{
    static const char units[] = "kmgt";
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    ((struct ropectl *)target)->options.max_answer_bytes = n << shift;
    return text[0] >= '0' && text[0] <= '9' && !errno && !end[unit ? 1 : 0] &&
           n > 0 && n <= most_answer_bytes >> shift;
}

static bool set_output(void *target, const char *text)
{
    struct ropectl *ctl = target;
    ctl->is_json = strcmp(text, "json") == 0;
    return ctl->is_json || strcmp(text, "table") == 0;
}

static const struct option_row common_options[] = {
    {"server", set_url, "a URL"},
    {"url", set_url, "a URL"}, /* as other clients call it */
    {"token-file", set_token_file, "a file"},
    {"ca-file", set_ca_file, "a file"},
    {"cert", set_cert_file, "a file"},
    {"key", set_key_file, "a file"},
    {"client", set_name, "a name of your choice"},
    {"timeout", set_timeout, "seconds above 0"},
    {"max-answer", set_max_answer, "bytes above 0, as 64m or 2g"},
    {"output", set_output, "table or json"},
    {NULL}};

int take_common(struct ropectl *ctl, int *argc, char **argv)
{
    struct option option;
    int n = 1;
    for (int at = 1; at < *argc; at++) {
        int last = at, code = -1;
        if (read_option(*argc, argv, &last, &option))
            code = take_option(NULL, common_options, &option, ctl);
        if (code == EXIT_USAGE)
            return code;
        if (code == EXIT_SUCCESS)
            at = last;
        else
            argv[n++] = argv[at];
    }
    *argc = n;
    return EXIT_SUCCESS;
}

bool read_option(int argc, char **argv, int *at, struct option *out)
{
    const char *argument = argv[*at];
    if (strncmp(argument, "--", 2) != 0 || !argument[2])
        return false;
    size_t length = strcspn(argument + 2, "=");
    snprintf(out->name, sizeof out->name, "%.*s", (int)length, argument + 2);
    out->value = NULL;
    if (argument[2 + length] == '=')
        out->value = argument + 2 + length + 1;
    else if (*at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0)
        out->value = argv[++*at];
    return true;
}

int take_option(const char *command, const struct option_row *rows,
                const struct option *option, void *target)
{
    for (; rows->name; rows++) {
        if (strcmp(option->name, rows->name) != 0)
            continue;
        if (option->value && rows->set(target, option->value))
            return EXIT_SUCCESS;
        return usage(command, "option '--%s': '%s', expected %s", option->name,
                     option->value ? option->value : "", rows->expected);
    }
    return -1;
}

int take_options(const char *command, const struct option_row *rows, int argc,
                 char **argv, void *target)
{
    struct option option;
    int code = EXIT_SUCCESS;
    for (int at = 0; at < argc && !code; at++) {
        if (!read_option(argc, argv, &at, &option))
            return usage(command, "'%s' is no option with a value", argv[at]);
        code = take_option(command, rows, &option, target);
        if (code < 0)
            return unknown_option(command, rows, option.name);
    }
    return code;
}

/* The options of a command, and those of all. */
static void offer_options(struct roped_nearest *nearest,
                          const struct option_row *rows)
{
    for (; rows->name; rows++)
        roped_nearest_offer(nearest, rows->name);
    for (rows = common_options; rows->name; rows++)
        roped_nearest_offer(nearest, rows->name);
}

int unknown_option(const char *command, const struct option_row *rows,
                   const char *name)
{
    char text[128];
    struct roped_nearest nearest = {.word = name};
    offer_options(&nearest, rows);
    return usage(command, "no option '--%s'%s", name,
                 roped_nearest_text(&nearest, text, sizeof text));
}

bool read_number(const char *text, double most, double *out)
{
    char *end;
    *out = number_read(text, &end);
    return end != text && *end == '\0' && *out > 0 && *out <= most;
}

/* -------------------------------------------------------------------- paths */

/* Percent-encoded but for plain characters; to be freed. */
static char *url_encode(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    char *encoded = must_have(malloc(3 * strlen(text) + 1)), *to = encoded;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= '9') || strchr("-._,", c);
        *to++ = is_plain ? (char)c : '%';
        if (!is_plain) {
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
        }
    }
    *to = '\0';
    return encoded;
}

void query_add(char **query, const char *name, const char *value)
{
    char *encoded_name = url_encode(name), *encoded = url_encode(value), *all;
    if (asprintf(&all, "%s%s%s=%s", *query ? *query : "", *query ? "&" : "",
                 encoded_name, encoded) < 0)
        all = NULL;
    free(encoded_name);
    free(encoded);
    free(*query);
    *query = must_have(all);
}

/* Without a name the path would be that of the list, and with dots that of a
 * folder. */
static bool is_name(const char *name)
{
    return name[0] && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

char *path_to(const char *folder, const char *name)
{
    char *encoded, *path;
    if (!is_name(name)) {
        fail_text("'%s' cannot be a name", name);
        return NULL;
    }
    encoded = url_encode(name);
    if (asprintf(&path, "%s%s", folder, encoded) < 0)
        path = NULL;
    free(encoded);
    return must_have(path);
}

/* --------------------------------------------------------------- parameters */

/* Parameters of /v1 that no operator has of its own. */
static const char *const common_names[] = {"table", "fp8", NULL},
                         *const common_starts[] = {
                             "from.",   "into.",        "dtype.", "shape.",
                             "stride.", "into_stride.", NULL};

static bool is_common_parameter(const char *name)
{
    for (int i = 0; common_names[i]; i++)
        if (strcmp(name, common_names[i]) == 0)
            return true;
    for (int i = 0; common_starts[i]; i++)
        if (strncmp(name, common_starts[i], strlen(common_starts[i])) == 0)
            return true;
    return false;
}

int add_parameter(const char *command, const struct option_row *rows,
                  struct roped_call *call, const struct option *option,
                  char **query)
{
    char text[128];
    struct roped_error err;
    const struct roped_op *op = call->op;
    struct roped_nearest nearest = {.word = option->name};
    bool is_common = is_common_parameter(option->name);
    for (int i = 0; i < roped_op_params(op); i++)
        roped_nearest_offer(&nearest, op->param[i].name);
    for (int i = 0; common_names[i]; i++)
        roped_nearest_offer(&nearest, common_names[i]);
    offer_options(&nearest, rows);
    if (!is_common && roped_op_param(op, option->name) < 0)
        return usage(command, "%s has no parameter '%s'%s", op->name,
                     option->name,
                     roped_nearest_text(&nearest, text, sizeof text));
    if (!option->value)
        return usage(command, "parameter '%s' has no value", option->name);
    if (!is_common &&
        roped_call_set_text(call, option->name, option->value, &err))
        return usage(command, "%s", err.text);
    query_add(query, option->name, option->value);
    return EXIT_SUCCESS;
}
