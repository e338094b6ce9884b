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

/* A row of what is normalised: x, or x + residual. */
struct source {
    const void *x, *residual;
};

INLINE struct source source_at(enum roped_dtype dtype, struct source from,
                               int64_t i, bool is_sum)
{
    return (struct source){at(dtype, from.x, i),
                           is_sum ? at(dtype, from.residual, i) : NULL};
}

INLINE block load_source(enum roped_dtype dtype, enum order order,
                         struct source from, int64_t i, int64_t n, bool is_sum)
{
    block x = load(dtype, order, at(dtype, from.x, i), n);
    if (is_sum)
        x = plus(x, load(dtype, order, at(dtype, from.residual, i), n));
    return x;
}

/* Any order of elements will do: that which costs least. */
INLINE block load_any(enum roped_dtype dtype, struct source from, int64_t i,
                      int64_t n, bool is_sum)
{
    return load_source(dtype, dtype == ROPED_BF16 ? PAIRS : HALVES, from, i, n,
                       is_sum);
}

/* Elements [i, end), at most CHUNK of them. */
INLINE vfloat sum_chunk(enum roped_dtype dtype, struct source from, int64_t i,
                        int64_t end, bool is_sum)
{
    block even = {splat(0), splat(0)}, odd = even;
    for (; i + 2 * BLOCK <= end; i += 2 * BLOCK) {
        add_squares(&even, load_any(dtype, from, i, BLOCK, is_sum));
        add_squares(&odd, load_any(dtype, from, i + BLOCK, BLOCK, is_sum));
    }
    if (i + BLOCK <= end) {
        add_squares(&even, load_any(dtype, from, i, BLOCK, is_sum));
        i += BLOCK;
    }
    if (i < end)
        add_squares(&odd, load_any(dtype, from, i, end - i, is_sum));
    return (even.lo + even.hi) + (odd.lo + odd.hi);
}

INLINE double sum_row(enum roped_dtype dtype, struct source from, int64_t n,
                      bool is_sum)
{
    doubles sum =
        widen_floats(sum_chunk(dtype, from, 0, n < CHUNK ? n : CHUNK, is_sum));
    for (int64_t i = CHUNK; i < n; i += CHUNK) {
        int64_t end = n - i < CHUNK ? n : i + CHUNK;
        doubles next = widen_floats(sum_chunk(dtype, from, i, end, is_sum));
        sum = (doubles){sum.lo + next.lo, sum.hi + next.hi};
    }
    return sum_of_doubles(sum);
}

/* Where squares leave float32's range: every step in double. */
INLINE double double_sum(enum roped_dtype dtype, struct source from, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        float value[BLOCK];
        store32(value, from.residual
                           ? load_source(dtype, HALVES, from, i, part, true)
                           : load_source(dtype, HALVES, from, i, part, false));
        for (int64_t j = 0; j < part; j++)
            sum += (double)value[j] * (double)value[j];
    }
    return sum;
}

/* The loops over rows, for each type. */
struct sums {
    struct source from;
    int64_t n_rows, n;
    double *sum;
};

INLINE void sum_rows(enum roped_dtype dtype, const struct sums *a)
{
    for (int64_t row = 0; row < a->n_rows; row++)
        if (a->from.residual)
            a->sum[row] = sum_row(
                dtype, source_at(dtype, a->from, row * a->n, true), a->n, true);
        else
            a->sum[row] =
                sum_row(dtype, source_at(dtype, a->from, row * a->n, false),
                        a->n, false);
    for (int64_t row = 0; row < a->n_rows; row++)
        if (UNLIKELY(!(a->sum[row] >= 0x1p-100 && a->sum[row] <= 0x1p127)))
            a->sum[row] = double_sum(
                dtype,
                source_at(dtype, a->from, row * a->n, a->from.residual != NULL),
                a->n);
}

void ISA(cpu_inverse_rms)(enum roped_dtype dtype, const void *x,
                          const void *residual, int64_t n_rows, int64_t n,
                          float eps, float *s)
{
    double sum[CPU_ROWS];
    const struct sums a = {{x, residual}, n_rows, n, sum};
    if (dtype == ROPED_F16)
        sum_rows(ROPED_F16, &a);
    else if (dtype == ROPED_BF16)
        sum_rows(ROPED_BF16, &a);
    else
        sum_rows(ROPED_F32, &a);
    for (int64_t row = 0; row < n_rows; row++)
        s[row] = (float)(1 / sqrt(sum[row] / (double)n + (double)eps));
}

