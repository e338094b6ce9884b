/*
 * norm_gradient_rows.c - a row's sums, and its gradient; built once per
 * instruction set, as rows.c is.
 */
#include "cpu/norm_gradient_rows.h"
#include "cpu/rows_isa.h"

/* What the loops are made for, all constants. */
struct form {
    enum roped_dtype type;
    bool rounds;
};

/* Elements of a block of a row. */
struct part {
    block g, weighted, normal;
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
        minus(minus(x, splat(row->mean.high)), splat(row->mean.low));
    const block normal = times(centred, splat(row->s));
    return (struct part){g,
                         maybe_rounded(form, product(g, load32(row->gain + i))),
                         n < BLOCK ? first_of(normal, n) : normal};
}

INLINE doubles plus_doubles(doubles a, doubles b)
{
    return (doubles){a.lo + b.lo, a.hi + b.hi};
}

INLINE doubles wide_product(vfloat a, vfloat b)
{
    const doubles x = widen_floats(a), y = widen_floats(b);
    return (doubles){x.lo * y.lo, x.hi * y.hi};
}

/* -------------------------------------------------------------------- sums */

struct sums {
    doubles sum[2], dot[2];
};

/* What is behind the end of a row is 0. */
INLINE void add_part(struct sums *to, struct part part)
{
    const vfloat weighted[] = {part.weighted.lo, part.weighted.hi};
    const vfloat normal[] = {part.normal.lo, part.normal.hi};
    for (int i = 0; i < 2; i++) {
        to->sum[i] = plus_doubles(to->sum[i], widen_floats(weighted[i]));
        to->dot[i] =
            plus_doubles(to->dot[i], wide_product(weighted[i], normal[i]));
    }
}

INLINE void sum_row(struct form form, const struct cpu_gradient_row *of,
                    double *sum, double *dot)
{
    const struct cpu_gradient_row row = *of; /* which no store can change */
    struct sums all = {0};
    int64_t i = 0;
    for (; i + BLOCK <= row.n; i += BLOCK) {
        prefetch_ahead(form.type, at(form.type, row.x, i), BLOCK);
        prefetch_ahead(form.type, at(form.type, row.grad_y, i), BLOCK);
        add_part(&all, load_part(form, &row, i, BLOCK));
    }
    if (i < row.n)
        add_part(&all, load_part(form, &row, i, row.n - i));
    *sum = sum_of_doubles(plus_doubles(all.sum[0], all.sum[1]));
    *dot = sum_of_doubles(plus_doubles(all.dot[0], all.dot[1]));
}

/* ---------------------------------------------------------------- gradient */

INLINE void add_to(double *to, doubles x)
{
    doubles sum;
    memcpy(&sum, to, sizeof sum);
    sum = plus_doubles(sum, x);
    memcpy(to, &sum, sizeof sum);
}

INLINE void descend_part(struct form form, const struct cpu_gradient_row *row,
                         int64_t i, int64_t n)
{
    const struct part part = load_part(form, row, i, n);
    block to = minus(part.weighted, splat(row->shift));
    to = (block){negative_multiply_add(splat(row->k), part.normal.lo, to.lo),
                 negative_multiply_add(splat(row->k), part.normal.hi, to.hi)};
    to = times(to, splat(row->s));
    if (row->residual)
        to = plus(to,
                  load(form.type, HALVES, at(form.type, row->residual, i), n));
    store(form.type, HALVES, place(form.type, row->grad_x, i), to, 1, n,
          row->is_streamed);
    if (row->gain_sum) {
        const block normal = maybe_rounded(form, part.normal);
        add_to(row->gain_sum + i, wide_product(part.g.lo, normal.lo));
        add_to(row->gain_sum + i + LANES, wide_product(part.g.hi, normal.hi));
    }
    if (row->shift_sum) {
        add_to(row->shift_sum + i, widen_floats(part.g.lo));
        add_to(row->shift_sum + i + LANES, widen_floats(part.g.hi));
    }
}

INLINE void descend_row(struct form form, const struct cpu_gradient_row *of)
{
    struct cpu_gradient_row row = *of; /* which no store can change */
    int64_t i = 0;
    row.is_streamed = of->is_streamed && is_aligned(form.type, of->grad_x, 0);
    for (; i + BLOCK <= row.n; i += BLOCK)
        descend_part(form, &row, i, BLOCK);
    if (i < row.n)
        descend_part(form, &row, i, row.n - i);
}

/* ------------------------------------------------------------------- types */

#define FOR_FORM(row, loop, ...)                                               \
    if ((row)->type == ROPED_F32)                                              \
        loop((struct form){ROPED_F32, false}, __VA_ARGS__);                    \
    else if ((row)->type == ROPED_F16 && (row)->rounds)                        \
        loop((struct form){ROPED_F16, true}, __VA_ARGS__);                     \
    else if ((row)->type == ROPED_F16)                                         \
        loop((struct form){ROPED_F16, false}, __VA_ARGS__);                    \
    else if ((row)->rounds)                                                    \
        loop((struct form){ROPED_BF16, true}, __VA_ARGS__);                    \
    else                                                                       \
        loop((struct form){ROPED_BF16, false}, __VA_ARGS__);

static void sums(const struct cpu_gradient_row *row, double *sum, double *dot)
{
    FOR_FORM(row, sum_row, row, sum, dot)
}

static void descend(const struct cpu_gradient_row *row)
{
    FOR_FORM(row, descend_row, row)
}

extern const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows);
const struct cpu_norm_gradient_rows ISA(cpu_norm_gradient_rows) = {
    .sums = sums,
    .descend = descend,
};
