/*
 * rows_norm.c - the root mean square of rows, and rows divided by it.
 */
#include "cpu/rows_isa.h"

#include <math.h>

/*
 * Squares are added in float32, lane by lane in two chains of 16, and these
 * sums in double: so few additions in a row keep the error below 1e-6.
 */
enum { CHUNK = 2 * 16 * BLOCK };

INLINE void add_squares(block *sum, block x)
{
    sum->lo = multiply_add(x.lo, x.lo, sum->lo);
    sum->hi = multiply_add(x.hi, x.hi, sum->hi);
}

/* Any order of elements will do: that which costs least. */
INLINE block load_any(enum roped_dtype dtype, const void *x, int64_t n)
{
    return load(dtype, dtype == ROPED_BF16 ? PAIRS : HALVES, x, n);
}

/* At most CHUNK elements. */
INLINE vfloat sum_chunk(enum roped_dtype dtype, const void *x, int64_t n)
{
    block even = {splat(0), splat(0)}, odd = even;
    int64_t i = 0;
    for (; i + 2 * BLOCK <= n; i += 2 * BLOCK) {
        add_squares(&even, load_any(dtype, at(dtype, x, i), BLOCK));
        add_squares(&odd, load_any(dtype, at(dtype, x, i + BLOCK), BLOCK));
    }
    if (i + BLOCK <= n) {
        add_squares(&even, load_any(dtype, at(dtype, x, i), BLOCK));
        i += BLOCK;
    }
    if (i < n)
        add_squares(&odd, load_any(dtype, at(dtype, x, i), n - i));
    return (even.lo + even.hi) + (odd.lo + odd.hi);
}

INLINE double sum_row(enum roped_dtype dtype, const void *x, int64_t n)
{
    doubles sum = widen_floats(sum_chunk(dtype, x, n < CHUNK ? n : CHUNK));
    for (int64_t i = CHUNK; i < n; i += CHUNK) {
        int64_t part = n - i < CHUNK ? n - i : CHUNK;
        doubles next = widen_floats(sum_chunk(dtype, at(dtype, x, i), part));
        sum = (doubles){sum.lo + next.lo, sum.hi + next.hi};
    }
    return sum_of_doubles(sum);
}

/* Where squares leave float32's range: every step in double. */
INLINE double double_sum(enum roped_dtype dtype, const void *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        float value[BLOCK];
        store32(value, load(dtype, HALVES, at(dtype, x, i), part));
        for (int64_t j = 0; j < part; j++)
            sum += (double)value[j] * (double)value[j];
    }
    return sum;
}

static NOINLINE double exact_sum(enum roped_dtype dtype, const void *x,
                                 int64_t n)
{
    if (dtype == ROPED_F16)
        return double_sum(ROPED_F16, x, n);
    if (dtype == ROPED_BF16)
        return double_sum(ROPED_BF16, x, n);
    return double_sum(ROPED_F32, x, n);
}

/* From sums, or the rows again where a sum has left float32's range. */
static void invert_rms(enum roped_dtype dtype, const void *x, int64_t n_rows,
                       int64_t n, float eps, double *sum, float *s)
{
    for (int64_t row = 0; row < n_rows; row++)
        if (UNLIKELY(!(sum[row] >= 0x1p-100 && sum[row] <= 0x1p127)))
            sum[row] = exact_sum(dtype, at(dtype, x, row * n), n);
    for (int64_t row = 0; row < n_rows; row++)
        s[row] = (float)(1 / sqrt(sum[row] / (double)n + (double)eps));
}

INLINE void sum_rows(enum roped_dtype dtype, const void *x, int64_t n_rows,
                     int64_t n, double *sum)
{
    for (int64_t row = 0; row < n_rows; row++)
        sum[row] = sum_row(dtype, at(dtype, x, row * n), n);
}

void ISA(cpu_inverse_rms)(enum roped_dtype dtype, const void *x, int64_t n_rows,
                          int64_t n, float eps, float *s)
{
    double sum[CPU_ROWS];
    if (dtype == ROPED_F16)
        sum_rows(ROPED_F16, x, n_rows, n, sum);
    else if (dtype == ROPED_BF16)
        sum_rows(ROPED_BF16, x, n_rows, n, sum);
    else
        sum_rows(ROPED_F32, x, n_rows, n, sum);
    invert_rms(dtype, x, n_rows, n, eps, sum, s);
}

