/*
 * compare.h - how far a tensor is from another of its type and shape, by the
 * tolerances that README.md promises of operators.
 */
#ifndef ROPED_CLIENT_COMPARE_H
#define ROPED_CLIENT_COMPARE_H

#include <roped/tensor.h>

#include <stdbool.h>

struct comparison {
    int64_t n, n_differing; /* elements; those whose bits differ */
    /* of the element that is farthest off, measured by its tolerance */
    int64_t worst; /* -1: no element differs */
    double difference, tolerance, got, expected;
    bool is_within;
};

/*
 * Compares two results of one operator, each of which may be off by the
 * tolerance: what differs by twice that is within.
 *     F32          1e-6 of the row's largest magnitude
 *     F16, BF16    one unit in the last place, and that
 *     FP8, U8      the next code, for one code in 1,000, and one more
 * all others must be the same. magnitudes (or NULL) has the sum of the terms'
 * magnitudes of each element: that is then measured by, not the row.
 */
struct comparison compare_tensors(const struct roped_tensor *got,
                                  const struct roped_tensor *expected,
                                  const struct roped_tensor *magnitudes);

#endif
