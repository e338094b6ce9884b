/*
 * rotary.h - what every rotary operator's rule and plan do alike: decide where
 * positions and angles come from, check them, resolve frequencies.
 */
#ifndef ROPED_OPS_ROTARY_H
#define ROPED_OPS_ROTARY_H

#include "ops/rope.h"

/* The geometry that an operator's rule and plan hand over. */
struct rotary_shape {
    int first_port; /* the operator's 'positions' port */
    int64_t n_tokens;
    int64_t tokens_per_sequence;
    int64_t head_dim;
    int64_t rotary_dim; /* given, or 0 */
    int64_t rotary_offset;
    int64_t offset;
    int32_t style; /* parameter style: rotary_plan knows the table's too */
    int32_t inverse;
};

/* Everything about angles and positions that needs no values. */
ROPED_MUST_CHECK enum roped_status rotary_rule(const struct roped_call *call,
                                               const struct rotary_shape *shape,
                                               struct roped_error *err);

extern const char rotary_rule_doc[];

/* Bytes of frequencies and axes that rotary_plan writes into call->aux. */
size_t rotary_aux_bytes(const struct roped_call *call,
                        const struct rotary_shape *shape);

/* Checks the values, fills *out, call->aux and call->table. */
ROPED_MUST_CHECK enum roped_status rotary_plan(struct roped_call *call,
                                               const struct rotary_shape *shape,
                                               struct rope_rotary *out,
                                               struct roped_error *err);

#endif
