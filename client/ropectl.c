/*
 * ropectl.c - the command line of roped: finds the command, says what is wrong.
 */
#include "ropectl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    command_fn *run;
    const char *arguments, *help;
} commands[] = {
    {"ops", command_ops, "", "the operators"},
    {"describe", command_describe, "OP",
     "tensors, parameters and rules of one"},
    {"run", command_run,
     "OP in.safetensors [-o out.safetensors] [--param=value ...] "
     "[--table=NAME]",
     "call it"},
    {"bench", command_bench,
     "OP [dim=size ...] [--dtype bf16] [--seconds 3] [--connections 1] "
     "[--param=value ...]",
     "call it again and again with random tensors"},
    {"tables", command_tables,
     "[list | put NAME FILE | get NAME | delete NAME]",
     "rotary tables of the server"},
    {"status", command_status, "", "is it ready, what has it done"},
    {"cat", command_cat, "FILE.safetensors", "names, shapes and first values"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void write_help(FILE *out)
{
    fputs("usage: ropectl [--server URL] [--token-file FILE] COMMAND ...\n\n",
          out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s %s\n      %s\n", commands[i].name,
                commands[i].arguments, commands[i].help);
    fputs("\nThe server is --server, $ROPED_URL or http://127.0.0.1:8000.\n"
          "Exit status: 0 done, 1 failed, 2 wrong usage.\n",
          out);
}

int fail(const struct roped_error *err)
{
    fprintf(stderr, "ropectl: %s\n", err->text);
    return EXIT_FAILURE;
}

int usage(const char *text)
{
    fprintf(stderr, "usage: ropectl %s\n", text);
    return EXIT_USAGE;
}

/* Letters of a that b has in the same order. */
static int common_letters(const char *a, const char *b)
{
    int n = 0;
    for (; *a; a++) {
        const char *found = strchr(b, *a);
        if (found) {
            n++;
            b = found + 1;
        }
    }
    return n;
}

const struct roped_op *find_op(const char *name)
{
    const struct roped_op *op = roped_op_find(name), *nearest = roped_op_at(0);
    if (op)
        return op;
    for (int i = 1; i < roped_op_count(); i++)
        if (common_letters(name, roped_op_at(i)->name) >
            common_letters(name, nearest->name))
            nearest = roped_op_at(i);
    fprintf(stderr,
            "ropectl: no operator '%s'; the nearest is '%s', 'ropectl ops' "
            "lists all\n",
            name, nearest->name);
    return NULL;
}

unsigned char *read_input(const char *path, size_t *bytes)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    unsigned char *all = NULL;
    size_t capacity = 0, n = 0;
    while (file) {
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            unsigned char *grown = realloc(all, capacity);
            if (!grown)
                break;
            all = grown;
        }
        size_t got = fread(all + n, 1, capacity - n, file);
        n += got;
        if (got == 0)
            break;
    }
    if (!file || ferror(file)) {
        fprintf(stderr, "ropectl: cannot read '%s': %s\n", path,
                strerror(errno));
        free(all);
        all = NULL;
    }
    if (file && file != stdin)
        fclose(file);
    *bytes = n;
    return all;
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

int main(int argc, char **argv)
{
    struct ropectl ctl = {.options = {.url = NULL}};
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--server") == 0)
            ctl.options.url = argv[at + 1];
        else if (strcmp(argv[at], "--token-file") == 0)
            ctl.options.token_file = argv[at + 1];
        else
            break;
    }
    if (at < argc &&
        (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0)) {
        write_help(stdout);
        return EXIT_SUCCESS;
    }
    for (int i = 0; i < N_COMMANDS && at < argc; i++)
        if (strcmp(argv[at], commands[i].name) == 0)
            return commands[i].run(&ctl, argc - at, argv + at);
    write_help(stderr);
    return EXIT_USAGE;
}
