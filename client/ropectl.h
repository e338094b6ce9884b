/*
 * ropectl.h - what the commands of ropectl share.
 */
#ifndef ROPED_CLIENT_ROPECTL_H
#define ROPED_CLIENT_ROPECTL_H

#include "roped_client.h"

#include <roped/nearest.h>

#include <cjson/cJSON.h>
#include <stdio.h>

enum { EXIT_USAGE = 2 };

/* Options that every command takes. */
struct ropectl {
    struct roped_client_options options;
    bool is_json; /* --output json */
};

/* argv[0] is the command's own name. Returns the exit code. */
typedef int command_fn(const struct ropectl *ctl, int argc, char **argv);

command_fn command_ops, command_describe, command_run, command_bench,
    command_tables, command_regions, command_status, command_cat, command_token;

/* A command: its line in the menu, and the page of its --help. */
struct command {
    const char *name;
    command_fn *run;
    const char *arguments, *help, *page;
};

/* The command of this name, or NULL. */
const struct command *command_find(const char *name);

/* ----------------------------------------------------------------- failing */

/* Prints "ropectl: ..." and returns 1. */
int fail(const struct roped_error *err);
int fail_text(const char *format, ...) ROPED_PRINTF(1, 2);

/* Prints what is wrong with the arguments, then the usage of a command.
 * Returns EXIT_USAGE. */
int usage(const char *command, const char *format, ...) ROPED_PRINTF(2, 3);

/* memory, where it is not NULL; else ends the program with a line. For small
 * things: tensors are said with their size. */
void *must_have(void *memory);

/* The operator of this name, or NULL after saying which is near: EXIT_USAGE. */
const struct roped_op *find_op(const char *name);

/* --------------------------------------------------------------- arguments */

struct option {
    char name[80];     /* without dashes */
    const char *value; /* NULL: there is none */
};

/*
 * Reads "--name=value" or "--name value" at argv[*at], and moves *at to the
 * last word that it took. False where argv[*at] does not start with "--".
 */
bool read_option(int argc, char **argv, int *at, struct option *out);

/* Appends "name=value" to a query string, percent-encoded. *query starts as
 * NULL and is to be freed. */
void query_add(char **query, const char *name, const char *value);

/* "/v1/tables/" and a name, percent-encoded; to be freed. */
char *path_to(const char *folder, const char *name);

/*
 * Adds a parameter of a call to query: one of op's, which is checked by setting
 * it in call, or one that every operator takes. EXIT_SUCCESS, or EXIT_USAGE
 * after saying what is wrong.
 */
int add_parameter(const char *command, struct roped_call *call,
                  const struct option *option, char **query);

/* ------------------------------------------------------ files and requests */

/* Reads a whole file ("-": standard input); NULL after saying why not. */
unsigned char *read_input(const char *path, size_t *bytes);

/* Writes a file ("-": standard output) from a head, which may be empty, and
 * data; false after saying why not. */
bool write_output(const char *path, const char *head, size_t head_bytes,
                  const void *data, size_t bytes);

/* Opens a client with these options; NULL after saying why not. */
struct roped_client *connect_to(const struct ropectl *ctl);

/* One request whose answer, JSON, is printed as it comes. Exit code. */
int print_answer(const struct ropectl *ctl, const char *method,
                 const char *path, const void *body, size_t bytes);

/* Prints a document and frees it. Returns the exit code. */
int print_json(FILE *out, cJSON *document);

/* "receive 0.012, queue ...": the phases of one of n_calls in milliseconds. */
void print_phases(FILE *out, const struct roped_client_timing *timing,
                  double n_calls, int digits);

/* The same as an object with a member for each phase, and wall. */
void add_timing_json(cJSON *object, const char *name,
                     const struct roped_client_timing *timing, double n_calls);

#endif
