/*
 * rows.h - the inner loops of the CPU backend, one table of functions per
 * instruction set. Operators are made of these.
 *
 * A function reads elements of one type, works in float32 and writes elements
 * of another, in one pass: 'from' and 'to' are any pair of
 *
 *     F32 to F32, F16, BF16, F8_E4M3, F8_E5M2
 *     F16 to F16, F8_E4M3, F8_E5M2        BF16 to BF16, F8_E4M3, F8_E5M2
 *
 * with one rounding, to nearest even (roped/numeric.h); F32 is also what a row
 * is in between two functions, in a scratch of at most CPU_BLOCK elements that
 * stays in the first-level cache. An operator that needs a row twice reads it
 * twice: the second time it comes from the cache.
 *
 * Pointers are aligned to their elements. 'to' may be 'from' where the types
 * have one size. Bits depend on the values and the row's shape alone: not on
 * addresses, other rows or threads.
 *
 * is_streamed: write around the caches, for results too large to be found
 * there later. Rows that are not cut at multiples of 64 bytes are written as
 * usual. A loop that streamed ends with fence() on its thread.
 */
#ifndef ROPED_CPU_ROWS_H
#define ROPED_CPU_ROWS_H

#include "ops/rope.h"

#include <roped/angles.h>
#include <roped/dtype.h>

#include <stdbool.h>
#include <stdint.h>

enum {
    CPU_BLOCK = 2048,
    CPU_PAIRS = CPU_BLOCK / 2,
    CPU_ROWS = 64,
    CPU_WEIGHTS = 32,
    CPU_AHEAD = 8192, /* bytes: how far ahead memory is asked for */
    CPU_KEPT = 8192,  /* floats of a row that the first-level cache may hold */
    CPU_LANES = 32    /* divides a block's elements where one loop does all */
};

/* How a row goes from one type to another. */
struct cpu_conversion {
    enum roped_dtype from, to;
    float scale; /* into FP8: what is multiplied before rounding */
    bool is_streamed;
};

/* Pairs [first, first + n) of a head, and their cos and sin. */
struct cpu_pairs {
    int64_t first, n;
    float *c, *s;
};

/* Heads of a token, which rotate by the same angles; and of tokens like it. */
struct cpu_heads {
    enum roped_dtype from, to;
    enum rope_style style; /* which elements pair */
    bool is_streamed;
    float scale; /* into FP8: what is multiplied before rounding */
    int64_t n_heads;
    int64_t width;                /* elements of a head */
    int64_t from_pitch, to_pitch; /* elements from one head to the next */
    int64_t first;                /* first rotated element of a head */
    int64_t n_pairs; /* 2 * n_pairs elements rotate, the others do not */

    /*
     * (optional; to from or FP8) x * s * weight takes the place of x, with an s
     * per head and a weight per element; rounds_product as in cpu_norm.
     */
    const float *s, *weight;
    bool rounds_product;

    /* Tokens that follow the first, each with n_heads heads and n angles of
     * its own: elements from one to the next. */
    int64_t n_more, more_from, more_to;
};

/*
 * How rows are normalised: y = z * s * (bias + weight), with z = x, or
 * x + residual before any rounding. The norm of a rounded sum is that of x,
 * where add has written the sum. Where rows have means, z - mean is in the
 * place of z, and shift is added.
 */
struct cpu_norm {
    int64_t width; /* of a row */
    enum roped_dtype from, to;
    enum roped_dtype weight_dtype; /* F32, F16, BF16; ROPED_NO_DTYPE: 1 */
    const void *weight;
    float bias;
    enum roped_dtype shift_dtype; /* as weight_dtype; ROPED_NO_DTYPE: 0 */
    const void *shift;
    enum roped_dtype type; /* of x, also where from is F32 in its place */
    bool rounds_product;   /* z * s to the type of x, before the weight; with
                              means also its product with the weight */
    bool is_added;         /* residual is added to the norm, in the place of x,
                              and y has the type of x */
    bool rounds_norm;      /* the norm to that type first */
    bool is_streamed;

