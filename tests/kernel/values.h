/*
 * values.h - the values that a sweep gives to the tensors of a call, beyond
 * those that chance would: what each operator must get right at the edges of
 * its types.
 */
#ifndef ROPED_TESTS_VALUES_H
#define ROPED_TESTS_VALUES_H

#include "kernel/random.h"

enum values {
    VALUES_NORMAL,
    VALUES_SMALL,      /* a thousandth of that */
    VALUES_LARGE,      /* sixty times that: tails of activations */
    VALUES_BEYOND,     /* 40,000 times: FP8 saturates, F16 is infinite */
    VALUES_AWAY,       /* from 0: divisors */
    VALUES_POSITIVE,   /* sums without cancellation */
    VALUES_LISTED,     /* zeros, halves of codes, powers of two */
    VALUES_SPREAD,     /* over all exponents of the type */
    VALUES_EXTREME,    /* one magnitude whose square leaves the type */
    VALUES_FAR,        /* rows whose mean is far above their deviation */
    VALUES_EQUAL,      /* rows of one value */
    VALUES_NON_FINITE, /* some are NaN, with bits of its own, or infinite */
    VALUES_KINDS
};
#define VALUES(kind) (1u << VALUES_##kind)

/* Sets element i of a float tensor. */
void values_set(const struct roped_tensor *tensor, int64_t i, double value);

void values_fill(struct random_source *source,
                 const struct roped_tensor *tensor, enum values kind);

/* "NORMAL" and so on, for the report of a failure. */
const char *values_name(enum values kind);

#endif
