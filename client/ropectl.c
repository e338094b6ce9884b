/*
 * ropectl.c - the command line of roped: takes the options that every command
 * has, and finds the command.
 */
#include "ropectl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct command commands[] = {
    {"ops", command_ops, "", "the operators",
     "Lists the operators that ropectl was built with.\n"},
    {"describe", command_describe, "OP",
     "tensors, parameters and rules of one operator",
     "Prints what an operator takes and returns: tensors with their types and\n"
     "symbolic shapes (one per form), parameters with default, range and\n"
     "meaning, and the rule that shapes cannot say.\n"},
    {"run", command_run,
     "OP [in.safetensors] [-o out.safetensors] [--NAME=VALUE ...]",
     "call it, from a file to a file",
     "Sends the tensors of a file and prints those that come back, and where\n"
     "the time went. The file's tensors are checked before it is sent.\n"
     "\n"
     "  in.safetensors      the inputs, by name; '-': standard input. May be\n"
     "                      left out where all inputs are in regions\n"
     "  -o FILE             where the outputs go; '-': standard output\n"
     "  --NAME=VALUE        a parameter of the operator (ropectl describe OP)\n"
     "  --table=NAME        a rotary table of the server\n"
     "  --from.INPUT=NAME[:OFFSET], --into.OUTPUT=NAME[:OFFSET]\n"
     "                      this tensor stays in a region of the server\n"
     "  --dtype.INPUT=TYPE, --shape.INPUT=DIM,DIM\n"
     "                      what the region does not say of it\n"
     "  --fp8=u8            name FP8 outputs U8, for readers without FP8\n"},
    {"bench", command_bench,
     "OP [SYMBOL=SIZE ...] [--dtype bf16] [--seconds 3] [--connections 1] "
     "[--NAME=VALUE ...]",
     "call it again and again with random tensors",
     "Makes random tensors, calls without pause and prints latency, rate and\n"
     "the stages inside the server.\n"
     "\n"
     "  SYMBOL=SIZE         a dimension, as in 'ropectl describe OP': n=512\n"
     "  --dtype bf16        f32, f16 or bf16\n"
     "  --seconds 3         how long\n"
     "  --connections 1     how many at a time, 1 to 256\n"
     "  --NAME=VALUE        a parameter of the operator\n"},
    {"tables", command_tables,
     "[list | put NAME FILE | get NAME | delete NAME]",
     "rotary tables of the server",
     "A table is a set of rope parameters under a name, for --table=NAME.\n"
     "\n"
     "  list                all of them (what no verb means)\n"
     "  put NAME FILE       makes or replaces one: rope parameters as JSON, "
     "or\n"
     "                      a Hugging Face config.json as it is; '-': "
     "standard\n"
     "                      input\n"
     "  get NAME            its parameters as JSON\n"
     "  delete NAME         forgets it\n"},
    {"regions", command_regions,
     "[list | put NAME FILE | zeros NAME SIZE | get NAME FILE | delete NAME]",
     "memory that stays on the server",
     "A region is memory of the device under a name: weights, caches, "
     "results.\n"
     "'ropectl run' uses it with --from.INPUT=NAME and --into.OUTPUT=NAME.\n"
     "\n"
     "  list                all of them (what no verb means)\n"
     "  put NAME FILE       makes or replaces one: a safetensors file of one\n"
     "                      tensor; '-': standard input\n"
     "  zeros NAME --bytes=N\n"
     "  zeros NAME --dtype=BF16 --shape=4096,8,128\n"
     "                      makes or replaces one, and sends nothing\n"
     "  get NAME FILE       writes it: a safetensors file where it is a "
     "tensor,\n"
     "                      else its bytes; '-': standard output\n"
     "  delete NAME         forgets it\n"},
    {"status", command_status, "", "is it ready, on what, what has it done",
     "Prints health, device, lanes, memory and the calls of every operator.\n"
     "Exit status 1 where the server is not ready.\n"},
    {"cat", command_cat, "FILE.safetensors",
     "tensors of a file: names, shapes, first values",
     "Prints name, type, shape and first values of each tensor. '-' is\n"
     "standard input.\n"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char options_help[] =
    "options, anywhere on the line:\n"
    "  --server URL       default $ROPED_URL, or http://127.0.0.1:8000\n"
    "  --token-file FILE  holds the bearer token, where the server wants one\n"
    "  --timeout SECONDS  of one request, default 300\n"
    "exit status: 0 done, 1 failed, 2 wrong usage\n";

const struct command *command_find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void write_menu(FILE *out)
{
    fputs("usage: ropectl [options] COMMAND ...\n\n", out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s  %s\n", commands[i].name, commands[i].help);
    fputs("  help       a command: ropectl help COMMAND, or COMMAND --help\n\n",
          out);
    fputs(options_help, out);
}

static int unknown_command(const char *name)
{
    const char *nearest = "help";
    for (int i = 0; i < N_COMMANDS; i++)
        if (word_distance(name, commands[i].name) <
            word_distance(name, nearest))
            nearest = commands[i].name;
    fail_text("no command '%s'; the nearest is '%s', 'ropectl help' lists all",
              name, nearest);
    return EXIT_USAGE;
}

static int write_page(const char *name)
{
    const struct command *command = command_find(name);
    if (!command)
        return unknown_command(name);
    printf("usage: ropectl %s %s\n\n%s\n%s", command->name, command->arguments,
           command->page, options_help);
    return EXIT_SUCCESS;
}

/*
 * Value of an option at argv[*at], as "--name value" or "--name=value", or
 * NULL where it is another argument. *at moves to the last word it took.
 */
static const char *option_value(const char *name, int argc, char **argv,
                                int *at)
{
    size_t bytes = strlen(name);
    const char *argument = argv[*at];
    if (strncmp(argument, name, bytes) != 0)
        return NULL;
    if (argument[bytes] == '=')
        return argument + bytes + 1;
    if (argument[bytes] != '\0')
        return NULL;
    return *at + 1 < argc ? argv[++*at] : "";
}

static bool set_timeout(struct ropectl *ctl, const char *text)
{
    char *end;
    ctl->options.timeout_seconds = strtod(text, &end);
    return end != text && *end == '\0' && ctl->options.timeout_seconds > 0;
}

/* Takes common options out of argv. False after saying what is wrong. */
static bool take_options(struct ropectl *ctl, int *argc, char **argv)
{
    int n = 1;
    for (int at = 1; at < *argc; at++) {
        char *argument = argv[at];
        const char *server = option_value("--server", *argc, argv, &at);
        const char *token =
            server ? NULL : option_value("--token-file", *argc, argv, &at);
        const char *timeout = server || token
                                  ? NULL
                                  : option_value("--timeout", *argc, argv, &at);
        if (server)
            ctl->options.url = server;
        if (token)
            ctl->options.token_file = token;
        const char *value = server ? server : token ? token : timeout;
        if ((value && !value[0]) || (timeout && !set_timeout(ctl, timeout))) {
            fail_text("option '%s': '%s', expected %s", argument, value,
                      timeout ? "seconds above 0" : "a value");
            return false;
        }
        if (!value)
            argv[n++] = argument;
    }
    *argc = n;
    return true;
}

static bool is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

int main(int argc, char **argv)
{
    struct ropectl ctl = {.options = {.url = NULL}};
    if (!take_options(&ctl, &argc, argv))
        return EXIT_USAGE;
    if (argc < 2) {
        write_menu(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("ropectl " ROPED_VERSION);
        return EXIT_SUCCESS;
    }
    if (is_help(argv[1]) || strcmp(argv[1], "help") == 0) {
        if (argc > 2)
            return write_page(argv[2]);
        write_menu(stdout);
        return EXIT_SUCCESS;
    }
    const struct command *command = command_find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    for (int i = 2; i < argc; i++)
        if (is_help(argv[i]))
            return write_page(argv[1]);
    return command->run(&ctl, argc - 1, argv + 1);
}