/* ---------------------------------------------------------------- weights */

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

void ISA(cpu_fill_weight)(enum roped_dtype dtype, float *w, const void *weight,
                          float bias, int64_t n)
{
    if (dtype == ROPED_F32)
        add_bias(ROPED_F32, w, weight, bias, n);
    else if (dtype == ROPED_F16)
        add_bias(ROPED_F16, w, weight, bias, n);
    else if (dtype == ROPED_BF16)
        add_bias(ROPED_BF16, w, weight, bias, n);
    else
        for (int64_t i = 0; i < n; i++)
            w[i] = bias + 1;
}

/* ------------------------------------------------------------------- rows */

/*
 * Rows are worked on in parts of so many columns, whose weights stay in the
 * first-level cache beside the rows that pass through it. Whole groups.
 */
enum { COLUMNS = 1024 };

/* Columns [first, first + n) of some rows. */
struct norm_part {
    const struct cpu_norm *norm;
    const struct cpu_norm_rows *rows;
    const float *weight; /* bias + weight, from column first on */
    int64_t first, n;
    float *largest; /* per row, so far */
    const struct cpu_fp8_scale *scale;
    int64_t group_size;
    float *scales;
};

/* The norm of up to a block of values. */
INLINE block normal_block(enum roped_dtype from, block z, const float *weight,
                          float s, int64_t n, bool is_rounded)
{
    const block w = load(ROPED_F32, HALVES, weight, n);
    block v = times(z, splat(s));
    return product(is_rounded ? round_to(from, v) : v, w);
}

INLINE bool is_fp8(enum roped_dtype dtype)
{
    return size_of(dtype) == 1;
}

/* What a loop over blocks is made for. */
struct norm_form {
    bool is_rounded, is_sum, is_streamed;
};

/* What a row is multiplied by before the weight and divided by after it. */
struct factors {
    float s, divisor, inverse; /* 1 / divisor */
};

/* inverse is 0 where it, or a product with it, would lose bits. */
INLINE struct factors factors_of(float s, float divisor)
{
    const bool is_moderate = divisor >= 0x1p-100f && divisor <= 0x1p100f;
    return (struct factors){s, divisor, is_moderate ? 1 / divisor : 0};
}

/*
 * Values whose FP8 codes are those of v / divisor. Two roundings put
 * v * inverse at most 3 units in the last place from the quotient: the codes
 * differ only where they change in between, and there it is divided.
 */
INLINE block quotient(enum roped_dtype to, block v, struct factors of)
{
    block q = times(v, splat(of.inverse));
    if (UNLIKELY(is_near_edge(q, to == ROPED_F8_E4M3 ? 3 : 2)))
        q = (block){v.lo / splat(of.divisor), v.hi / splat(of.divisor)};
    return q;
}

/* Block i of a row that starts at element row. */
INLINE void normalize_block(enum roped_dtype from, enum roped_dtype to,
                            const struct norm_part *a,
                            const struct cpu_norm_rows *rows, int64_t row_at,
                            int64_t i, struct factors of, int64_t n,
                            struct norm_form form)
{
    const int64_t element = row_at + a->first + i;
    block z = load(from, HALVES, at(from, rows->x, element), n);
    if (form.is_sum)
        z = plus(z, load(from, HALVES, at(from, rows->residual, element), n));
    block v = normal_block(from, z, a->weight + i, of.s, n, form.is_rounded);
    if (is_fp8(to))
        v = quotient(to, v, of);
    if (form.is_sum)
        store(from, HALVES, place(from, rows->sum, element), z, 1, n,
              form.is_streamed);
    store(to, HALVES, place(to, rows->y, element), v, 1, n, form.is_streamed);
}

