/*
 * norm_sum.h - sums of rows before their norm on the CPU, where they are more
 * than x + residual of one type: with scales, an addend, a residual of F32.
 */
#ifndef ROPED_CPU_NORM_SUM_H
#define ROPED_CPU_NORM_SUM_H

#include "cpu/rows.h"
#include "ops/rmsnorm.h"

/* How rows are added up; ops/rmsnorm.h. */
struct cpu_norm_sum {
    const struct cpu_rows *rows;
    const struct rmsnorm_plan *plan;
    enum roped_dtype dtype;          /* of x and addend */
    enum roped_dtype residual_dtype; /* of the sum too: dtype or F32 */
    enum roped_dtype kept_dtype;     /* dtype or F32 */
};

/* A row. */
struct cpu_norm_terms {
    const void *x, *residual;
    const void *addend; /* or NULL */
    void *sum;          /* may be x or residual */
    void *kept;         /* (optional) what is normalised, where it is not sum */
};

void cpu_norm_sum_row(const struct cpu_norm_sum *how,
                      const struct cpu_norm_terms *row);

#endif
