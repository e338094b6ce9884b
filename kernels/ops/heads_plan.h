/*
 * heads_plan.h - the plan of every rotary operator: where angles come from, and
 * the list of what is done to the heads of a token. A backend has one loop over
 * tokens and parts, whatever the operator.
 *
 * rope, for example, is two parts: q, which rotates on its way to the output
 * q, and k. rope_append has three: q, k, which rotates on its way to a cell of
 * a cache, and v, which goes to a cell as it is.
 */
#ifndef ROPED_OPS_HEADS_PLAN_H
#define ROPED_OPS_HEADS_PLAN_H

#include "ops/append.h"
#include "ops/rope.h"

enum { HEADS_PARTS = 5, HEADS_NO_PORT = -1 };

/*
 * Heads of every token that get the same treatment. Tensors are named by their
 * ports: planned calls are copied, and their inputs move.
 */
struct heads_part {
    int16_t from;       /* input */
    int16_t to;         /* output, or HEADS_NO_PORT: not returned */
    int16_t cache;      /* output whose cells take them, or HEADS_NO_PORT */
    int16_t weight;     /* input, gains of their norm, perhaps not given: 1; or
                           HEADS_NO_PORT: no norm */
    int32_t rotates;    /* bool; others stay as they are, or become FP8 */
    int32_t cell_dtype; /* enum roped_dtype: of the cache, U8 named */
    int64_t heads;
    int64_t width;      /* elements of a head */
    int64_t cell_first; /* of a head's cell: the first element that it takes */
    float scale;        /* into FP8: what is multiplied before rounding */
    int32_t reserved;
};

/* How heads of parts with a weight are normalised. */
struct heads_norm {
    float eps;
    float weight_bias;
    int32_t
        rounds_product;   /* bool: before the weight too, to the input's type */
    int32_t weight_dtype; /* enum roped_dtype; ROPED_NO_DTYPE: weights are 1 */
};

/* Parts that rotate come first, that of q and, where there is one, that of k.
 */
struct heads_plan {
    struct rope_rotary rotary;
    struct append_plan append; /* where parts have a cache */
    struct heads_norm norm;    /* where parts have a weight */
    int32_t first; /* of a head's elements: the first that rotates */
    int32_t n_parts;
    struct heads_part part[HEADS_PARTS];
};

#endif
