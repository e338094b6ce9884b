/*
 * ropectl.h - what the commands of ropectl share.
 */
#ifndef ROPED_CLIENT_ROPECTL_H
#define ROPED_CLIENT_ROPECTL_H

#include "roped_client.h"

#include <roped/nearest.h>

#include <cjson/cJSON.h>
#include <stdio.h>

/* What ropectl ends with, on which scripts rely: code, meaning. */
#define ROPECTL_EXITS(X)                                                       \
    X(DONE, 0, "done")                                                         \
    X(FAILED, 1,                                                               \
      "failed on this side: a file, tensors that do not fit, ...;\n"           \
      "     status: the server is not ready")                                  \
    X(USAGE, 2, "wrong usage")                                                 \
    X(REFUSED, 3, "the server refused the request (HTTP 4xx, 501)")            \
    X(UNREACHABLE, 4, "no answer: no connection, or it broke")                 \
    X(SERVER, 5, "the server is busy or failed (other HTTP 5xx)")              \
    X(TIMEOUT, 6, "no answer within --timeout")                                \
    X(DIFFERS, 7, "verify: the results differ by more than the tolerance")

enum ropectl_exit {
#define X(id, code, meaning) EXIT_##id = code,
    ROPECTL_EXITS(X)
#undef X
};

/* Options that every command takes. */
struct ropectl {
    struct roped_client_options options;
    bool is_json; /* --output json */
};

/* argv[0] is the command's own name. Returns the exit code. */
typedef int command_fn(const struct ropectl *ctl, int argc, char **argv);

command_fn command_ops, command_describe, command_model, command_sample,
    command_run, command_verify, command_bench, command_tables, command_regions,
    command_program, command_status, command_top, command_cat, command_token;

/* A command: its line in the menu, and the page of its --help. */
struct command {
    const char *name;
    command_fn *run;
    const char *arguments, *help, *page;
};

/* This one runs from now on. */
void command_is(const struct command *command);

/* ----------------------------------------------------------------- failing */

/* Prints "ropectl: ...", one line, and returns 1. */
int fail(const struct roped_error *err);
int fail_text(const char *format, ...) ROPED_PRINTF(1, 2);

/* Prints what is wrong with the arguments, then the usage of a command, where
 * it is not NULL. Returns EXIT_USAGE. */
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

/* An option of a command; a row without a name ends the table. */
struct option_row {
    const char *name;
    bool (*set)(void *target, const char *text);
    const char *expected;
};

/* Takes those of every command out of argv. EXIT_SUCCESS, or EXIT_USAGE after
 * saying what is wrong. */
int take_common(struct ropectl *ctl, int *argc, char **argv);

/*
 * Reads "--name=value" or "--name value" at argv[*at], and moves *at to the
 * last word that it took. False where argv[*at] does not start with "--".
 */
bool read_option(int argc, char **argv, int *at, struct option *out);

/* Sets the option in target. EXIT_SUCCESS, EXIT_USAGE after saying what is
 * wrong, or -1 where no row has its name. */
int take_option(const char *command, const struct option_row *rows,
                const struct option *option, void *target);

/* Every word of argv is an option of rows, or its value. EXIT_SUCCESS, or
 * EXIT_USAGE after saying what is wrong. */
int take_options(const char *command, const struct option_row *rows, int argc,
                 char **argv, void *target);

/* Says so, and which is near. EXIT_USAGE. */
int unknown_option(const char *command, const struct option_row *rows,
                   const char *name);

/* A number above 0, and at most most. */
bool read_number(const char *text, double most, double *out);

/* Appends "name=value" to a query string, percent-encoded. *query starts as
 * NULL and is to be freed. */
void query_add(char **query, const char *name, const char *value);

/* "/v1/tables/" and a name, percent-encoded, to be freed; NULL after saying
 * that this cannot be a name. */
char *path_to(const char *folder, const char *name);

/*
 * Adds a parameter of a call to query: one of op's, which is checked by setting
 * it in call, or one that every operator takes. EXIT_SUCCESS, or EXIT_USAGE
 * after saying what is wrong, and which parameter or option of rows is near.
 */
