/*
 * binary_rows.c - the inner loops of binary_backward; built once per
 * instruction set, as rows.c is. The loops are written once, with type and
 * arithmetic as constants that inlining folds.
 *
 * A few terms are added in float32, and only what comes of that in double,
 * where a sum may be as long as it likes.
 */
#include "cpu/binary_terms.h"

/* ------------------------------------------------------------------ terms */

INLINE vfloat full_term(enum kind kind, struct signs sign, vfloat g, vfloat x,
                        vfloat y)
{
    if (kind == LINEAR)
        return g * splat(sign.full);
    if (kind == MUL)
        return g * y;
    return kind == OVER_SUM ? (vfloat)(g / y) : quotient_term(g, y, x);
}

INLINE block full_terms(enum kind kind, struct signs sign, block g, block x,
                        block y)
{
    return (block){full_term(kind, sign, g.lo, x.lo, y.lo),
                   full_term(kind, sign, g.hi, x.hi, y.hi)};
}

/* ----------------------------------------------------------------- sweeps */

struct sweep {
    struct cpu_sweep of;
    struct signs sign;
    bool is_streamed;
};

/* n elements: writes the full gradient, returns the other's terms. */
INLINE block sweep_block(enum roped_dtype dtype, enum kind kind,
                         const struct sweep *sweep, int64_t i, int64_t n,
                         block y)
{
    block g = load_at(dtype, sweep->of.g, i, n), x = g;
    prefetch_block(dtype, sweep->of.g, i);
    if (kind != LINEAR) {
        prefetch_block(dtype, sweep->of.x, i);
        x = load_at(dtype, sweep->of.x, i, n);
    }
    store_at(dtype, sweep->of.grad_x, i, full_terms(kind, sweep->sign, g, x, y),
             n, sweep->is_streamed);
    return sum_terms(kind, sweep->sign, g, x, y);
}

/* Terms of columns, not in their sums yet. */
struct total {
    float *term;
    bool is_empty;
};

/* One or two rows of n columns from i on, of rows from element begin on: their
 * terms become, or are added to, those in total. Not four rows: they often lie
 * a power of two apart, and so many would compete for the same lines of the
 * cache. */
INLINE void add_columns(enum roped_dtype dtype, enum kind kind,
                        const struct sweep *sweep, int64_t begin, int rows,
                        struct total total, int64_t i, int64_t n)
{
    block y = {splat(0), splat(0)};
    if (kind != LINEAR)
        y = load_floats(sweep->of.y + i, n);
    block term = sweep_block(dtype, kind, sweep, begin + i, n, y);
    if (rows == 2)
        term = plus(term, sweep_block(dtype, kind, sweep,
                                      begin + sweep->of.stride + i, n, y));
    if (!total.is_empty)
        term = plus(term, load_floats(total.term + i, n));
    store_at(ROPED_F32, total.term, i, term, n, false);
}

INLINE void add_rows(enum roped_dtype dtype, enum kind kind,
                     const struct sweep *sweep, int64_t begin, int rows,
                     struct total total)
{
    const int64_t width = sweep->of.width;
    int64_t i = 0;
    for (; i + BLOCK <= width; i += BLOCK)
        add_columns(dtype, kind, sweep, begin, rows, total, i, BLOCK);
    if (width % BLOCK > 0)
        add_columns(dtype, kind, sweep, begin, rows, total, i, width % BLOCK);
}

INLINE void columns(enum roped_dtype dtype, enum kind kind,
                    const struct sweep *sweep)
{
    enum { ROWS_PER_DOUBLE = 8 };
    float term[CPU_BINARY_SUMS];
    const struct total empty = {term, true}, begun = {term, false};
    const int64_t rows = sweep->of.rows;
    for (int64_t row = 0; row < rows; row += 2) {
        int64_t begin = row * sweep->of.stride;
        bool is_first = row % ROWS_PER_DOUBLE == 0;
        if (row + 1 == rows)
            add_rows(dtype, kind, sweep, begin, 1,
                     (struct total){term, is_first});
        else if (is_first)
            add_rows(dtype, kind, sweep, begin, 2, empty);
        else
            add_rows(dtype, kind, sweep, begin, 2, begun);
        if (row + 2 >= rows || (row + 2) % ROWS_PER_DOUBLE == 0)
            add(sweep->of.sum, term, sweep->of.width);
    }
}

/* The sum of one row's terms, in an order that depends on width alone. */
INLINE double sweep_row(enum roped_dtype dtype, enum kind kind,
                        const struct sweep *sweep, int64_t begin, float y)
{
    const int64_t width = sweep->of.width, rest = width % BLOCK;
    const block of_y = {splat(y), splat(y)};
    doubles sum = widen_floats(splat(0));
    int64_t i = 0;
    for (; i + 2 * BLOCK <= width; i += 2 * BLOCK) {
        block term = sweep_block(dtype, kind, sweep, begin + i, BLOCK, of_y);
        block next =
            sweep_block(dtype, kind, sweep, begin + i + BLOCK, BLOCK, of_y);
        sum = add_floats(sum, plus(term, next));
    }
    for (; i + BLOCK <= width; i += BLOCK)
        sum = add_floats(
            sum, sweep_block(dtype, kind, sweep, begin + i, BLOCK, of_y));
    if (rest > 0) {
        block term = sweep_block(dtype, kind, sweep, begin + i, rest, of_y);
        sum = add_floats(sum, first_of(term, rest)); /* 0 / 0 lies behind */
    }
    return sum_of_doubles(sum);
}