    /* (optional) Rows are heads in turn, of at most CPU_BLOCK elements, each
     * with weights of its own. They and the shifts are read from here, as
     * fill_weight makes them, room floats a head. y is not FP8. */
    int64_t n_heads, room;
    float *head_weight, *head_shift;
};

/* The mean of a row, high + low: z - high loses nothing that low could make up
 * for, where z is close to it. */
struct cpu_mean {
    float high, low;
};

/* Elements from a row of each tensor to the next; 0: its width. */
struct cpu_norm_strides {
    int64_t x, residual, sum, y;
};

/* Some rows. */
struct cpu_norm_rows {
    int64_t n;
    int64_t head; /* of the first one, where the norm has heads */
    struct cpu_norm_strides stride;
    const void *x;
    const void *residual; /* (optional) like x */
    void *sum;            /* where residual is given: z in the type of x */
    void *y;
    const struct cpu_mean *mean; /* (optional) per row; y is like x */
    const float *s;              /* per row; x * s below 2^90 where y is FP8 */
    const float *divisor; /* per row; read where y is FP8: y is divided */
};

/* FP8 scale of values up to a: max(min(a, most) / largest, least). */
struct cpu_fp8_scale {
    float most, largest, least;
};

/* Scales of the groups of some rows, and elements from one to the next. */
struct cpu_scales {
    float *data;
    int64_t row, group;
};

/* How values of a row become their norm as floats: rounded to a type behind
 * either product, or not. */
struct cpu_normal {
    enum roped_dtype from;
    enum roped_dtype type; /* F32 where nothing is rounded; a caller says so,
                              as both of the next are one load, which would
                              wait for two stores, and all that was streamed */
    bool rounds_product, rounds_result;
    float s;
    int64_t ahead; /* bytes: how far ahead memory is asked for */
    bool in_order; /* weight has the order of rows of from, as fill_weight has
                      it, and elements are those from a whole CPU_LANES on */
};

/*
 * How rows are added up before their norm where that is more than x + residual
 * of one type: ops/rmsnorm.h.
 */
struct cpu_sum {
    enum roped_dtype dtype;          /* of x and addend */
    enum roped_dtype residual_dtype; /* of the sum too: dtype or F32 */
    enum roped_dtype kept_dtype;     /* dtype or F32 */
    float x_scale, residual_scale, addend_scale, sum_scale;
    bool rounds;         /* every step to its type */
    bool residual_first; /* added before the addend */
    bool is_streamed;    /* the sum */
};

struct cpu_terms {
    const void *x, *residual;
    const void *addend; /* or NULL */
    void *sum;          /* may be x or residual */
    void *kept;         /* (optional) what is normalised, where it is not sum */
};

struct cpu_rows {
    const char *name; /* "avx512" */

    /* to[i] = from[i]; into FP8 times scale */
    void (*convert)(const struct cpu_conversion *how, void *to,
                    const void *from, int64_t n);

    /* to[i] = value of from[i]; F32, F16, BF16 */
    void (*widen)(enum roped_dtype dtype, float *to, const void *from,
                  int64_t n);

    /* x[i] rounded to F16 or BF16, and back */
    void (*round)(enum roped_dtype dtype, float *x, int64_t n);

    /* to[i] = x[i] * s * weight[i]; to may be x */
    void (*normal)(const struct cpu_normal *how, float *to, const void *x,
                   const float *weight, int64_t n);

    /* The same as odd_words of quantize_rows.h makes of it, and NULL where that
     * is. n: whole groups of 32, in_order. */
    void (*normal_words)(const struct cpu_normal *how, uint16_t *to,
                         const void *x, const float *weight, int64_t n);

    /* x[i] *= scale */
    void (*scale)(float *x, float scale, int64_t n);

    /*
     * Rotates at most CPU_PAIRS pairs of every head; those of the next token
     * by the n angles that follow. Where pairs->first is 0 the elements that
     * do not rotate are converted too.
     */
    void (*rotate)(const struct cpu_heads *heads, void *to, const void *from,
                   const struct cpu_pairs *pairs);

