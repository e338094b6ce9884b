/*
 * compare.h - ports, parameters and plan of compare: how far a is from b, in a
 * few numbers.
 *
 * Elements are compared as float32, d = |a - b|, 0 where both are NaN or the
 * same Inf. A NaN in one alone is counted apart, and takes part in nothing else
 * but index.
 *     beyond    d > atol + rtol |b|, or d is Inf
 *     relative  d / |b|; Inf where only d is not 0
 *     steps     both rounded to the coarser type: how many numbers of it one is
 *               after the other; Inf is the one after the largest
 *     cosine    of the elements that are finite in both; 1 of two zero vectors,
 *               0 of one
 */
#ifndef ROPED_OPS_COMPARE_H
#define ROPED_OPS_COMPARE_H

#include <roped/op.h>

enum { COMPARE_A, COMPARE_B };
enum { COMPARE_INDEX, COMPARE_COUNTS, COMPARE_STATS };

struct compare_params {
    double atol, rtol;
};

struct compare_plan {
    int64_t n, width; /* elements; of a row */
    float atol, rtol;
    int32_t coarser; /* enum roped_dtype */
    int32_t reserved;
};

/* What some elements add to the result. Parts of neighbours are merged in their
 * order, which follows from n alone. */
struct compare_part {
    double dot, aa, bb;
    int64_t nan_at; /* the first NaN in one alone, or -1 */
    int64_t at;     /* the first with the largest d, or -1: none differs */
    int64_t beyond, nan_alone;
    uint32_t steps;
    float largest, relative;
};

#endif
