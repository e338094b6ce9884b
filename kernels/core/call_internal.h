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

/* Place of the first value of an index tensor that is not in [0, end), or -1;
 * then *largest is the largest value, -1 of none. */
int64_t call_find_outside(const struct roped_tensor *tensor, int64_t end,
                          int64_t *largest);

/* Is this dim symbol one of op->tokens? */
bool op_numbers_tokens(const struct roped_op *op, const char *symbol);

/* Writes every parameter's default into call->params. */
void call_default_params(struct roped_call *call);

#endif