int add_parameter(const char *command, const struct option_row *rows,
                  struct roped_call *call, const struct option *option,
                  char **query);

/* ------------------------------------------------------------------- verbs */

/*
 * path is that of the first word, a name, in the command's folder, or NULL;
 * argv[0] is that word. Returns the exit code.
 */
typedef int verb_fn(const struct ropectl *ctl, const char *path, int argc,
                    char **argv);

/* A verb of a command; a row without a name ends the table. The first one is
 * what no verb means, if it needs no words. */
struct verb {
    const char *name, *needs; /* "NAME FILE": the words that must stand there */
    bool takes_more;          /* behind them */
    verb_fn *run;
};

/* Runs the verb that argv[1] names; folder is "/v1/tables/" or the like, or
 * NULL. Exit code, after saying what is wrong. */
int run_verb(const struct ropectl *ctl, const char *command, const char *folder,
             const struct verb *verbs, int argc, char **argv);

/* One request without a body, whose answer is printed: verbs of several
 * commands. */
verb_fn verb_get, verb_delete;

/* ------------------------------------------------------ files and requests */

/* Reads a whole file ("-": standard input); NULL after saying why not. */
unsigned char *read_input(const char *path, size_t *bytes);

/* Can there be a file of this name ("-": standard output)? False after saying
 * why not. Nothing is written: this is asked before a call. */
bool can_write_file(const char *path);

/* Writes a file ("-": standard output) from a head, which may be empty, and
 * data; false after saying why not. */
bool write_output(const char *path, const char *head, size_t head_bytes,
                  const void *data, size_t bytes);

/* Opens a client with these options; NULL after saying why not. */
struct roped_client *connect_to(const struct ropectl *ctl);

/* Says why a client's request failed. Returns the exit code for it. */
int failed_request(const struct roped_client *client,
                   const struct roped_error *err);

struct request {
    const char *method, *path;
    const void *body;
    size_t bytes;
};

/* One request. *answer, to be freed, holds *answer_bytes and a NUL. Exit
 * code, after saying what is wrong. */
int ask(const struct ropectl *ctl, const struct request *request, void **answer,
        size_t *answer_bytes);

/* A server's text as a document, a JSON object; NULL after saying that it is
 * none. */
cJSON *read_document(const struct ropectl *ctl, const void *answer,
                     size_t bytes);

/* Before the first document. */
void json_start(void);

/* One request whose answer, a JSON object, is printed. Exit code. */
int print_answer(const struct ropectl *ctl, const struct request *request);

/* ------------------------------------------------------------------- output */

/*
 * Text as a terminal may show it (printable.h). Nothing that is no constant of
 * ropectl's goes to standard output or standard error on another way:
 * tests/lint.sh says which files write there.
 */
void write_text(FILE *out, const char *text);

/* The same, to be freed; NULL where the text is printable already. */
char *made_printable(const char *text);

/* Prints a document, a JSON object, as --output says, and frees it. Nothing
 * else of a command goes to standard output. Exit code. */
int print_document(const struct ropectl *ctl, cJSON *document);
void write_document(const struct ropectl *ctl, FILE *out, cJSON *document);

/* The document as a table, with names in bold. Its texts are printable
 * afterwards. */
void write_tables(FILE *out, cJSON *document, bool is_bold);

/* A terminal that understands escape codes. */
bool is_terminal(FILE *out);

/* A new object at the end of an array of objects. */
cJSON *add_row(cJSON *array);

/* One request again and again, on several connections. */
struct bench_load {
    const char *kind, *name; /* what the report calls it: "program", "norms" */
    const char *op;          /* as roped_client_call has it */
    const char *query;       /* or NULL */
    const void *body;
    size_t bytes;
    double seconds;
    int n_connections;
};

/* Prints latency, rate and phases; the exit code. And two options of it, whose
 * target it is: --seconds and --connections. */
int bench_run(const struct ropectl *ctl, const struct bench_load *load);
bool bench_set_seconds(void *target, const char *text);
bool bench_set_connections(void *target, const char *text);

/* A member with an object of milliseconds: each phase of one of n_calls, and
 * wall. */
void add_timing(cJSON *object, const char *name,
                const struct roped_client_timing *timing, double n_calls);

#endif