INLINE void normalize_rows(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *part, struct norm_form form)
{
    const struct cpu_norm norm = *part->norm; /* which no store can change */
    const struct cpu_norm_rows rows = *part->rows;
    struct norm_part a = *part;
    struct norm_form rest = form;
    a.norm = &norm;
    rest.is_streamed = false;
    for (int64_t row = 0; row < rows.n; row++) {
        const int64_t row_at = row * norm.width;
        const int64_t next = row_at + rows.n * norm.width + a.first;
        const struct factors of =
            factors_of(rows.s[row], is_fp8(to) ? rows.divisor[row] : 1);
        int64_t i = 0;
        for (; i + BLOCK <= a.n; i += BLOCK) {
            prefetch(at(from, rows.x, next + i));
            if (form.is_sum)
                prefetch(at(from, rows.residual, next + i));
            normalize_block(from, to, &a, &rows, row_at, i, of, BLOCK, form);
        }
        if (i < a.n)
            normalize_block(from, to, &a, &rows, row_at, i, of, a.n - i, rest);
    }
}

/* Do whole blocks at aligned addresses make up the rows, but for their ends? */
static bool can_stream(const struct cpu_norm *norm,
                       const struct cpu_norm_rows *rows)
{
    return norm->is_streamed && is_aligned(norm->to, rows->y, 0) &&
           is_aligned(norm->to, NULL, norm->width) &&
           (!rows->residual || is_aligned(norm->to, rows->sum, 0));
}

INLINE void normalize_form(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *a, bool is_rounded,
                           bool is_sum)
{
    if (can_stream(a->norm, a->rows))
        normalize_rows(from, to, a,
                       (struct norm_form){is_rounded, is_sum, true});
    else
        normalize_rows(from, to, a,
                       (struct norm_form){is_rounded, is_sum, false});
}

INLINE void normalize_part(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *a)
{
    const bool is_sum = from == to && a->rows->residual;
    if (a->norm->rounds_product && is_sum)
        normalize_form(from, to, a, true, true);
    else if (a->norm->rounds_product)
        normalize_form(from, to, a, true, false);
    else if (is_sum)
        normalize_form(from, to, a, false, true);
    else
        normalize_form(from, to, a, false, false);
}

INSTANCES(normalize_part, norm_part)

/* Columns part by part: work is a switch over types with a part. */
#define FOR_PARTS(part, work)                                                  \
    for (; (part).first < (part).norm->width; (part).first += COLUMNS) {       \
        fill_part(&(part), w);                                                 \
        work                                                                   \
    }

static void fill_part(struct norm_part *part, float *w)
{
    const struct cpu_norm *norm = part->norm;
    const enum roped_dtype dtype = norm->weight_dtype;
    int64_t left = norm->width - part->first;
    part->n = left < COLUMNS ? left : COLUMNS;
    ISA(cpu_fill_weight)
    (dtype, w, dtype ? at(dtype, norm->weight, part->first) : NULL, norm->bias,
     part->n);
}

void ISA(cpu_normalize)(const struct cpu_norm *norm,
                        const struct cpu_norm_rows *rows)
{
    float w[COLUMNS];
    struct norm_part a = {.norm = norm, .rows = rows, .weight = w};
    FOR_PARTS(a, CALL_INSTANCE(norm->from, norm->to, normalize_part, &a))
}

/* ----------------------------------------------------------------- scales */

INLINE void add_largest(block *largest, block v)
{
    largest->lo = larger_magnitude(v.lo, largest->lo);
    largest->hi = larger_magnitude(v.hi, largest->hi);
}

/* The largest |y| of elements [i, end) of a part of a row that starts at
 * element row. */
INLINE float largest_norm(enum roped_dtype from, const struct norm_part *a,
                          int64_t row_at, int64_t i, int64_t end, float s,
                          bool is_rounded)
{
    block largest = {splat(0), splat(0)};
    for (; i < end; i += BLOCK) {
        const int64_t n = end - i < BLOCK ? end - i : BLOCK;
        const void *x = at(from, a->rows->x, row_at + a->first + i);
        add_largest(&largest, normal_block(from, load(from, HALVES, x, n),
                                           a->weight + i, s, n, is_rounded));
    }
    return largest_lane(larger_magnitude(largest.lo, largest.hi));
}

