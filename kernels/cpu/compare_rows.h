/*
 * compare_rows.h - the inner loops of compare on a block of elements, at most
 * CPU_BLOCK, behind which are zeros up to a multiple of CPU_COMPARED.
 */
#ifndef ROPED_CPU_COMPARE_ROWS_H
#define ROPED_CPU_COMPARE_ROWS_H

#include "cpu/rows.h"
#include "ops/compare.h"

enum { CPU_COMPARED = 128 };

struct cpu_compare_rows {
    /* Adds what n elements of a type, the first of which is element at of all,
     * say to part: all but steps. False, and part is as it was, unless all are
     * finite and their squares are numbers of float32. */
    bool (*finite)(enum roped_dtype dtype, const void *a, const void *b,
                   int64_t n, int64_t at, const struct compare_plan *plan,
                   struct compare_part *part);
    /* The same of any elements. */
    void (*differences)(const float *a, const float *b, int64_t n, int64_t at,
                        const struct compare_plan *plan,
                        struct compare_part *part);
    /* The largest distance of elements as numbers of 16 bits whose infinity has
     * these, and as numbers of float32. */
    uint32_t (*steps_16)(const void *a, const void *b, int64_t n, int16_t inf);
    uint32_t (*steps_32)(const void *a, const void *b, int64_t n);
};

#endif
