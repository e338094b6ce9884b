/*
 * quantize_rows.h - the inner loops of quantize and dequantize on a block of
 * float32; FP8 is made by convert of rows.h.
 */
#ifndef ROPED_CPU_QUANTIZE_ROWS_H
#define ROPED_CPU_QUANTIZE_ROWS_H

#include "cpu/rows.h"
#include "ops/codes.h"

/* Magnitudes have the order of their bits. Those beyond a bound do not count:
 * none, or NaN. */
enum { CPU_COUNTS_ALL = 0x7FFFFFFF, CPU_COUNTS_NUMBERS = 0x7F800000 };

/* What values are multiplied by, and then divided by. */
struct cpu_quotient {
    float factor, divisor;
};

struct cpu_quantize_rows {
    /* The bits of the largest magnitude up to a bound, or of least. */
    int32_t (*largest)(const float *x, int64_t n, int32_t bound, int32_t least);
    /* x[i] * factor / divisor, each correctly rounded. */
    void (*divide)(float *x, int64_t n, struct cpu_quotient by);
    /* To nearest even, from least to 127; NaN is 0. */
    void (*to_i8)(int8_t *to, const float *x, int64_t n, float least);
    /* To nearest even, at most 6; two a byte, n is even. */
    void (*to_e2m1)(uint8_t *to, const float *x, int64_t n);
    /* The values of n codes; of e2m1 n is even. */
    void (*expand)(enum code_element element, float *to, const void *from,
                   int64_t n);
    /* x[i] *= scale[i / tile] */
    void (*multiply)(float *x, int64_t n, int64_t tile, const float *scale);
};

#endif
