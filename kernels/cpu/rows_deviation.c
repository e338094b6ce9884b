/*
 * rows_deviation.c - the mean of rows and their standard deviation, over the
 * distances from a value that is near the mean: that of a row's first block.
 * Where that is too far away, there is a pass that finds the mean but for what
 * float32 lost of it, and another one over the distances from that.
 */
#include "cpu/rows_norm.h"

#include <math.h>

/* As in rows_norm.c: so few additions in float32 that the error stays below
 * 1e-6, and these sums in double. */
enum { CHUNK = 2 * 16 * BLOCK };

/* Sums of z - from and of its square, lane by lane; or of z alone. */
struct lanes {
    block sum, square;
};

struct deviation_lanes {
    doubles sum, square;
};

struct deviation_sums {
    double sum, square;
};

/* What a loop is made for, all constants, and its row. */
struct deviations {
    enum roped_dtype dtype;
    bool is_sum, is_first;
    struct source row;
    float from;
};

/* Elements [i, i + n), at most a block. */
INLINE void add_deviations(struct deviations a, struct lanes *to, int64_t i,
                           int64_t n)
{
    /* of whole blocks any order will do: that which costs least */
    const enum order order =
        a.dtype == ROPED_BF16 && n == BLOCK ? PAIRS : HALVES;
    block z = load_source(a.dtype, order, a.row, i, n, a.is_sum);
    if (!a.is_first) {
        z = minus(z, splat(a.from));
        if (n < BLOCK)
            z = first_of(z, n);
        add_squares(&to->square, z);
    }
    to->sum = plus(to->sum, z);
}

INLINE doubles widen_lanes(block even, block odd)
{
    return widen_floats((even.lo + even.hi) + (odd.lo + odd.hi));
}

/* Elements [i, end), at most CHUNK of them. */
INLINE struct deviation_lanes chunk_lanes(struct deviations a, int64_t i,
                                          int64_t end)
{
    const block zero = {splat(0), splat(0)};
    struct lanes even = {zero, zero}, odd = even;
    for (; i + 2 * BLOCK <= end; i += 2 * BLOCK) {
        add_deviations(a, &even, i, BLOCK);
        add_deviations(a, &odd, i + BLOCK, BLOCK);
    }
    if (i + BLOCK <= end) {
        add_deviations(a, &even, i, BLOCK);
        i += BLOCK;
    }
    if (i < end)
        add_deviations(a, &odd, i, end - i);
    return (struct deviation_lanes){widen_lanes(even.sum, odd.sum),
                                    widen_lanes(even.square, odd.square)};
}

INLINE struct deviation_sums sum_chunk(struct deviations a, int64_t i,
                                       int64_t end)
{
    const struct deviation_lanes lanes = chunk_lanes(a, i, end);
    return (struct deviation_sums){sum_of_doubles(lanes.sum),
                                   a.is_first ? 0
                                              : sum_of_doubles(lanes.square)};
}

INLINE struct deviation_sums sum_row(struct deviations a, int64_t n)
{
    struct deviation_sums all = {0, 0};
    for (int64_t i = 0; i < n; i += CHUNK) {
        const struct deviation_sums chunk =
            sum_chunk(a, i, n - i < CHUNK ? n : i + CHUNK);
        all.sum += chunk.sum;
        all.square += chunk.square;
    }
    return all;
}

/* Where float32 loses too much: every step in double. */
INLINE struct deviation_sums double_sums(struct deviations a, int64_t n)
{
    struct deviation_sums all = {0, 0};
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        float value[BLOCK];
        store32(value, load_source(a.dtype, HALVES, a.row, i, part, a.is_sum));
        for (int64_t j = 0; j < part; j++) {
            const double z = (double)value[j] - (double)a.from;
            all.sum += z;
            all.square += z * z;
        }
    }
    return all;
}

/* What is left of the mean beside from, and the variance, of n elements. */
struct moments {
    double rest, variance;
};

INLINE struct moments moments_of(struct deviation_sums sums, int64_t n)
{
    const double rest = sums.sum / (double)n;
    const double variance = sums.square / (double)n - rest * rest;
    return (struct moments){rest, variance < 0 ? 0 : variance};
}

/* Did no square leave float32's range, no small one matter, and does so much
 * of the squares remain that what they lost does not? */
INLINE bool is_good(struct deviation_sums sums, struct moments found,
                    double eps)
{
    const double mean = found.variance + eps;
    return sums.square <= 0x1p127 && mean >= 0x1p-100 &&
           found.rest * found.rest <= mean;
}

/* Exact where all elements are equal. */
INLINE float mean_of_first(struct deviations a, int64_t n)
{
    const int64_t here = n < BLOCK ? n : BLOCK;
    const block z = load_source(a.dtype, HALVES, a.row, 0, here, a.is_sum);
    const doubles lo = widen_floats(z.lo), hi = widen_floats(z.hi);
    return (float)((sum_of_doubles(lo) + sum_of_doubles(hi)) / (double)here);
}

/* Finds what it can from a.from. */
INLINE bool try_moments(struct deviations a, int64_t n, double eps,
                        struct moments *found)
{
    const struct deviation_sums sums = sum_row(a, n);
    *found = moments_of(sums, n);
    return is_good(sums, *found, eps);
}

