/*
 * binary_rows.c - the inner loops of binary_backward; built once per
 * instruction set with CPU_ISA, as rows.c is. The loops are written once, with
 * type and arithmetic as constants that inlining folds.
 *
 * A few terms are added in float32, and only what comes of that in double,
 * where a sum may be as long as it likes.
 */
#include "cpu/binary_rows.h"

#include "cpu/binary_vector.h"
#include "ops/binary_backward.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

/* ------------------------------------------------------------------ terms */

/* The arithmetic, with x the full operand and y the summed one. */
enum kind {
    LINEAR, /* add, sub: no values, but signs */
    MUL,
    OVER_SUM,  /* div, y is the divisor */
    OVER_FULL, /* div, x is the divisor */
};

struct signs {
    float full, sum;
};

/* One macro for vectors and single elements. Divided twice: y * y would leave
 * float32's range where that does not. */
#define QUOTIENT_TERM(g, over, divisor)                                        \
    (-((g) * ((over) / (divisor) / (divisor))))
#define FULL_TERM(kind, sign, g, x, y)                                         \
    ((kind) == LINEAR     ? (g) * (sign).full                                  \
     : (kind) == MUL      ? (g) * (y)                                          \
     : (kind) == OVER_SUM ? (g) / (y)                                          \
                          : QUOTIENT_TERM(g, y, x))
#define SUM_TERM(kind, sign, g, x, y)                                          \
    ((kind) == LINEAR     ? (g) * (sign).sum                                   \
     : (kind) == MUL      ? (g) * (x)                                          \
     : (kind) == OVER_SUM ? QUOTIENT_TERM(g, x, y)                             \
                          : (g) / (x))

static enum kind kind_of(const struct cpu_binary *binary)
{
    if (binary->function == BINARY_MUL)
        return MUL;
    if (binary->function == BINARY_DIV)
        return binary->sums_a ? OVER_FULL : OVER_SUM;
    return LINEAR;
}

static struct signs signs_of(const struct cpu_binary *binary)
{
    float sign_b = binary->function == BINARY_SUB ? -1.0f : 1.0f;
    return (struct signs){.full = binary->sums_a ? sign_b : 1.0f,
                          .sum = binary->sums_a ? 1.0f : sign_b};
}

/* Calls work(dtype, kind, ...) with both as constants. */
#define WITH_KIND(kind, work, dtype, ...)                                      \
    switch (kind) {                                                            \
    case LINEAR:                                                               \
        work(dtype, LINEAR, __VA_ARGS__);                                      \
        break;                                                                 \
    case MUL:                                                                  \
        work(dtype, MUL, __VA_ARGS__);                                         \
        break;                                                                 \
    case OVER_SUM:                                                             \
        work(dtype, OVER_SUM, __VA_ARGS__);                                    \
        break;                                                                 \
    case OVER_FULL:                                                            \
        work(dtype, OVER_FULL, __VA_ARGS__);                                   \
        break;                                                                 \
    }
#define WITH_TYPE_AND_KIND(dtype, kind, work, ...)                             \
    if ((dtype) == ROPED_F32)                                                  \
        WITH_KIND(kind, work, ROPED_F32, __VA_ARGS__)                          \
    else if ((dtype) == ROPED_F16)                                             \
        WITH_KIND(kind, work, ROPED_F16, __VA_ARGS__)                          \
    else                                                                       \
        WITH_KIND(kind, work, ROPED_BF16, __VA_ARGS__)

static void add(double *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)x[i];
}

/* ----------------------------------------------------------------- sweeps */

struct sweep {
    struct cpu_sweep of;
    struct signs sign;
    bool is_streamed;
};

/*
 * Inputs are asked for so many bytes ahead: three to five streams at once are
 * more than the processor's own prefetching keeps up with.
 */
enum { AHEAD = 2048 };

INLINE void prefetch(enum roped_dtype dtype, const void *base, int64_t i)
{
    __builtin_prefetch((const char *)base + i * (int64_t)size_of(dtype) + AHEAD,
                       0, 2);
}

/* One vector: writes the full gradient, returns the other's terms. */
INLINE vector sweep_vector(enum roped_dtype dtype, enum kind kind,
                           const struct sweep *sweep, int64_t at, vector y)
{
    vector g = load(dtype, sweep->of.g, at), x = g;
    prefetch(dtype, sweep->of.g, at);
    if (kind != LINEAR) {
        prefetch(dtype, sweep->of.x, at);
        x = load(dtype, sweep->of.x, at);
    }
    store(dtype, sweep->is_streamed, sweep->of.grad_x, at,
          FULL_TERM(kind, sweep->sign, g, x, y));
    return SUM_TERM(kind, sweep->sign, g, x, y);
}

