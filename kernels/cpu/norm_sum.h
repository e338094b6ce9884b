/*
 * norm_sum.h - sums of rows before their norm on the CPU, where they are more
 * than x + residual: x times x_scale, an addend beside it.
 */
#ifndef ROPED_CPU_NORM_SUM_H
#define ROPED_CPU_NORM_SUM_H

#include "cpu/rows.h"

/* How rows are added up; ops/rmsnorm.h. */
struct cpu_norm_sum {
    const struct cpu_rows *rows;
    enum roped_dtype dtype;
    int64_t width;
    float x_scale;
    bool is_rounded; /* every step, to dtype */
    bool is_residual_first;
};

/* A row, of dtype. */
struct cpu_norm_terms {
    const void *x, *residual;
    const void *addend; /* or NULL */
    void *sum;          /* may be x or residual */
    float *exact;       /* (optional) the sum before it is rounded into sum */
};

void cpu_norm_sum_row(const struct cpu_norm_sum *how,
                      const struct cpu_norm_terms *row);

#endif