INLINE void deviation_of(struct deviations a, int64_t n, double eps, float *s,
                         struct cpu_mean *mean)
{
    struct deviations first = a;
    struct moments found;
    first.is_first = true;
    a.from = mean_of_first(a, n);
    bool is_found = try_moments(a, n, eps, &found);
    if (UNLIKELY(!is_found)) {
        a.from = (float)(sum_row(first, n).sum / (double)n);
        is_found = try_moments(a, n, eps, &found);
    }
    if (UNLIKELY(!is_found)) {
        a.from = 0;
        a.from = (float)(double_sums(a, n).sum / (double)n);
        found = moments_of(double_sums(a, n), n);
    }
    *s = (float)(1 / sqrt(found.variance + eps));
    *mean = (struct cpu_mean){a.from, (float)found.rest};
}

/*
 * Rows of at most CHUNK elements: each step of all of them comes before the
 * next one, so that none waits for its own quotients and square root, and eight
 * share the steps of their sums over lanes.
 */
struct deviation_steps {
    doubles lanes[2][8];
    double sum[2][CPU_ROWS];
    float from[CPU_ROWS];
};

INLINE void add_up(struct deviation_steps *steps, int64_t row, int64_t n_rows,
                   doubles first, doubles second)
{
    const int64_t i = row % 8;
    steps->lanes[0][i] = first;
    steps->lanes[1][i] = second;
    if (i == 7) {
        sums_of_doubles8(steps->sum[0] + row - 7, steps->lanes[0]);
        sums_of_doubles8(steps->sum[1] + row - 7, steps->lanes[1]);
    } else if (row >= n_rows / 8 * 8) {
        steps->sum[0][row] = sum_of_doubles(first);
        steps->sum[1][row] = sum_of_doubles(second);
    }
}

static NOINLINE void find_means(struct deviation_steps *steps, int64_t n_rows,
                                int64_t n)
{
    for (int64_t i = 0; i < n_rows; i++)
        steps->from[i] =
            (float)((steps->sum[0][i] + steps->sum[1][i]) / (double)n);
}

/* Are all of them good? */
static NOINLINE bool find_moments(const struct deviation_steps *steps,
                                  int64_t n_rows, int64_t n, double eps,
                                  float *restrict s, float *restrict rest)
{
    int64_t n_good = 0;
    for (int64_t i = 0; i < n_rows; i++) {
        const struct deviation_sums sums = {0 + steps->sum[0][i],
                                            0 + steps->sum[1][i]};
        const struct moments found = moments_of(sums, n);
        n_good += is_good(sums, found, eps);
        s[i] = (float)(1 / sqrt(found.variance + eps));
        rest[i] = (float)found.rest;
    }
    return n_good == n_rows;
}

INLINE bool deviations_by_steps(struct deviations a, int64_t n,
                                const struct cpu_norm_rows *rows, double eps,
                                float *s, struct cpu_mean *mean)
{
    const int64_t here = n < BLOCK ? n : BLOCK;
    struct deviation_steps steps;
    float rest[CPU_ROWS];
    for (int64_t row = 0; row < rows->n; row++) {
        const struct source of = source_at(a.dtype, rows, row, 0, a.is_sum);
        const block z = load_source(a.dtype, HALVES, of, 0, here, a.is_sum);
        add_up(&steps, row, rows->n, widen_floats(z.lo), widen_floats(z.hi));
    }
    find_means(&steps, rows->n, here);
    for (int64_t row = 0; row < rows->n; row++) {
        a.row = source_at(a.dtype, rows, row, 0, a.is_sum);
        a.from = steps.from[row];
        const struct deviation_lanes lanes = chunk_lanes(a, 0, n);
        add_up(&steps, row, rows->n, lanes.sum, lanes.square);
    }
    const bool is_good = find_moments(&steps, rows->n, n, eps, s, rest);
    for (int64_t row = 0; row < rows->n; row++)
        mean[row] = (struct cpu_mean){steps.from[row], rest[row]};
    return is_good;
}

INLINE void deviations_of(enum roped_dtype dtype, bool is_sum, int64_t width,
                          const struct cpu_norm_rows *rows, float eps, float *s,
                          struct cpu_mean *mean)
{
    struct deviations a = {.dtype = dtype, .is_sum = is_sum};
    if (width <= CHUNK &&
        deviations_by_steps(a, width, rows, (double)eps, s, mean))
        return;
    for (int64_t row = 0; row < rows->n; row++) {
        a.row = source_at(dtype, rows, row, 0, is_sum);
        deviation_of(a, width, (double)eps, &s[row], &mean[row]);
    }
}

INLINE void deviations_of_type(enum roped_dtype dtype, int64_t width,
                               const struct cpu_norm_rows *rows, float eps,
                               float *s, struct cpu_mean *mean)
{
    if (rows->residual)
        deviations_of(dtype, true, width, rows, eps, s, mean);
    else
        deviations_of(dtype, false, width, rows, eps, s, mean);
}

void ISA(cpu_inverse_deviation)(enum roped_dtype dtype, int64_t width,
                                const struct cpu_norm_rows *rows, float eps,
                                float *s, struct cpu_mean *mean)
{
    const struct cpu_norm norm = {.width = width};
    const struct cpu_norm_rows own = with_strides(&norm, rows);
    if (dtype == ROPED_F16)
        deviations_of_type(ROPED_F16, width, &own, eps, s, mean);
    else if (dtype == ROPED_BF16)
        deviations_of_type(ROPED_BF16, width, &own, eps, s, mean);
    else
        deviations_of_type(ROPED_F32, width, &own, eps, s, mean);
}