INLINE float sweep_one(enum roped_dtype dtype, enum kind kind,
                       const struct sweep *sweep, int64_t at, float y)
{
    float g = load_one(dtype, sweep->of.g, at), x = g;
    if (kind != LINEAR)
        x = load_one(dtype, sweep->of.x, at);
    store_one(dtype, sweep->of.grad_x, at,
              FULL_TERM(kind, sweep->sign, g, x, y));
    return SUM_TERM(kind, sweep->sign, g, x, y);
}

/* Terms of columns, not in their sums yet. */
struct total {
    float *term;
    bool is_empty;
};

/* One or two rows of columns, from element begin on: their terms become, or
 * are added to, those in total. Not four rows: they often lie a power of two
 * apart, and so many would compete for the same lines of the cache. */
INLINE void add_rows(enum roped_dtype dtype, enum kind kind,
                     const struct sweep *sweep, int64_t begin, int rows,
                     struct total total)
{
    const int64_t width = sweep->of.width, next = begin + sweep->of.stride;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector y = {0};
        if (kind != LINEAR)
            y = load(ROPED_F32, sweep->of.y, i);
        vector term = sweep_vector(dtype, kind, sweep, begin + i, y);
        if (rows == 2)
            term += sweep_vector(dtype, kind, sweep, next + i, y);
        if (!total.is_empty)
            term += load(ROPED_F32, total.term, i);
        memcpy(total.term + i, &term, sizeof term);
    }
    for (; i < width; i++) {
        float y = kind != LINEAR ? sweep->of.y[i] : 0;
        float term = sweep_one(dtype, kind, sweep, begin + i, y);
        if (rows == 2)
            term += sweep_one(dtype, kind, sweep, next + i, y);
        total.term[i] = total.is_empty ? term : total.term[i] + term;
    }
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
                        const struct sweep *sweep, int64_t begin, int64_t width,
                        float y)
{
    double sum[LANES] = {0}, rest = 0;
    vector of_y = splat(y);
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES) {
        int64_t at = begin + i;
        vector term = sweep_vector(dtype, kind, sweep, at, of_y);
        term += sweep_vector(dtype, kind, sweep, at + LANES, of_y);
        term += sweep_vector(dtype, kind, sweep, at + 2 * LANES, of_y) +
                sweep_vector(dtype, kind, sweep, at + 3 * LANES, of_y);
        add_to_doubles(sum, term);
    }
    for (; i + LANES <= width; i += LANES)
        add_to_doubles(sum, sweep_vector(dtype, kind, sweep, begin + i, of_y));
    for (; i < width; i++)
        rest += (double)sweep_one(dtype, kind, sweep, begin + i, y);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    return sum[0] + rest;
}

/* A row that begins where no vector can be streamed to is stored as usual:
 * single elements up to where one can would be summed in another order. */
INLINE void packed_rows(enum roped_dtype dtype, enum kind kind,
                        const struct sweep *sweep)
{
    const int64_t width = sweep->of.width;
    struct sweep of_row = *sweep;
    for (int64_t row = 0; row < sweep->of.rows; row++) {
        int64_t begin = row * width;
        const char *out =
            (const char *)sweep->of.grad_x + begin * (int64_t)size_of(dtype);
        of_row.is_streamed = sweep->is_streamed && to_aligned(dtype, out) == 0;
        sweep->of.sum[row] += sweep_row(dtype, kind, &of_row, begin, width,
                                        kind != LINEAR ? sweep->of.y[row] : 0);
    }
}

static void sweep_columns(const struct cpu_binary *binary,
                          const struct cpu_sweep *of)
{
    enum roped_dtype dtype = binary->dtype;
    struct sweep sweep = {*of, signs_of(binary), false};
    /* every row begins where a vector can be streamed to, or none does */
    sweep.is_streamed = binary->is_streamed &&
                        to_aligned(dtype, of->grad_x) == 0 &&
                        (of->rows == 1 || of->stride % LANES == 0);
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
    bool streams_a, streams_b;
};

