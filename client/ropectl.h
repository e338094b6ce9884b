/*
 * ropectl.h - what the commands of ropectl share.
 */
#ifndef ROPED_CLIENT_ROPECTL_H
#define ROPED_CLIENT_ROPECTL_H

#include "roped_client.h"

enum { EXIT_USAGE = 2 };

/* Options before the command. */
struct ropectl {
    struct roped_client_options options;
};

/* argv[0] is the command's own name. Returns the exit code. */
typedef int command_fn(const struct ropectl *ctl, int argc, char **argv);

command_fn command_ops, command_describe, command_run, command_bench,
    command_tables, command_status, command_cat;

/* Prints "ropectl: ..." and returns 1. */
int fail(const struct roped_error *err);

/* Prints a usage line and returns EXIT_USAGE. */
int usage(const char *text);

/* The operator of this name, or NULL after saying which is nearest. */
const struct roped_op *find_op(const char *name);

/* Reads a whole file ("-": standard input); NULL after saying why not. */
unsigned char *read_input(const char *path, size_t *bytes);

/* Opens a client with these options; NULL after saying why not. */
struct roped_client *connect_to(const struct ropectl *ctl);

#endif