/* Rounded to F16 or BF16 and back. */
INLINE block round_to(enum roped_dtype dtype, block x)
{
    if (dtype == ROPED_F16)
        return widen_f16(narrow_f16(x));
    if (dtype == ROPED_BF16)
        return widen_bf16(narrow_bf16(x));
    return x;
}

/* Columns [first, first + n) of some rows. */
struct norm_part {
    const struct cpu_norm *norm;
    void *y; /* of the first row */
    const void *x;
    const float *weight; /* bias + weight, from column first on */
    const float *s;      /* per row */
    int64_t n_rows, first, n;
};

INLINE void normalize_block(enum roped_dtype from, enum roped_dtype to,
                            const struct cpu_norm *norm, void *y, const void *x,
                            const float *weight, float s, int64_t n,
                            bool is_rounded, bool is_streamed)
{
    const block w = load(ROPED_F32, HALVES, weight, n);
    block v = times(load(from, HALVES, x, n), splat(s));
    if (is_rounded)
        v = round_to(norm->round_first, v);
    v = (block){v.lo * w.lo, v.hi * w.hi};
    store(to, HALVES, y, v, norm->scale, n, is_streamed);
}

INLINE void normalize_rows(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *part, bool is_rounded,
                           bool is_streamed)
{
    const struct norm_part a = *part; /* which no store can change */
    const struct cpu_norm norm = *a.norm;
    for (int64_t row = 0; row < a.n_rows; row++) {
        const void *x = at(from, a.x, row * norm.width + a.first);
        void *y = place(to, a.y, row * norm.width + a.first);
        const float s = a.s[row];
        int64_t i = 0;
        for (; i + BLOCK <= a.n; i += BLOCK) {
            prefetch(at(from, x, a.n_rows * norm.width + i));
            normalize_block(from, to, &norm, place(to, y, i), at(from, x, i),
                            a.weight + i, s, BLOCK, is_rounded, is_streamed);
        }
        if (i < a.n)
            normalize_block(from, to, &norm, place(to, y, i), at(from, x, i),
                            a.weight + i, s, a.n - i, is_rounded, false);
    }
}

INLINE void normalize_part(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *a)
{
    bool is_streamed = a->norm->is_streamed && is_aligned(to, a->y, 0) &&
                       is_aligned(to, NULL, a->norm->width);
    if (a->norm->round_first && is_streamed)
        normalize_rows(from, to, a, true, true);
    else if (a->norm->round_first)
        normalize_rows(from, to, a, true, false);
    else if (is_streamed)
        normalize_rows(from, to, a, false, true);
    else
        normalize_rows(from, to, a, false, false);
}

INSTANCES(normalize_part, norm_part)

/* w[i] = bias + weight[i] */
INLINE void add_bias(enum roped_dtype dtype, float *w, const void *weight,
                     float bias, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        block x = load(dtype, HALVES, at(dtype, weight, i), part);
        x = (block){splat(bias) + x.lo, splat(bias) + x.hi};
        store(ROPED_F32, HALVES, w + i, x, 1, part, false);
    }
}

static void fill_weight(const struct cpu_norm *norm, int64_t first, int64_t n,
                        float *w)
{
    const void *from = at(norm->weight_dtype, norm->weight, first);
    if (norm->weight_dtype == ROPED_F32)
        add_bias(ROPED_F32, w, from, norm->bias, n);
    else if (norm->weight_dtype == ROPED_F16)
        add_bias(ROPED_F16, w, from, norm->bias, n);
    else if (norm->weight_dtype == ROPED_BF16)
        add_bias(ROPED_BF16, w, from, norm->bias, n);
    else
        for (int64_t i = 0; i < n; i++)
            w[i] = norm->bias + 1;
}

/*
 * Columns in parts whose weights stay in the first-level cache beside the rows
 * that pass through it.
 */
void ISA(cpu_normalize)(const struct cpu_norm *norm, void *y, const void *x,
                        const float *s, int64_t n_rows)
{
    enum { COLUMNS = 1024 };
    float w[COLUMNS];
    for (int64_t i = 0; i < norm->width; i += COLUMNS) {
        int64_t n = norm->width - i < COLUMNS ? norm->width - i : COLUMNS;
        const struct norm_part a = {norm, y, x, w, s, n_rows, i, n};
        fill_weight(norm, i, n, w);
        CALL_INSTANCE(norm->from, norm->to, normalize_part, &a)
    }
}
