/*
 * quantize_rows.h - the inner loops of quantize and dequantize on a block of
 * float32; FP8 is made by convert of rows.h.
 */
#ifndef ROPED_CPU_QUANTIZE_ROWS_H
#define ROPED_CPU_QUANTIZE_ROWS_H

#include "cpu/rows.h"
#include "ops/codes.h"

struct cpu_quantize_rows {
    /* The bits of the largest magnitude, or of least; NaN does not count. */
    int32_t (*largest)(const float *x, int64_t n, int32_t least);
    /* x[i] /= divisor, correctly rounded. */
    void (*divide)(float *x, int64_t n, float divisor);
    /* To nearest even, from least to 127; NaN is 0. */
    void (*to_i8)(int8_t *to, const float *x, int64_t n, float least);
    /* The values of n codes. */
    void (*expand)(enum code_format format, float *to, const void *from,
                   int64_t n);
    /* x[i] *= scale[i / tile] */
    void (*multiply)(float *x, int64_t n, int64_t tile, const float *scale);
};

#endif
