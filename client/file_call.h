/*
 * file_call.h - a call whose tensors are in files, as 'run' and 'verify' find
 * it on the command line: OP, files of inputs, files for outputs, parameters.
 */
#ifndef ROPED_CLIENT_FILE_CALL_H
#define ROPED_CLIENT_FILE_CALL_H

#include "ropectl.h"
#include "tensor_file.h"

/* An argument "PATH" or "NAME=PATH", NAME being a tensor of the operator. */
struct place {
    char name[ROPED_NAME_BYTES]; /* "": none */
    const char *path;
};

/* "--from.NAME REGION" */
struct region_use {
    char name[ROPED_NAME_BYTES];
    const char *region;
};

/* "--dtype.NAME TYPE" */
struct type_use {
    char name[ROPED_NAME_BYTES];
    const char *type;
    bool is_used; /* by a file */
};

struct file_call {
    const char *command; /* whose usage is printed */
    const struct roped_op *op;
    struct roped_call call; /* what is checked before anything is sent */
    const char *table;      /* --table, or NULL */
    bool has_bits;          /* --bf16 u16 */
    bool has_into;          /* --into.NAME */
    bool is_kept[ROPED_MAX_OUTPUTS]; /* by --into.NAME: does not come back */
    bool is_fp8_u8;                  /* --fp8 u8 */
    char *query;
    int n_inputs, n_outputs, n_regions, n_types;
    struct place input[ROPED_MAX_INPUTS], output[ROPED_MAX_OUTPUTS];
    struct region_use region[ROPED_MAX_INPUTS];
    struct type_use type[ROPED_MAX_INPUTS];
    struct tensor_file file[ROPED_MAX_INPUTS]; /* of each input */
};

/* Reads arguments and files, and checks what can be checked without the
 * server. Exit code, after saying what is wrong. file_call_close in any case.
 */
int file_call_read(struct file_call *call, int argc, char **argv);
void file_call_close(struct file_call *call);

/* Sends it. Exit code, after saying what is wrong. */
int file_call_send(const struct ropectl *ctl, const struct file_call *call,
                   struct roped_client_result *result);

/* Writes the outputs into their files; false after saying why not. */
bool file_call_write(const struct file_call *call,
                     const struct roped_client_result *result);

/* Does some output go to standard output? */
bool file_call_uses_stdout(const struct file_call *call);

#endif
