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
    const float *gain; /* with room for CPU_LANES behind n */
    bool rounds;       /* grad_y * gain, and the norm in sums, to the type */
    float s;
    bool is_centred;
    struct cpu_mean mean; /* where is_centred */

    /* what descend writes */
    void *grad_x;
    const void *residual; /* (optional) added to grad_x */
    float shift, k;
    float *gain_sum, *shift_sum;      /* (optional) with room as gain has */
    bool begins;                      /* these two: nothing is in them yet */
    double *gain_total, *shift_total; /* (optional) what add_widely adds to */
    bool is_streamed;
};

struct cpu_norm_gradient_rows {
    /* Sums of grad_y * gain, and of it times the norm. False: products of such
     * rows may be too large for sums of floats. */
    bool (*sums)(const struct cpu_gradient_row *row, double *sum, double *dot);

    /* grad_x = s * (grad_y * gain - shift - k * norm) + residual; adds
     * grad_y * norm to gain_sum and grad_y to shift_sum. */
    void (*descend)(const struct cpu_gradient_row *row);

    /* What descend adds to gain_sum and shift_sum, in doubles. */
    void (*add_widely)(const struct cpu_gradient_row *row);

    /* Adds n floats to doubles. */
    void (*fold)(double *to, const float *from, int64_t n);

    /* Sums of n columns, of n_parts rows of doubles that are a stride apart.
     * Both have room for n rounded up to CPU_LANES. */
    void (*total)(float *to, const double *from, int64_t stride,
                  int64_t n_parts, int64_t n);
};

#endif
