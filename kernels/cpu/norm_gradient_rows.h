/*
 * norm_gradient_rows.h - the inner loops of gradients of norms, over blocks of
 * float32 whose length is a multiple of CPU_LANES.
 */
#ifndef ROPED_CPU_NORM_GRADIENT_ROWS_H
#define ROPED_CPU_NORM_GRADIENT_ROWS_H

#include "cpu/rows.h"

struct cpu_norm_gradient_rows {
    /* The sum of a[i] * b[i], in an order that n alone says. */
    double (*dot)(const float *a, const float *b, int64_t n);
    /* The sum of a[i], likewise. */
    double (*sum)(const float *a, int64_t n);
    /* a[i] = (a[i] - high - low) * s */
    void (*centre)(float *a, float high, float low, float s, int64_t n);
    /* a[i] *= b[i] */
    void (*multiply)(float *a, const float *b, int64_t n);
    /* a[i] = s * (a[i] - shift - k * b[i]) + c[i]; c may be NULL: zeros */
    void (*descend)(float *a, const float *b, const float *c, float s,
                    float shift, float k, int64_t n);
    /* sum[i] += a[i] * b[i] */
    void (*add_products)(double *sum, const float *a, const float *b,
                         int64_t n);
    /* sum[i] += a[i] */
    void (*add)(double *sum, const float *a, int64_t n);
};

#endif