INLINE void one_element(enum roped_dtype dtype, enum kind kind,
                        const struct elements *all, int64_t i)
{
    float g = load_one(dtype, all->of.g, i), a = g, b = g;
    if (kind != LINEAR) {
        a = load_one(dtype, all->of.a, i);
        b = load_one(dtype, all->of.b, i);
    }
    store_one(dtype, all->of.grad_a, i, FULL_TERM(kind, all->sign, g, a, b));
    store_one(dtype, all->of.grad_b, i, SUM_TERM(kind, all->sign, g, a, b));
}

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
    const int64_t step = LANES * (int64_t)size_of(dtype);
    const int64_t offset = i * (int64_t)size_of(dtype);
    const int64_t turn = offset / TURN % N_TURNS;
    const void *from = turn == 0   ? all->of.g
                       : turn == 1 ? all->of.a
                                   : all->of.b;
    const char *ahead = (const char *)from + offset + (N_TURNS - turn) * TURN +
                        offset % TURN * (N_TURNS - 1);
    if (turn == N_TURNS - 1)
        return;
    for (int64_t at = 0; at < N_TURNS * step; at += LINE)
        __builtin_prefetch(ahead + at, 0, 2);
}

/* a as the full operand, b as the summed one: their terms are the same. */
INLINE void both_gradients(enum roped_dtype dtype, enum kind kind,
                           const struct elements *all)
{
    const int64_t n = all->of.n;
    int64_t i = 0, head = 0;
    if (all->streams_a)
        head = to_aligned(dtype, all->of.grad_a);
    for (; i < head && i < n; i++)
        one_element(dtype, kind, all, i);
    for (; i + LANES <= n; i += LANES) {
        vector g = load(dtype, all->of.g, i), a = g, b = g;
        if (kind == LINEAR) {
            prefetch(dtype, all->of.g, i);
        } else {
            prefetch_in_turns(dtype, all, i);
            a = load(dtype, all->of.a, i);
            b = load(dtype, all->of.b, i);
        }
        store(dtype, all->streams_a, all->of.grad_a, i,
              FULL_TERM(kind, all->sign, g, a, b));
        store(dtype, all->streams_b, all->of.grad_b, i,
              SUM_TERM(kind, all->sign, g, a, b));
    }
    for (; i < n; i++)
        one_element(dtype, kind, all, i);
}

static void elementwise(const struct cpu_binary *binary,
                        const struct cpu_elements *of)
{
    enum roped_dtype dtype = binary->dtype;
    struct elements all = {*of, signs_of(binary), binary->is_streamed, false};
    all.streams_b = binary->is_streamed && to_aligned(dtype, of->grad_a) ==
                                               to_aligned(dtype, of->grad_b);
    WITH_TYPE_AND_KIND(dtype, kind_of(binary), both_gradients, &all)
}

/* ------------------------------------------- any broadcasting, in float32 */

static void terms(const struct cpu_binary *binary, float *restrict to,
                  const float *restrict g, const float *restrict a,
                  const float *restrict b, int64_t n)
{
    const int32_t function = binary->function;
    const bool is_a = binary->sums_a;
    const float *other = is_a ? b : a;
    float sign = function == BINARY_SUB && !is_a ? -1.0f : 1.0f;
    if (function == BINARY_MUL)
        for (int64_t i = 0; i < n; i++)
            to[i] = g[i] * other[i];
    else if (function == BINARY_DIV && is_a)
        for (int64_t i = 0; i < n; i++)
            to[i] = g[i] / b[i];
    else if (function == BINARY_DIV)
        for (int64_t i = 0; i < n; i++)
            to[i] = QUOTIENT_TERM(g[i], a[i], b[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = g[i] * sign;
}

static double row_sum(const float *x, int64_t n)
{
    double sum[LANES] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        add_to_doubles(sum, load(ROPED_F32, x, i));
    for (; i < n; i++)
        rest += (double)x[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    return sum[0] + rest;
}

static void add_row_sums(double *sum, const float *x, int64_t rows,
                         int64_t width)
{
    for (int64_t row = 0; row < rows; row++)
        sum[row] += row_sum(x + row * width, width);
}

extern const struct cpu_binary_rows PASTE(cpu_binary_rows_, CPU_ISA);
const struct cpu_binary_rows PASTE(cpu_binary_rows_, CPU_ISA) = {
    .elementwise = elementwise,
    .sweep_columns = sweep_columns,
    .sweep_rows = sweep_rows,
    .terms = terms,
    .add = add,
    .add_row_sums = add_row_sums,
};
