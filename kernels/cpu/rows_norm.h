/*
 * rows_norm.h - what rows_norm.c and rows_norm_fp8.c share: rows in parts of
 * some columns, and the norm of a block.
 */
#ifndef ROPED_CPU_ROWS_NORM_H
#define ROPED_CPU_ROWS_NORM_H

#include "cpu/rows_isa.h"

/*
 * Rows are worked on in parts of so many columns, whose weights stay in the
 * first-level cache beside the rows that pass through it. Whole groups.
 */
enum { COLUMNS = 1024 };

/* Columns [first, first + n) of some rows. */
struct norm_part {
    const struct cpu_norm *norm;
    const struct cpu_norm_rows *rows;
    int64_t first, n;

    /* bias + weight from column first on, to the end of the last block; each
     * block in the order of x */
    float *weight;
    float *shift; /* the same, where rows have means */

    /* into FP8 */
    bool is_spread; /* worked on row by row, as floats */
    bool is_tame;   /* no weight is Inf, NaN, or so large that it makes
                       something of what a product lost */
};

/* A row of what is normalised: x, or x + residual. */
struct source {
    const void *x, *residual;
};

/* Rows whose strides are none of them 0. */
INLINE struct cpu_norm_rows with_strides(const struct cpu_norm *norm,
                                         const struct cpu_norm_rows *rows)
{
    struct cpu_norm_rows own = *rows;
    int64_t *const all[] = {&own.stride.x, &own.stride.residual,
                            &own.stride.sum, &own.stride.y};
    for (int i = 0; i < 4; i++)
        if (*all[i] == 0)
            *all[i] = norm->width;
    return own;
}

/* A row of some, from column first on. */
INLINE struct source source_at(enum roped_dtype dtype,
                               const struct cpu_norm_rows *rows, int64_t row,
                               int64_t first, bool is_sum)
{
    return (struct source){
        at(dtype, rows->x, row * rows->stride.x + first),
        is_sum ? at(dtype, rows->residual, row * rows->stride.residual + first)
               : NULL};
}

INLINE block load_source(enum roped_dtype dtype, enum order order,
                         struct source from, int64_t i, int64_t n, bool is_sum)
{
    block x = load(dtype, order, at(dtype, from.x, i), n);
    if (is_sum)
        x = plus(x, load(dtype, order, at(dtype, from.residual, i), n));
    return x;
}

/*
 * Block i of n columns asks for memory of a row that comes next. Of two inputs
 * the first half of the blocks asks for one, the second for the other: tensors
 * lie whole powers of two apart, and memory that is so far apart is read at 0.8
 * of the rate side by side.
 */
INLINE void prefetch_next(enum roped_dtype dtype, struct source next, int64_t i,
                          int64_t n, bool is_sum)
{
    const bool is_first = 2 * i < n;
    const void *from = is_first ? next.x : next.residual;
    const int64_t element = 2 * i - (is_first ? 0 : n);
    if (is_sum)
        prefetch_elements(dtype, at(dtype, from, element), 2 * BLOCK);
    else
        prefetch_elements(dtype, at(dtype, next.x, i), BLOCK);
}

/* Fills a->weight and a->shift, of COLUMNS, from a->first on, and n. */
void ISA(cpu_fill_part)(struct norm_part *a);

/* Columns part by part: work is a switch over types with a part. */
#define FOR_PARTS(part, work)                                                  \
    for (; (part).first < (part).norm->width; (part).first += COLUMNS) {       \
        ISA(cpu_fill_part)(&(part));                                           \
        work                                                                   \
    }

INLINE void add_squares(block *sum, block x)
{
    sum->lo = multiply_add(x.lo, x.lo, sum->lo);
    sum->hi = multiply_add(x.hi, x.hi, sum->hi);
}

/* The norm of a block of values. */
INLINE block normal_block(enum roped_dtype from, block z, const float *weight,
                          float s, bool is_rounded)
{
    block v = times(z, splat(s));
    return product(is_rounded ? round_to(from, v) : v, load32(weight));
}

/* The same of the distance from the mean, and shifted. is_rounded: from is a
 * narrow type, and every step is rounded to it. */
INLINE block layer_block(enum roped_dtype from, block z, struct cpu_mean mean,
                         const float *weight, const float *shift, float s,
                         bool is_rounded)
{
    const block w = load32(weight), b = load32(shift);
    block v = minus(minus(z, splat(mean.high)), splat(mean.low));
    v = times(v, splat(s));
    if (is_rounded)
        return plus(round_to(from, product(round_to(from, v), w)), b);
    return (block){multiply_add(v.lo, w.lo, b.lo),
                   multiply_add(v.hi, w.hi, b.hi)};
}

/* Do whole blocks at aligned addresses make up the rows, but for their ends? */
INLINE bool can_stream(const struct cpu_norm *norm,
                       const struct cpu_norm_rows *rows)
{
    return norm->is_streamed && is_aligned(norm->to, NULL, norm->width) &&
           is_aligned(norm->to, rows->y, 0) &&
           is_aligned(norm->to, NULL, rows->stride.y) &&
           (!rows->residual || (is_aligned(norm->to, rows->sum, 0) &&
                                is_aligned(norm->to, NULL, rows->stride.sum)));
}

#endif
