/*
 * quantize_rows.h - the inner loops of quantize and dequantize on a block of
 * float32, at most CPU_BLOCK.
 */
#ifndef ROPED_CPU_QUANTIZE_ROWS_H
#define ROPED_CPU_QUANTIZE_ROWS_H

#include "cpu/rows.h"
#include "ops/codes.h"

/* What codes are made of values that were divided by those of their tiles. */
struct cpu_codes {
    enum code_element element;
    float factor; /* e2m1: what values are multiplied by first, and rounded */
    float least;  /* int8; the most is 127 */
    bool is_streamed;
};

/* What values are made of codes. */
struct cpu_expansion {
    enum code_element element;
    enum roped_dtype to;
    bool is_streamed;
};

struct cpu_quantize_rows {
    /* most[i / tile] becomes the bits of the largest magnitude, if that is
     * more: of numbers, or of all, where NaN is beyond Inf. tile: 16 or whole
     * CPU_LANES. */
    void (*largest)(const float *x, int64_t n, int64_t tile, bool counts_nan,
                    int32_t *most);
    /* The codes of x[i] * factor / divisor[i / tile], each step correctly
     * rounded, and these to nearest even and the nearest code; NaN as
     * kernels/README.md has it. Of e2m1 two a byte, n is even. */
    void (*encode)(const struct cpu_codes *how, void *to, const float *x,
                   int64_t n, int64_t tile, const float *divisor);
    /* The values of n codes times scale[i / tile], in F32, F16 or BF16; of
     * e2m1 n is even. */
    void (*expand)(const struct cpu_expansion *how, void *to, const void *from,
                   int64_t n, int64_t tile, const float *scale);
};

#endif