/* A row that begins where no block can be streamed to is stored as usual:
 * single elements up to where one can would be summed in another order. */
INLINE void packed_rows(enum roped_dtype dtype, enum kind kind,
                        const struct sweep *sweep)
{
    struct sweep of_row = *sweep;
    for (int64_t row = 0; row < sweep->of.rows; row++) {
        int64_t begin = row * sweep->of.width;
        of_row.is_streamed =
            sweep->is_streamed && is_aligned(dtype, sweep->of.grad_x, begin);
        sweep->of.sum[row] += sweep_row(dtype, kind, &of_row, begin,
                                        kind != LINEAR ? sweep->of.y[row] : 0);
    }
}

static void sweep_columns(const struct cpu_binary *binary,
                          const struct cpu_sweep *of)
{
    enum roped_dtype dtype = binary->dtype;
    struct sweep sweep = {*of, signs_of(binary), false};
    /* every row begins where a block can be streamed to, or none does */
    sweep.is_streamed = binary->is_streamed &&
                        is_aligned(dtype, of->grad_x, 0) &&
                        (of->rows == 1 || is_aligned(dtype, NULL, of->stride));
    WITH_TYPE_AND_KIND(dtype, kind_of(binary), columns, &sweep)
}

static void sweep_rows(const struct cpu_binary *binary,
                       const struct cpu_sweep *of)
{
    struct sweep sweep = {*of, signs_of(binary), binary->is_streamed};
    WITH_TYPE_AND_KIND(binary->dtype, kind_of(binary), packed_rows, &sweep)
}

/* ------------------------------------------------------------ elementwise */

struct elements {
    struct cpu_elements of;
    struct signs sign; /* of a, of b */
    bool streams_b;
};

/*
 * Three inputs ahead of element i, in turns: of every four KiB one KiB of
 * progress each, in which one is asked for as much as all of it will use up,
 * and the fourth for nothing. Tensors lie whole powers of two apart, and memory
 * that is so far apart is read at 0.9 of the rate side by side. Sweeps, with
 * two inputs, are not faster for it.
 */
INLINE void prefetch_in_turns(enum roped_dtype dtype,
                              const struct elements *all, int64_t i)
{
    enum { TURN = 1024, N_TURNS = 4, LINE = 64 };
    const int64_t step = BLOCK * (int64_t)size_of(dtype);
    const int64_t offset = i * (int64_t)size_of(dtype);
    const int64_t turn = offset / TURN % N_TURNS;
    const void *from = turn == 0   ? all->of.g
                       : turn == 1 ? all->of.a
                                   : all->of.b;
    const char *ahead = (const char *)from + offset + (N_TURNS - turn) * TURN +
                        offset % TURN * (N_TURNS - 1);
    if (turn == N_TURNS - 1)
        return;
    for (int64_t byte = 0; byte < N_TURNS * step; byte += LINE)
        __builtin_prefetch(ahead + byte, 0, 2);
}

/* n elements; a as the full operand, b as the summed one: their terms are the
 * same. */
INLINE void both_blocks(enum roped_dtype dtype, enum kind kind,
                        const struct elements *all, int64_t i, int64_t n,
                        bool streams_a)
{
    block g = load_at(dtype, all->of.g, i, n), a = g, b = g;
    if (kind == LINEAR) {
        prefetch_block(dtype, all->of.g, i);
    } else {
        prefetch_in_turns(dtype, all, i);
        a = load_at(dtype, all->of.a, i, n);
        b = load_at(dtype, all->of.b, i, n);
    }
    store_at(dtype, all->of.grad_a, i, full_terms(kind, all->sign, g, a, b), n,
             streams_a);
    store_at(dtype, all->of.grad_b, i, sum_terms(kind, all->sign, g, a, b), n,
             streams_a && all->streams_b);
}

INLINE void both_gradients(enum roped_dtype dtype, enum kind kind,
                           const struct elements *all, bool is_streamed)
{
    const int64_t n = all->of.n;
    const int64_t head = is_streamed ? to_aligned(dtype, all->of.grad_a, n) : 0;
    int64_t i = 0;
    for (; i + BLOCK <= head; i += BLOCK)
        both_blocks(dtype, kind, all, i, BLOCK, false);
    if (head % BLOCK > 0)
        both_blocks(dtype, kind, all, i, head % BLOCK, false);
    for (i = head; i + BLOCK <= n; i += BLOCK)
        both_blocks(dtype, kind, all, i, BLOCK, is_streamed);
    if ((n - head) % BLOCK > 0)
        both_blocks(dtype, kind, all, i, (n - head) % BLOCK, false);
}

static void elementwise(const struct cpu_binary *binary,
                        const struct cpu_elements *of)
{
    const uintptr_t apart = (uintptr_t)of->grad_a - (uintptr_t)of->grad_b;
    const struct elements all = {*of, signs_of(binary),
                                 apart % STREAM_ALIGNMENT == 0};
    WITH_TYPE_AND_KIND(binary->dtype, kind_of(binary), both_gradients, &all,
                       binary->is_streamed)
}

extern const struct cpu_binary_rows ISA(cpu_binary_rows);
const struct cpu_binary_rows ISA(cpu_binary_rows) = {
    .elementwise = elementwise,
    .sweep_columns = sweep_columns,
    .sweep_rows = sweep_rows,
    .sums = &ISA(cpu_binary_sum_rows),
};
