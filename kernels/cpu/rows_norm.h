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
};

/* What a loop over blocks is made for. */
struct norm_form {
    bool is_rounded, is_sum, is_streamed;
};

/* Fills a->weight, of COLUMNS, from a->first on, and n. */
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

/* Do whole blocks at aligned addresses make up the rows, but for their ends? */
INLINE bool can_stream(const struct cpu_norm *norm,
                       const struct cpu_norm_rows *rows)
{
    return norm->is_streamed && is_aligned(norm->to, rows->y, 0) &&
           is_aligned(norm->to, NULL, norm->width) &&
           (!rows->residual || is_aligned(norm->to, rows->sum, 0));
}

#endif
