/*
 * random_call.h - calls made from the operator table alone. Nothing here knows
 * what an operator computes, or which there are.
 *
 * A call begins as chance has it: every type variable a type of its own, every
 * symbol a size of its own (0 and 1 too), optional inputs there or not,
 * parameters at the edges of their ranges. Few such calls are ones that an
 * operator takes. The others are mended as a person mends them: by what the
 * refusal says was expected. So a refusal that does not say how to go on shows
 * as an operator whose calls are hardly ever accepted.
 */
#ifndef ROPED_TESTS_CALLS_RANDOM_CALL_H
#define ROPED_TESTS_CALLS_RANDOM_CALL_H

#include "kernel/random.h"

#include <roped/op.h>

#include <stdbool.h>

enum {
    RANDOM_CALL_TEXT = 96,
    RANDOM_CALL_BYTES = 1 << 18,
    RANDOM_CALL_WIDE_BYTES = 1 << 22,
    RANDOM_CALL_SHAPED_BYTES = 1 << 26
};

/* Which widths and heads a call has: of a few elements; those of models, for
 * which there are kernels of their own, and some beside them; or any as well.
 */
enum random_widths { RANDOM_FEW, RANDOM_OF_MODELS, RANDOM_ANY };

struct random_call {
    const struct roped_op *op;
    int64_t most_bytes; /* of its tensors */
    enum random_widths widths;
    int form; /* that was tried first; call.form is the one that holds */

    /* What is sent. Data is packed host memory, allocated to the byte;
     * dtype ROPED_NO_DTYPE: not given. */
    struct roped_tensor in[ROPED_MAX_INPUTS];
    bool has_param[ROPED_MAX_PARAMS];
    char param[ROPED_MAX_PARAMS][RANDOM_CALL_TEXT];

    /* What the library says of it: call is resolved, and planned, where status
     * is ROPED_OK. */
    enum roped_status status;
    struct roped_error err;
    struct roped_call call;
    int n_mended;
};

/* Makes a call; most of them are mended until they are accepted. Free it. */
void random_call_make(struct random_call *made, const struct roped_op *op,
                      struct random_source *source);

/* Makes one that is accepted, of more than few elements up to
 * RANDOM_CALL_WIDE_BYTES. Free it. */
void random_call_make_sound(struct random_call *made, const struct roped_op *op,
                            enum random_widths widths,
                            struct random_source *source);

/* Makes one whose types, sizes and parameters are those that shapes says, of up
 * to RANDOM_CALL_SHAPED_BYTES. They are ones that the operator takes. Free it.
 */
typedef void random_shapes_fn(struct random_call *made,
                              struct random_source *source);
void random_call_make_shaped(struct random_call *made,
                             const struct roped_op *op,
                             random_shapes_fn *shapes,
                             struct random_source *source);

/* Changes one thing: a type, a size, a value, a parameter, which inputs are
 * there. It may still be a call that the operator takes. */
void random_call_spoil(struct random_call *made, struct random_source *source);

/* The same call with the index tensors of one type variable in their other
 * type; false where there is none, or a value does not fit. */
bool random_call_widen(struct random_call *made, struct random_source *source);

/* Asks the library about it: fills status, err and call. */
void random_call_judge(struct random_call *made);

/* In words, for the report of a failure: a query and the tensors' shapes. */
const char *random_call_text(const struct random_call *made, char *text,
                             size_t bytes);

void random_call_free(struct random_call *made);

/* Of the table of angles that the call may use, or must; 0: it uses none. */
static inline int64_t random_call_table_bytes(const struct roped_call *call)
{
    const struct roped_table_use *use = &call->table;
    return use->rows * use->angles.n_pairs * 8;
}

/* Is this output what becomes of an updated input, such as a cache? */
bool random_call_updates(const struct roped_op *op, int output);

/* How often each operator's calls were accepted. */
struct random_call_counts {
    int64_t made[ROPED_OP_COUNT], accepted[ROPED_OP_COUNT];
};

void random_call_count(struct random_call_counts *counts,
                       const struct roped_op *op, bool is_accepted);

/* Prints a line for each operator; false, with a line, where fewer than one
 * call in five was accepted. */
bool random_call_report(const struct random_call_counts *counts);

/* For random_call.c and mend.c. */
void random_call_dims(struct random_call *made, int input,
                      struct random_source *source);
void random_call_param(struct random_call *made, int param,
                       struct random_source *source);
void random_call_give(struct random_call *made, int input,
                      struct random_source *source);
void random_call_drop(struct random_call *made, int input);
int64_t random_call_value(const struct roped_tensor *tensor, int64_t at);
void random_call_set(const struct roped_tensor *tensor, int64_t at,
                     int64_t value);

/* Changes the call by what made->err says; false: there is nothing to do. */
bool random_call_mend(struct random_call *made, struct random_source *source);

#endif
