/*
 * signature.h - what a request is held to: the names of the tensors that it
 * takes and returns, their types and shapes, and which it may leave out; an
 * operator's or a program's, which those who read and write requests need not
 * tell apart. And one request of it: what is bound to a call or to a run.
 */
#ifndef ROPED_WIRE_SIGNATURE_H
#define ROPED_WIRE_SIGNATURE_H

#include <roped/op.h>
#include <roped/program.h>

enum {
    SIGNATURE_INPUTS = ROPED_PROGRAM_INPUTS,
    SIGNATURE_OUTPUTS = ROPED_PROGRAM_OUTPUTS
};
_Static_assert((int)SIGNATURE_INPUTS >= (int)ROPED_MAX_INPUTS &&
                   (int)SIGNATURE_OUTPUTS >= (int)ROPED_MAX_OUTPUTS,
               "an operator has no more tensors than a program");

struct signature {
    const char *name;          /* "": a program that has none */
    const struct roped_op *op; /* NULL: a program */
    const struct roped_program *program;
    const struct roped_tensor *outputs; /* of a program, a dim of -1 may have
                                           any size (program_check.h); NULL:
                                           nothing is known of them */

    /* one request of it; NULL where it is only described */
    struct roped_call *call;
    struct roped_chain *chain;
    void **in_data, **out_data; /* chain: where its tensors are on the host */
};

static inline struct signature signature_of_op(const struct roped_op *op)
{
    return (struct signature){.name = op->name, .op = op};
}

static inline struct signature signature_of_call(struct roped_call *call)
{
    struct signature signature = signature_of_op(call->op);
    signature.call = call;
    return signature;
}

/* ------------------------------------------------------------- what it says */

int signature_count(const struct signature *signature, bool is_output);
const char *signature_tensor(const struct signature *signature, bool is_output,
                             int index);

/* Index of a tensor by name, or -1. */
int signature_find(const struct signature *signature, bool is_output,
                   const char *name);

bool signature_is_optional(const struct signature *signature, int input);

/* "q, k, v", shortened where there is no room for all; "none". Returns text. */
const char *signature_list(const struct signature *signature, bool is_output,
                           char *text, size_t bytes);

/* A tensor as metadata state it: one type and one shape of those that it may
 * have. */
struct signature_tensor {
    const char *name;
    uint32_t types;         /* that it may have */
    enum roped_dtype dtype; /* the widest, or a parameter's default */
    int rank;
    int64_t dims[ROPED_MAX_RANK]; /* -1: any */
    uint32_t packs;               /* bit i: dim i stands for any number */
    char shape[256];              /* all that it may have, in words */
    bool is_output, is_optional, is_strided;
};
void signature_describe(const struct signature *signature, bool is_output,
                        int index, struct signature_tensor *out);

/* The types of an input of a request; the first is what metadata state. */
uint32_t signature_types(const struct signature *signature, int input);
enum roped_dtype signature_stated_type(const struct roped_op *op,
                                       const struct roped_port *port);

/* -------------------------------------------------------------- one request */

/* An input as it was given, and whether it was. */
const struct roped_tensor *signature_input(const struct signature *signature,
                                           int input);
bool signature_has_input(const struct signature *signature, int input);

ROPED_MUST_CHECK enum roped_status
signature_bind(const struct signature *signature, const char *name,
               const struct roped_tensor *tensor, struct roped_error *err);

/* Where the values of an input are. */
void signature_set_data(const struct signature *signature, int input,
                        void *data);

/* A parameter, from text that outlives the request. */
ROPED_MUST_CHECK enum roped_status
signature_set_text(const struct signature *signature, const char *name,
                   const char *text, struct roped_error *err);

/* After resolve: an output, with its data; false: this request makes none. */
bool signature_output(const struct signature *signature, int output,
                      struct roped_tensor *out);

/* Where an output goes that is not in a region. Of a run, what is an input that
 * was updated is put there first, and updated in its place. */
void signature_place(const struct signature *signature, int output, void *data);

#endif
