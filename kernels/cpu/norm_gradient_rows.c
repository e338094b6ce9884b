/*
 * norm_gradient_rows.c - a row's sums, and its gradient; built once per
 * instruction set, as rows.c is.
 */
#include "cpu/norm_gradient_rows.h"
#include "cpu/rows_isa.h"

#include <math.h>

/* What the loops are made for, all constants. */
struct form {
    enum roped_dtype type;
    bool rounds, is_centred;
};

/* So many floats are added up before a double takes their sum. */
enum { FEW = 8 };

/* Of grad_y up to this a few rows' products with a norm, which is at most the
 * root of a row's length, are added up without becoming infinite. */
#define LARGEST 0x1p96f

/* Elements of a block of a row. */
struct part {
    block g, weighted, normal;
};

/* Of one vector each, but for the largest |grad_y|: of a few vectors. */
struct row_sums {
    block sum, dot;
    vfloat largest;
};

INLINE block maybe_rounded(struct form form, block x)
{
    return form.rounds ? round_to(form.type, x) : x;
}

INLINE struct part load_part(struct form form,
                             const struct cpu_gradient_row *row, int64_t i,
                             int64_t n)
{
    const block x = load(form.type, HALVES, at(form.type, row->x, i), n);
    const block g = load(form.type, HALVES, at(form.type, row->grad_y, i), n);
    const block centred =
        form.is_centred
            ? minus(minus(x, splat(row->mean.high)), splat(row->mean.low))
            : x;
    const block normal = times(centred, splat(row->s));
    return (struct part){g,
                         maybe_rounded(form, product(g, load32(row->gain + i))),
                         n < BLOCK ? first_of(normal, n) : normal};
}

/* -------------------------------------------------------------------- sums */

INLINE doubles plus_doubles(doubles a, doubles b)
{
    return (doubles){a.lo + b.lo, a.hi + b.hi};
}

INLINE doubles wide_product(vfloat a, vfloat b)
{
    const doubles x = widen_floats(a), y = widen_floats(b);
    return (doubles){x.lo * y.lo, x.hi * y.hi};
}

INLINE doubles wide_sum(block x)
{
    return plus_doubles(widen_floats(x.lo), widen_floats(x.hi));
}

/* A row whose sums floats may not hold: in doubles, one by one. */
INLINE void sum_widely(struct form form, const struct cpu_gradient_row *row,
                       double *sum, double *dot)
{
    doubles all = {0}, all_dot = {0};
    for (int64_t i = 0; i < row->n; i += BLOCK) {
        const struct part part =
            load_part(form, row, i, row->n - i < BLOCK ? row->n - i : BLOCK);
        all = plus_doubles(all, wide_sum(part.weighted));
        all_dot = plus_doubles(
            all_dot,
            plus_doubles(wide_product(part.weighted.lo, part.normal.lo),
                         wide_product(part.weighted.hi, part.normal.hi)));
    }
    *sum = sum_of_doubles(all);
    *dot = sum_of_doubles(all_dot);
}

/* What is behind the end of a row is 0. */
INLINE void add_part(struct row_sums *to, struct part part)
{
    to->sum = plus(to->sum, part.weighted);
    to->dot =
        (block){multiply_add(part.weighted.lo, part.normal.lo, to->dot.lo),
                multiply_add(part.weighted.hi, part.normal.hi, to->dot.hi)};
    to->largest =
        larger_magnitude(part.g.lo, larger_magnitude(part.g.hi, to->largest));
}

INLINE bool sum_row(struct form form, const struct cpu_gradient_row *of,
                    double *sum, double *dot)
{
    const struct cpu_gradient_row row = *of; /* which no store can change */
    doubles all = {0}, all_dot = {0};
    struct row_sums few = {.largest = splat(0)};
    for (int64_t i = 0; i < row.n;) {
        const int64_t end = row.n - i < FEW * BLOCK ? row.n : i + FEW * BLOCK;
        few.sum = few.dot = (block){splat(0), splat(0)};
        for (; i + BLOCK <= end; i += BLOCK) {
            prefetch_ahead(form.type, at(form.type, row.x, i), BLOCK);
            prefetch_ahead(form.type, at(form.type, row.grad_y, i), BLOCK);
            add_part(&few, load_part(form, &row, i, BLOCK));
        }
        if (i < end)
            add_part(&few, load_part(form, &row, i, end - i));
        i = end;
        all = plus_doubles(all, wide_sum(few.sum));
        all_dot = plus_doubles(all_dot, wide_sum(few.dot));
    }
    *sum = sum_of_doubles(all);
    *dot = sum_of_doubles(all_dot);
    const bool is_tame = isfinite(*sum) && isfinite(*dot) &&
                         largest_lane(few.largest) <= LARGEST;
    if (UNLIKELY(!is_tame))
        sum_widely(form, of, sum, dot);
    return is_tame;
}

/* ---------------------------------------------------------------- gradient */

