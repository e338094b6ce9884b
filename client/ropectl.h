/*
 * ropectl.h - what the commands of ropectl share.
 */
#ifndef ROPED_CLIENT_ROPECTL_H
#define ROPED_CLIENT_ROPECTL_H

#include "roped_client.h"

enum { EXIT_USAGE = 2 };

/* Options that every command takes. */
struct ropectl {
    struct roped_client_options options;
};

/* argv[0] is the command's own name. Returns the exit code. */
typedef int command_fn(const struct ropectl *ctl, int argc, char **argv);

command_fn command_ops, command_describe, command_run, command_bench,
    command_tables, command_regions, command_status, command_cat;

/* A command: its line in the menu, and the page of its --help. */
struct command {
    const char *name;
    command_fn *run;
    const char *arguments, *help, *page;
};

/* The command of this name, or NULL. */
const struct command *command_find(const char *name);

/* Prints "ropectl: ..." and returns 1. */
int fail(const struct roped_error *err);
int fail_text(const char *format, ...) ROPED_PRINTF(1, 2);

/* Prints what is wrong with the arguments, then the usage of a command.
 * Returns EXIT_USAGE. */
int usage(const char *command, const char *format, ...) ROPED_PRINTF(2, 3);

/* The operator of this name, or NULL after saying which is nearest. */
const struct roped_op *find_op(const char *name);

/*
 * How unlike two words are: letters to change, add or leave out. Words over
 * 63 letters count as 64 apart.
 */
int word_distance(const char *a, const char *b);

/* Reads a whole file ("-": standard input); NULL after saying why not. */
unsigned char *read_input(const char *path, size_t *bytes);

/* Writes a whole file ("-": standard output); false after saying why not. */
bool write_output(const char *path, const void *data, size_t bytes);

/* Opens a client with these options; NULL after saying why not. */
struct roped_client *connect_to(const struct ropectl *ctl);

/* One request whose answer is printed as it comes. Returns the exit code. */
int print_answer(const struct ropectl *ctl, const char *method,
                 const char *path, const void *body, size_t bytes);

/* PUT of a file ("-": standard input); prints the answer. Exit code. */
int put_file(const struct ropectl *ctl, const char *path, const char *file);

#endif
