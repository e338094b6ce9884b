/*
 * compare_rows.h - the inner loops of compare on a block of float32, behind
 * which are zeros up to a multiple of CPU_LANES.
 */
#ifndef ROPED_CPU_COMPARE_ROWS_H
#define ROPED_CPU_COMPARE_ROWS_H

#include "cpu/rows.h"
#include "ops/compare.h"

struct cpu_compare_rows {
    /* Adds what n elements, the first of which is element at of all, say to
     * part: all but steps. Returns the largest distance of elements as numbers
     * of float32. */
    uint32_t (*differences)(const float *a, const float *b, int64_t n,
                            int64_t at, const struct compare_plan *plan,
                            struct compare_part *part);
    /* The largest distance of elements as numbers of 16 bits whose infinity has
     * these. */
    uint32_t (*steps_16)(const uint16_t *a, const uint16_t *b, int64_t n,
                         int32_t inf);
};

#endif
