/*
 * compare_rows.h - the inner loops of compare on a block of float32.
 */
#ifndef ROPED_CPU_COMPARE_ROWS_H
#define ROPED_CPU_COMPARE_ROWS_H

#include "cpu/rows.h"
#include "ops/compare.h"

struct cpu_compare_rows {
    /* Adds what n elements, the first of which is element at of all, say to
     * part: all but steps. */
    void (*differences)(const float *a, const float *b, int64_t n, int64_t at,
                        const struct compare_plan *plan,
                        struct compare_part *part);
    /* The largest distance of elements as numbers of their type, F32 or of 16
     * bits whose infinity has these; or least. */
    uint32_t (*steps_32)(const void *a, const void *b, int64_t n,
                         uint32_t least);
    uint32_t (*steps_16)(const void *a, const void *b, int64_t n, int32_t inf,
                         uint32_t least);
};

#endif