    /*
     * cos and sin of position * frequency, times attention_factor (and
     * sin_sign), accurate to float32 for angles below 2^24. The product is
     * rounded to float32 first where precision is ROPED_ANGLE_F32.
     */
    void (*angles)(float *c, float *s, double position,
                   const struct roped_angles *angles, float sin_sign,
                   int64_t n_pairs);

    /*
     * s[row] = 1 / sqrt(mean of z^2 + eps) of rows, at most CPU_ROWS, of width
     * elements each: the mean within 1e-6 of itself, added in an order that
     * depends on width alone. Squares beyond float32's range count. Of rows
     * only n, x, residual and their strides are read.
     */
    void (*inverse_rms)(enum roped_dtype dtype, int64_t width,
                        const struct cpu_norm_rows *rows, float eps, float *s);

    /* The same of the variance, the mean of (z - mean)^2, and mean[row]. */
    void (*inverse_deviation)(enum roped_dtype dtype, int64_t width,
                              const struct cpu_norm_rows *rows, float eps,
                              float *s, struct cpu_mean *mean);

    /* Writes sum alone, of rows of width elements. It may be x or residual, if
     * it is not streamed. */
    void (*add)(enum roped_dtype dtype, int64_t width,
                const struct cpu_norm_rows *rows, bool is_streamed);

    /* Writes sum and kept, of a row. */
    void (*sum)(const struct cpu_sum *how, const struct cpu_terms *row,
                int64_t n);

    /* w[i] = bias + weight[i]; dtype as cpu_norm's weight_dtype. w has room for
     * n rounded up to CPU_WEIGHTS, and the order of rows of that type where
     * normalize_scaled reads it; that of F32 is the order of i. */
    void (*fill_weight)(enum roped_dtype of, enum roped_dtype dtype, float *w,
                        const void *weight, float bias, int64_t n);

    /* Writes y, and sum where y is not FP8. y and sum may be x or residual. */
    void (*normalize)(const struct cpu_norm *norm,
                      const struct cpu_norm_rows *rows);

    /* largest[row] = the largest |y| that is not NaN, or 0. */
    void (*largest)(const struct cpu_norm *norm,
                    const struct cpu_norm_rows *rows, float *largest);

    /* Writes FP8 y, divided by a scale for each row, and the scales, of rows of
     * at most CPU_KEPT elements: their norms are computed once. weight: as
     * fill_weight has it. divisor and residual are not read. */
    void (*normalize_scaled)(const struct cpu_norm *norm,
                             const struct cpu_norm_rows *rows,
                             const float *weight,
                             const struct cpu_fp8_scale *scale, float *scales);

    /*
     * Writes FP8 y, divided by a scale for every group of group_size elements,
     * 16, 32, 64 or 128, and the scales. divisor and residual are not read.
     */
    void (*normalize_groups)(const struct cpu_norm *norm,
                             const struct cpu_norm_rows *rows,
                             int64_t group_size,
                             const struct cpu_fp8_scale *scale,
                             const struct cpu_scales *scales);

    /* Makes what this thread has streamed visible to others. */
    void (*fence)(void);

    const struct cpu_binary_rows *binary;               /* binary_rows.h */
    const struct cpu_activation_rows *activation;       /* activation_rows.h */
    const struct cpu_quantize_rows *quantize;           /* quantize_rows.h */
    const struct cpu_norm_gradient_rows *norm_gradient; /* its own header */
    const struct cpu_compare_rows *compare;             /* compare_rows.h */
};

/* The scale that cpu_fp8_scale describes. */
static inline float cpu_fp8_scale_of(const struct cpu_fp8_scale *scale, float a)
{
    float most = a < scale->most ? a : scale->most;
    float divided = most / scale->largest;
    return divided > scale->least ? divided : scale->least;
}

/*
 * The tables that this processor can run, best first: rank 0 is the one to
 * use, NULL ends the list. Static memory.
 */
const struct cpu_rows *cpu_rows_at(int rank);

/* The rank that backends open with, 0. Tests set it before they open one. */
extern int cpu_rows_rank;

#endif