INLINE void largest_of_rows(enum roped_dtype from, const struct norm_part *part,
                            bool is_rounded)
{
    const struct norm_part a = *part;
    for (int64_t row = 0; row < a.rows->n; row++) {
        float largest = largest_norm(from, &a, row * a.norm->width, 0, a.n,
                                     a.rows->s[row], is_rounded);
        a.largest[row] = largest > a.largest[row] ? largest : a.largest[row];
    }
}

INLINE void largest_of_part(enum roped_dtype from, const struct norm_part *a)
{
    if (a->norm->rounds_product)
        largest_of_rows(from, a, true);
    else
        largest_of_rows(from, a, false);
}

/* The loops that are made once per type of x. */
#define CALL_OF_TYPE(dtype, loop, ...)                                         \
    if ((dtype) == ROPED_F16)                                                  \
        loop(ROPED_F16, __VA_ARGS__);                                          \
    else if ((dtype) == ROPED_BF16)                                            \
        loop(ROPED_BF16, __VA_ARGS__);                                         \
    else                                                                       \
        loop(ROPED_F32, __VA_ARGS__);

void ISA(cpu_largest)(const struct cpu_norm *norm,
                      const struct cpu_norm_rows *rows, float *largest)
{
    float w[COLUMNS];
    struct norm_part a = {
        .norm = norm, .rows = rows, .weight = w, .largest = largest};
    memset(largest, 0, (size_t)rows->n * sizeof *largest);
    FOR_PARTS(a, CALL_OF_TYPE(norm->from, largest_of_part, &a))
}

/* Groups of a part of a row: first all their scales, then all values. */
INLINE void write_groups_of_row(enum roped_dtype from, enum roped_dtype to,
                                const struct norm_part *a,
                                const struct cpu_norm_rows *rows, int64_t row,
                                struct norm_form form)
{
    const int64_t row_at = row * a->norm->width, size = a->group_size;
    const int64_t next = row_at + rows->n * a->norm->width + a->first;
    const float s = rows->s[row];
    float *scales = a->scales + (row_at + a->first) / size;
    for (int64_t i = 0; i < a->n; i += size)
        scales[i / size] = cpu_fp8_scale_of(
            a->scale,
            largest_norm(from, a, row_at, i, i + size, s, form.is_rounded));
    for (int64_t i = 0; i < a->n; i += size) {
        const struct factors of = factors_of(s, scales[i / size]);
        for (int64_t j = i; j < i + size; j += BLOCK) {
            prefetch(at(from, rows->x, next + j));
            normalize_block(from, to, a, rows, row_at, j, of, BLOCK, form);
        }
    }
}

INLINE void write_groups(enum roped_dtype from, enum roped_dtype to,
                         const struct norm_part *part, bool is_rounded,
                         bool is_streamed)
{
    const struct cpu_norm norm = *part->norm; /* which no store can change */
    const struct cpu_norm_rows rows = *part->rows;
    struct norm_part a = *part;
    a.norm = &norm;
    a.rows = &rows;
    for (int64_t row = 0; row < rows.n; row++)
        write_groups_of_row(from, to, &a, &rows, row,
                            (struct norm_form){is_rounded, false, is_streamed});
}

INLINE void groups_of_part(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *a)
{
    const bool is_streamed = can_stream(a->norm, a->rows);
    if (!is_fp8(to))
        return;
    if (a->norm->rounds_product && is_streamed)
        write_groups(from, to, a, true, true);
    else if (a->norm->rounds_product)
        write_groups(from, to, a, true, false);
    else if (is_streamed)
        write_groups(from, to, a, false, true);
    else
        write_groups(from, to, a, false, false);
}

INSTANCES(groups_of_part, norm_part)

void ISA(cpu_normalize_groups)(const struct cpu_norm *norm,
                               const struct cpu_norm_rows *rows,
                               int64_t group_size,
                               const struct cpu_fp8_scale *scale, float *scales)
{
    float w[COLUMNS];
    struct norm_part a = {.norm = norm,
                          .rows = rows,
                          .weight = w,
                          .scale = scale,
                          .group_size = group_size,
                          .scales = scales};
    FOR_PARTS(a, CALL_INSTANCE(norm->from, norm->to, groups_of_part, &a))
}
