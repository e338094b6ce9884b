/*
 * rows_sum.c - sums of rows before their norm that are more than x + residual
 * of one type: every step in registers. Products are rounded before they are
 * added, so this file is compiled without fused ones.
 */
#include "cpu/rows_isa.h"

/* A tensor that is added, and what it is multiplied by. */
struct term {
    const void *row; /* NULL: there is none */
    float scale;
};

struct summing {
    struct cpu_sum how;
    struct term x, residual, addend;
    void *sum, *kept;
    int64_t n;
};

INLINE block round_step(const struct summing *a, enum roped_dtype dtype,
                        block z)
{
    if (!a->how.rounds || dtype == ROPED_F32)
        return z;
    return dtype == ROPED_F16 ? widen_f16(narrow_f16(z))
                              : widen_bf16(narrow_bf16(z));
}

INLINE block load_term(const struct summing *a, enum roped_dtype dtype,
                       struct term term, int64_t i, int64_t n)
{
    const void *from = at(dtype, term.row, i);
    prefetch_ahead(dtype, from, BLOCK);
    const block z = load(dtype, HALVES, from, n);
    return term.scale == 1 ? z
                           : round_step(a, dtype, times(z, splat(term.scale)));
}

INLINE block sum_of(block x, block y)
{
    return (block){x.lo + y.lo, x.hi + y.hi};
}

/* A step is rounded before the next one; the last one as it is stored. A sum
 * with a residual of F32 is F32. */
INLINE block sum_block(const struct summing *a, enum roped_dtype dtype,
                       enum roped_dtype residual, int64_t i, int64_t n)
{
    const bool is_scaled = a->how.sum_scale != 1;
    const bool has_addend = a->addend.row != NULL;
    block z = load_term(a, dtype, a->x, i, n);
    if (has_addend && !a->how.residual_first)
        z = round_step(a, dtype,
                       sum_of(z, load_term(a, dtype, a->addend, i, n)));
    z = sum_of(z, load_term(a, residual, a->residual, i, n));
    if (has_addend && a->how.residual_first)
        z = sum_of(round_step(a, residual, z),
                   load_term(a, dtype, a->addend, i, n));
    return is_scaled
               ? times(round_step(a, residual, z), splat(a->how.sum_scale))
               : z;
}

/* Inputs hold any NaN. */
INLINE void store_sum(enum roped_dtype dtype, void *row, int64_t i, block z,
                      int64_t n, bool is_streamed)
{
    void *to = place(dtype, row, i);
    if (dtype == ROPED_BF16)
        store_raw16(to, narrow_bf16(z), n, is_streamed);
    else
        store(dtype, HALVES, to, z, 1, n, is_streamed);
}

INLINE void store_sums(const struct summing *a, enum roped_dtype dtype,
                       enum roped_dtype residual, int64_t i, int64_t n,
                       bool is_streamed)
{
    const block z = sum_block(a, dtype, residual, i, n);
    store_sum(residual, a->sum, i, z, n, is_streamed);
    if (a->kept && a->how.kept_dtype == ROPED_F32)
        store_sum(ROPED_F32, a->kept, i, z, n, false);
    else if (a->kept)
        store_sum(dtype, a->kept, i, z, n, false);
}

INLINE void sum_row(enum roped_dtype dtype, enum roped_dtype residual,
                    const struct summing *some)
{
    const struct summing a = *some; /* which no store can change */
    const bool is_streamed =
        a.how.is_streamed && is_aligned(residual, a.sum, 0);
    int64_t i = 0;
    for (; i + BLOCK <= a.n; i += BLOCK)
        store_sums(&a, dtype, residual, i, BLOCK, is_streamed);
    if (i < a.n)
        store_sums(&a, dtype, residual, i, a.n - i, false);
}

void ISA(cpu_sum)(const struct cpu_sum *how, const struct cpu_terms *row,
                  int64_t n)
{
    const struct summing a = {*how,
                              {row->x, how->x_scale},
                              {row->residual, how->residual_scale},
                              {row->addend, how->addend_scale},
                              row->sum,
                              row->kept,
                              n};
    if (how->dtype == ROPED_F32)
        sum_row(ROPED_F32, ROPED_F32, &a);
    else if (how->dtype == ROPED_F16 && how->residual_dtype == ROPED_F16)
        sum_row(ROPED_F16, ROPED_F16, &a);
    else if (how->dtype == ROPED_F16)
        sum_row(ROPED_F16, ROPED_F32, &a);
    else if (how->residual_dtype == ROPED_BF16)
        sum_row(ROPED_BF16, ROPED_BF16, &a);
    else
        sum_row(ROPED_BF16, ROPED_F32, &a);
}
