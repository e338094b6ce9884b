/*
 * support.c - what every command of ropectl needs: failing in one line,
 * guessing what was meant, options, files, a connection, a request.
 */
#include "ropectl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ----------------------------------------------------------------- failing */

int fail(const struct roped_error *err)
{
    return fail_text("%s", err->text);
}

int fail_text(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("ropectl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return EXIT_FAILURE;
}

int usage(const char *command, const char *format, ...)
{
    const struct command *found = command_find(command);
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "ropectl %s: ", command);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nusage: ropectl %s %s\n", command,
            found ? found->arguments : "");
    return EXIT_USAGE;
}

void *must_have(void *memory)
{
    if (!memory)
        exit(fail_text("no memory"));
    return memory;
}

const struct roped_op *find_op(const char *name)
{
    char text[128];
    struct roped_nearest nearest = {.word = name};
    const struct roped_op *op = roped_op_find(name);
    for (int i = 0; i < roped_op_count() && !op; i++)
        roped_nearest_offer(&nearest, roped_op_at(i)->name);
    if (!op)
        fail_text("no operator '%s'%s ('ropectl ops' lists all)", name,
                  roped_nearest_text(&nearest, text, sizeof text));
    return op;
}

/* --------------------------------------------------------------- arguments */

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

char *path_to(const char *folder, const char *name)
{
    char *encoded = url_encode(name), *path;
    if (asprintf(&path, "%s%s", folder, encoded) < 0)
        path = NULL;
    free(encoded);
    return must_have(path);
}

/* Parameters of /v1 that no operator has of its own. */
static bool is_common_parameter(const char *name)
{
    static const char *const names[] = {"table", "fp8"}, *const prefixes[] = {
                                                             "from.", "into.",
                                                             "dtype.",
                                                             "shape."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

int add_parameter(const char *command, struct roped_call *call,
                  const struct option *option, char **query)
{
    char text[128];
    struct roped_error err;
    const struct roped_op *op = call->op;
    struct roped_nearest nearest = {.word = option->name};
    bool is_common = is_common_parameter(option->name);
    for (int i = 0; i < roped_op_params(op); i++)
        roped_nearest_offer(&nearest, op->param[i].name);
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

/* ------------------------------------------------------ files and requests */

/* Bytes of a regular file and one more, so that its end is found without
 * growing; else a first guess. */
static size_t first_capacity(FILE *file)
{
    struct stat about;
    if (fstat(fileno(file), &about) == 0 && S_ISREG(about.st_mode) &&
        about.st_size >= 0)
        return (size_t)about.st_size + 1;
    return 1 << 16;
}

static unsigned char *read_all(FILE *file, size_t *bytes)
{
    size_t capacity = first_capacity(file), n = 0;
    unsigned char *all = malloc(capacity);
    while (all) {
        size_t got = fread(all + n, 1, capacity - n, file);
        n += got;
        if (got == 0)
            break;
        if (n < capacity)
            continue;
        capacity *= 2;
        unsigned char *grown = realloc(all, capacity);
        if (!grown)
            free(all);
        all = grown;
    }
    *bytes = n;
    return all;
}

unsigned char *read_input(const char *path, size_t *bytes)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rbe");
    unsigned char *all = NULL;
    if (!file) {
        fail_text("cannot read '%s': %s", path, strerror(errno));
        return NULL;
    }
    all = read_all(file, bytes);
    if (!all) {
        fail_text("cannot read '%s': no memory for %zu bytes", path, *bytes);
    } else if (ferror(file)) {
        fail_text("cannot read '%s': %s", path, strerror(errno));
        free(all);
        all = NULL;
    }
    if (!is_stdin)
        fclose(file);
    return all;
}

bool write_output(const char *path, const char *head, size_t head_bytes,
                  const void *data, size_t bytes)
{
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "wbe");
    bool is_written = file && fwrite(head, 1, head_bytes, file) == head_bytes &&
                      fwrite(data, 1, bytes, file) == bytes;
    int why = errno;
    if (file && (is_stdout ? fflush(file) : fclose(file)) != 0 && is_written) {
        is_written = false;
        why = errno;
    }
    if (!is_written)
        fail_text("cannot write '%s': %s", path, strerror(why));
    return is_written;
}

struct roped_client *connect_to(const struct ropectl *ctl)
{
    struct roped_client *client;
    struct roped_error err;
    if (roped_client_open(&ctl->options, &client, &err) == ROPED_OK)
        return client;
    fail(&err);
    return NULL;
}

int print_answer(const struct ropectl *ctl, const char *method,
                 const char *path, const void *body, size_t bytes)
{
    struct roped_error err;
    char *text;
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status =
        roped_client_request(client, method, path, body, bytes, &text, &err);
    roped_client_close(client);
    if (status)
        return fail(&err);
    puts(text);
    free(text);
    return EXIT_SUCCESS;
}

int print_json(FILE *out, cJSON *document)
{
    char *text = must_have(cJSON_PrintUnformatted(document));
    fprintf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(document);
    return EXIT_SUCCESS;
}

void print_phases(FILE *out, const struct roped_client_timing *timing,
                  double n_calls, int digits)
{
    int n = 0;
#define PHASE(id, name, ...)                                                   \
    fprintf(out, "%s%s %.*f", n++ ? ", " : "", #name, digits,                  \
            timing->name * 1e3 / n_calls);
#define BODY_PHASE(...) PHASE(__VA_ARGS__)
#include "phase.def"
}

void add_timing_json(cJSON *object, const char *name,
                     const struct roped_client_timing *timing, double n_calls)
{
    cJSON *phases = cJSON_AddObjectToObject(object, name);
#define PHASE(id, name, ...)                                                   \
    cJSON_AddNumberToObject(phases, #name, timing->name * 1e3 / n_calls);
#define BODY_PHASE(...) PHASE(__VA_ARGS__)
#include "phase.def"
    cJSON_AddNumberToObject(phases, "wall", timing->wall * 1e3 / n_calls);
}
