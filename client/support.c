/*
 * support.c - what every command of ropectl needs: failing in one line,
 * guessing what was meant, files, a connection, a request.
 */
#include "ropectl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static int least(int a, int b, int c)
{
    int smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

int word_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    int row[LONGEST + 1];
    size_t n = strlen(b);
    if (n > LONGEST || strlen(a) > LONGEST)
        return LONGEST + 1;
    for (int j = 0; j <= (int)n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            int changed = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = least(changed, row[j] + 1, row[j + 1] + 1);
        }
    }
    return row[n];
}

const struct roped_op *find_op(const char *name)
{
    const struct roped_op *op = roped_op_find(name), *nearest = roped_op_at(0);
    if (op)
        return op;
    for (int i = 1; i < roped_op_count(); i++)
        if (word_distance(name, roped_op_at(i)->name) <
            word_distance(name, nearest->name))
            nearest = roped_op_at(i);
    fail_text("no operator '%s'; the nearest is '%s', 'ropectl ops' lists all",
              name, nearest->name);
    return NULL;
}

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

bool write_output(const char *path, const void *data, size_t bytes)
{
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "wbe");
    bool is_written = file && fwrite(data, 1, bytes, file) == bytes;
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

int put_file(const struct ropectl *ctl, const char *path, const char *file)
{
    size_t bytes;
    unsigned char *body = read_input(file, &bytes);
    if (!body)
        return EXIT_FAILURE;
    int code = print_answer(ctl, "PUT", path, body, bytes);
    free(body);
    return code;
}
