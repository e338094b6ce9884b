/*
 * norm_gradient_rows.h - the inner loops of gradients of norms. A row is read
 * once from memory for two sums, and again, from the cache, to be written.
 */
#ifndef ROPED_CPU_NORM_GRADIENT_ROWS_H
#define ROPED_CPU_NORM_GRADIENT_ROWS_H

#include "cpu/rows.h"

/* A row, whose norm is (x - mean) * s. */
struct cpu_gradient_row {
    enum roped_dtype type;
    int64_t n;
    const void *grad_y, *x;
    const float *gain; /* with room for n rounded up to CPU_LANES */
    bool rounds;       /* grad_y * gain, and the norm in sums, to the type */
    float s;
    struct cpu_mean mean; /* 0 where the norm has none */

    /* what descend writes */
    void *grad_x;
    const void *residual; /* (optional) added to grad_x */
    float shift, k;
    double *gain_sum, *shift_sum; /* (optional) with room as gain has */
    bool is_streamed;
};

struct cpu_norm_gradient_rows {
    /* Sums of grad_y * gain, and of it times the norm. */
    void (*sums)(const struct cpu_gradient_row *row, double *sum, double *dot);

    /* grad_x = s * (grad_y * gain - shift - k * norm) + residual; adds
     * grad_y * norm to gain_sum and grad_y to shift_sum. */
    void (*descend)(const struct cpu_gradient_row *row);
};

#endif