/* Adds a * b to n sums, or begins them. */
INLINE void add_products(float *to, block a, block b, bool begins)
{
    const block sum = begins ? (block){splat(0), splat(0)} : load32(to);
    store32(to, (block){multiply_add(a.lo, b.lo, sum.lo),
                        multiply_add(a.hi, b.hi, sum.hi)});
}

INLINE void add_to(double *to, doubles x)
{
    doubles sum;
    memcpy(&sum, to, sizeof sum);
    sum = plus_doubles(sum, x);
    memcpy(to, &sum, sizeof sum);
}

/* What descend adds to sums, of a row for which these may not do. */
INLINE void add_row_widely(struct form form, const struct cpu_gradient_row *row)
{
    for (int64_t i = 0; i < row->n; i += BLOCK) {
        const struct part part =
            load_part(form, row, i, row->n - i < BLOCK ? row->n - i : BLOCK);
        const block normal = maybe_rounded(form, part.normal);
        if (row->gain_total) {
            add_to(row->gain_total + i, wide_product(part.g.lo, normal.lo));
            add_to(row->gain_total + i + LANES,
                   wide_product(part.g.hi, normal.hi));
        }
        if (row->shift_total) {
            add_to(row->shift_total + i, widen_floats(part.g.lo));
            add_to(row->shift_total + i + LANES, widen_floats(part.g.hi));
        }
    }
}

INLINE void descend_part(struct form form, const struct cpu_gradient_row *row,
                         int64_t i, int64_t n)
{
    const struct part part = load_part(form, row, i, n);
    const block ones = {splat(1), splat(1)};
    block to = minus(part.weighted, splat(row->shift));
    to = (block){negative_multiply_add(splat(row->k), part.normal.lo, to.lo),
                 negative_multiply_add(splat(row->k), part.normal.hi, to.hi)};
    to = times(to, splat(row->s));
    if (row->residual)
        to = plus(to,
                  load(form.type, HALVES, at(form.type, row->residual, i), n));
    store(form.type, HALVES, place(form.type, row->grad_x, i), to, 1, n,
          row->is_streamed);
    if (row->gain_sum)
        add_products(row->gain_sum + i, part.g,
                     maybe_rounded(form, part.normal), row->begins);
    if (row->shift_sum)
        add_products(row->shift_sum + i, part.g, ones, row->begins);
}

/* Streamed from the first address on that a block can be. */
INLINE void descend_row(struct form form, const struct cpu_gradient_row *of)
{
    const struct cpu_gradient_row row = *of; /* which no store can change */
    int64_t i =
        row.is_streamed ? to_aligned(form.type, row.grad_x, row.n) % BLOCK : 0;
    if (i > 0)
        descend_part(form, &row, 0, i);
    for (; i + BLOCK <= row.n; i += BLOCK)
        descend_part(form, &row, i, BLOCK);
    if (i < row.n)
        descend_part(form, &row, i, row.n - i);
}

/* ------------------------------------------------------------------- types */

#define FOR_TYPE(type, rounds, row, loop, ...)                                 \
    if ((row)->is_centred)                                                     \
        loop((struct form){type, rounds, true}, __VA_ARGS__);                  \
    else                                                                       \
        loop((struct form){type, rounds, false}, __VA_ARGS__);

#define FOR_FORM(row, ...)                                                     \
    if ((row)->type == ROPED_F32)                                              \
        FOR_TYPE(ROPED_F32, false, row, __VA_ARGS__)                           \
    else if ((row)->type == ROPED_F16 && (row)->rounds)                        \
        FOR_TYPE(ROPED_F16, true, row, __VA_ARGS__)                            \
    else if ((row)->type == ROPED_F16)                                         \
        FOR_TYPE(ROPED_F16, false, row, __VA_ARGS__)                           \
    else if ((row)->rounds)                                                    \
        FOR_TYPE(ROPED_BF16, true, row, __VA_ARGS__)                           \
    else                                                                       \
        FOR_TYPE(ROPED_BF16, false, row, __VA_ARGS__)

static bool sums(const struct cpu_gradient_row *row, double *sum, double *dot)
{
    FOR_FORM(row, return sum_row, row, sum, dot)
}

static void add_widely(const struct cpu_gradient_row *row)
{
    FOR_FORM(row, add_row_widely, row)
}

static void descend(const struct cpu_gradient_row *row)
{
    FOR_FORM(row, descend_row, row)
}

/* ------------------------------------------------------------------ columns */

static void fold(double *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void total(float *to, const double *from, int64_t stride,
                  int64_t n_parts, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        double sum[BLOCK] = {0};
        for (int64_t part = 0; part < n_parts; part++)
            for (int j = 0; j < BLOCK; j++)
                sum[j] += from[part * stride + i + j];
        for (int j = 0; j < BLOCK; j++)
            to[i + j] = (float)sum[j];
    }
}

extern const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows);
const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows) = {
    .sums = sums,
    .descend = descend,
    .add_widely = add_widely,
    .fold = fold,
    .total = total,
};
