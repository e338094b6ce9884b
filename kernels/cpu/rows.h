/*
 * rows.h - the inner loops of the CPU backend: contiguous elements in, the
 * same number out. One table of functions per instruction set.
 *
 * Narrow types are widened into a float32 scratch of at most CPU_BLOCK
 * elements, worked on, and rounded back: the scratch stays in the first-level
 * cache, so memory sees one read and one write.
 */
#ifndef ROPED_CPU_ROWS_H
#define ROPED_CPU_ROWS_H

#include <roped/angles.h>
#include <roped/dtype.h>

#include <stdint.h>

enum { CPU_BLOCK = 2048 };

struct cpu_rows {
    const char *name; /* "AVX-512" */

    /* to[i] = value of from[i]; F32, F16, BF16 */
    void (*widen)(enum roped_dtype dtype, float *to, const void *from,
                  int64_t n);

    /* to[i] = from[i] rounded to nearest even; F32, F16, BF16 and, saturated,
     * the FP8 types (roped/numeric.h) */
    void (*narrow)(enum roped_dtype dtype, void *to, const float *from,
                   int64_t n);

    /* x[i] *= scale */
    void (*scale)(float *x, float scale, int64_t n);

    /* (x[i], x[i + n]) and (x[2i], x[2i + 1]), rotated in place by c, s */
    void (*rotate_neox)(float *to, const float *from, const float *c,
                        const float *s, int64_t n_pairs);
    void (*rotate_gptj)(float *to, const float *from, const float *c,
                        const float *s, int64_t n_pairs);

    /*
     * cos and sin of position * frequency, times attention_factor (and
     * sin_sign), accurate to float32 for angles below 2^24. The product is
     * rounded to float32 first where precision is ROPED_ANGLE_F32.
     */
    void (*angles)(float *c, float *s, double position,
                   const struct roped_angles *angles, float sin_sign,
                   int64_t n_pairs);

    /* x[i] += y[i]; x[i] /= divisor, correctly rounded */
    void (*add)(float *x, const float *y, int64_t n);
    void (*divide)(float *x, float divisor, int64_t n);

    /* Largest |x[i]| that is not NaN, 0 where there is none. */
    float (*largest)(const float *x, int64_t n);

    /* Sum of squares in double, in an order that depends on n alone. */
    double (*sum_of_squares)(const float *x, int64_t n);

    /* y[i] = x[i] * s * (bias + w[i]); w NULL: 1 */
    void (*normalize)(float *y, const float *x, float s, const float *w,
                      float bias, int64_t n);
};

/* The best table for this processor; static memory. */
const struct cpu_rows *cpu_rows_select(void);

#endif
