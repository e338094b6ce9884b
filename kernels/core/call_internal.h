/*
 * call_internal.h - what the files that make up a call share.
 */
#ifndef ROPED_CORE_CALL_INTERNAL_H
#define ROPED_CORE_CALL_INTERNAL_H

#include <roped/op.h>

#include <string.h>

/* Element i of an I32 or I64 tensor: those of a body start at any byte. */
static inline int64_t call_index_at(const struct roped_tensor *tensor,
                                    int64_t i)
{
    int32_t narrow;
    int64_t wide;
    if (tensor->dtype == ROPED_I64) {
        memcpy(&wide, (const char *)tensor->data + 8 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)tensor->data + 4 * i, sizeof narrow);
    return narrow;
}

/*
 * The one type of the ports first .. last, those that are given: what a plan
 * writes down for a kernel that reads all of them by one switch. A plan asks
 * here and not a tensor, because a tensor answers for itself alone: where the
 * descriptor lets two such ports differ, this is ROPED_INTERNAL and no kernel
 * runs. *dtype is ROPED_NO_DTYPE where none of them is given.
 */
ROPED_MUST_CHECK enum roped_status call_type_of(const struct roped_call *call,
                                                int first, int last,
                                                int32_t *dtype,
                                                struct roped_error *err);

/* Does plan compute with the values of index tensors, and not only check them?
 */
bool call_needs_values(const struct roped_call *call);

/* Is this dim symbol in a list of them, op->tokens or op->widths? */
bool op_lists(const char *list, const char *symbol);

/* Index of a type variable, or -1. */
int op_type(const struct roped_op *op, const char *name);

/* ----------------------------------------------------------------- shape.c */

/* Does a shape of this rank fit the pattern? */
bool shape_fits(const struct roped_shape_pattern *pattern, int rank);

/* The first given input with the alternatives of this port, which has
 * conditions: they have the same one. -1: there is none. */
int shape_leader(const struct roped_call *call, const struct roped_port *port);

/* Does what stands in brackets before an alternative hold in the call? */
bool shape_guard_holds(const struct roped_call *call, const char *text);

/* ----------------------------------------------------------------- given.c */

/* Holds the inputs and parameters that are given to the descriptor's
 * statements: before shapes are looked at only that what a form asks for,
 * whatever else is given, is there. */
ROPED_MUST_CHECK enum roped_status
given_check_form(const struct roped_call *call, struct roped_error *err);
ROPED_MUST_CHECK enum roped_status given_check(const struct roped_call *call,
                                               struct roped_error *err);

/* ---------------------------------------------------------------- values.c */

/* Holds the values of index inputs to what their ports say, and fills
 * call->held. Host values only. */
ROPED_MUST_CHECK enum roped_status values_check(struct roped_call *call,
                                                struct roped_error *err);

/* ------------------------------------------------------------------ dims.c */

/* The size of a dim that is no pack, in a call whose symbols are bound. */
struct roped_dim_size dims_size(const struct roped_call *call,
                                const struct roped_dim_pattern *dim);

/* What bound a symbol, or ""; */
const char *dims_setter(const struct roped_call *call, const char *symbol);

/* Dims whose sizes are parameters; true: there are packs, for
 * dims_bind_params. */
bool dims_state(struct roped_call *call);

/* Binds the dims of a given input, or holds it to those that are bound. */
ROPED_MUST_CHECK enum roped_status dims_bind(struct roped_call *call, int input,
                                             struct roped_error *err);

/* Shapes stated by parameters: each binds a pack as an input would. */
ROPED_MUST_CHECK enum roped_status dims_bind_params(struct roped_call *call,
                                                    struct roped_error *err);

/* Gives an output that is made its shape; its type is set. */
ROPED_MUST_CHECK enum roped_status
dims_infer(struct roped_call *call, int output, struct roped_error *err);

/* A stride does not let tokens overlap, nor their addresses overflow. */
ROPED_MUST_CHECK enum roped_status
dims_check_stride(const struct roped_port *port,
                  const struct roped_tensor *tensor, struct roped_error *err);

/* ----------------------------------------------------------------- param.c */

/* The type that the index-th choice of a DTYPE parameter names, or of a choice
 * parameter that chooses a type variable; ROPED_NO_DTYPE: none. */
enum roped_dtype param_dtype(const struct roped_param *param, int index);

/* Index of a choice, or -1. */
int param_choice(const struct roped_param *param, const char *value);

/* Is this text of a condition a value of the parameter: a choice, "true", or an
 * integer? */
bool param_takes(const struct roped_param *param, const char *value);
enum roped_dtype type_of_choice(const struct roped_type *type, int index);

/* Writes every parameter's default into call->params. */
void call_default_params(struct roped_call *call);

#endif
