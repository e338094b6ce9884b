/*
 * rows_norm.c - the root mean square of rows, and rows divided by it.
 */
#include "cpu/rows_norm.h"

#include <math.h>

/*
 * Squares are added in float32, lane by lane in two chains of 16, and these
 * sums in double: so few additions in a row keep the error below 1e-6.
 */
enum { CHUNK = 2 * 16 * BLOCK };

/* n elements, at most CHUNK, of bfloat16: as many squares per lane and chain as
 * below. */
INLINE vfloat sum_bf16_chunk(const uint16_t *x, int64_t n)
{
    vfloat sum[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (; n >= 4 * BLOCK; n -= 4 * BLOCK, x += 4 * BLOCK)
        for (int j = 0; j < 4; j++)
            sum[j] = add_bf16_squares(sum[j], load16(x + j * BLOCK));
    for (int j = 0; j < 4; j++, n -= BLOCK)
        if (n >= BLOCK)
            sum[j] = add_bf16_squares(sum[j], load16(x + j * BLOCK));
        else if (n > 0)
            sum[j] = add_bf16_squares(sum[j], load16_part(x + j * BLOCK, n));
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Elements [i, end), at most CHUNK of them. */
INLINE vfloat sum_chunk(enum roped_dtype dtype, struct source from, int64_t i,
                        int64_t end, bool is_sum)
{
    /* any order will do: that which costs least */
    const enum order order = dtype == ROPED_BF16 ? PAIRS : HALVES;
    block even = {splat(0), splat(0)}, odd = even;
    if (dtype == ROPED_BF16 && !is_sum && UNROLLS && end - i == CHUNK)
        return sum_bf16_chunk((const uint16_t *)from.x + i, CHUNK);
    if (dtype == ROPED_BF16 && !is_sum)
        return sum_bf16_chunk((const uint16_t *)from.x + i, end - i);
    for (; i + 2 * BLOCK <= end; i += 2 * BLOCK) {
        add_squares(&even, load_source(dtype, order, from, i, BLOCK, is_sum));
        add_squares(&odd,
                    load_source(dtype, order, from, i + BLOCK, BLOCK, is_sum));
    }
    if (i + BLOCK <= end) {
        add_squares(&even, load_source(dtype, order, from, i, BLOCK, is_sum));
        i += BLOCK;
    }
    if (i < end)
        add_squares(&odd, load_source(dtype, order, from, i, end - i, is_sum));
    return (even.lo + even.hi) + (odd.lo + odd.hi);
}

INLINE doubles sum_row(enum roped_dtype dtype, struct source from, int64_t n,
                       bool is_sum)
{
    doubles sum =
        widen_floats(sum_chunk(dtype, from, 0, n < CHUNK ? n : CHUNK, is_sum));
    for (int64_t i = CHUNK; i < n; i += CHUNK) {
        int64_t end = n - i < CHUNK ? n : i + CHUNK;
        doubles next = widen_floats(sum_chunk(dtype, from, i, end, is_sum));
        sum = (doubles){sum.lo + next.lo, sum.hi + next.hi};
    }
    return sum;
}

/* Where squares leave float32's range: every step in double. */
INLINE double double_sum(enum roped_dtype dtype, struct source from, int64_t n,
                         bool is_sum)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        float value[BLOCK];
        store32(value, is_sum
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
    int64_t n_rows, n, x_stride, residual_stride;
    double *sum;
};

INLINE struct source sums_at(enum roped_dtype dtype, const struct sums *a,
                             int64_t row, bool is_sum)
{
    return (struct source){
        at(dtype, a->from.x, row * a->x_stride),
        is_sum ? at(dtype, a->from.residual, row * a->residual_stride) : NULL};
}

/* Sums over lanes of eight rows share their steps. */
INLINE void sum_some(enum roped_dtype dtype, const struct sums *a, bool is_sum)
{
    int64_t row = 0;
    for (; row + 8 <= a->n_rows; row += 8) {
        doubles lanes[8];
        for (int i = 0; i < 8; i++)
            lanes[i] = sum_row(dtype, sums_at(dtype, a, row + i, is_sum), a->n,
                               is_sum);
        sums_of_doubles8(a->sum + row, lanes);
    }
    for (; row < a->n_rows; row++)
        a->sum[row] = sum_of_doubles(
            sum_row(dtype, sums_at(dtype, a, row, is_sum), a->n, is_sum));
}

INLINE void sum_rows(enum roped_dtype dtype, const struct sums *a)
{
    const bool is_sum = a->from.residual != NULL;
    if (is_sum)
        sum_some(dtype, a, true);
    else
        sum_some(dtype, a, false);
    for (int64_t row = 0; row < a->n_rows; row++)
        if (UNLIKELY(!(a->sum[row] >= 0x1p-100 && a->sum[row] <= 0x1p127)))
            a->sum[row] =
                double_sum(dtype, sums_at(dtype, a, row, is_sum), a->n, is_sum);
}

/* Its arguments come one by one: the loops have no register to spare, and what
 * a caller has just stored is slow to load in pairs. */
static NOINLINE void inverse_rms(enum roped_dtype dtype, const void *x,
                                 const void *residual, int64_t n_rows,
                                 int64_t n, float eps, float *s,
                                 int64_t x_stride, int64_t residual_stride)
{
    double sum[CPU_ROWS];
    const struct sums a = {{x, residual}, n_rows,          n,
                           x_stride,      residual_stride, sum};
    if (dtype == ROPED_F16)
        sum_rows(ROPED_F16, &a);
    else if (dtype == ROPED_BF16)
        sum_rows(ROPED_BF16, &a);
    else
        sum_rows(ROPED_F32, &a);
    const double count = (double)n, epsilon = (double)eps;
    for (int64_t row = 0; row < n_rows; row++)
        s[row] = (float)(1 / sqrt(sum[row] / count + epsilon));
}

void ISA(cpu_inverse_rms)(enum roped_dtype dtype, int64_t width,
                          const struct cpu_norm_rows *rows, float eps, float *s)
{
    const struct cpu_norm_strides stride = rows->stride;
    inverse_rms(dtype, rows->x, rows->residual, rows->n, width, eps, s,
                stride.x ? stride.x : width,
                stride.residual ? stride.residual : width);
}

/* ------------------------------------------------------------------- sums */

INLINE void add_rows(enum roped_dtype dtype, int64_t width,
                     const struct cpu_norm_rows *some, bool may_stream)
{
    const struct cpu_norm_rows rows = *some; /* which no store can change */
    const enum order order = order_of(dtype);
    for (int64_t row = 0; row < rows.n; row++) {
        const struct source from = source_at(dtype, &rows, row, 0, true);
        const struct source next =
            source_at(dtype, &rows, row + rows.n, 0, true);
        void *sum = place(dtype, rows.sum, row * rows.stride.sum);
        const bool is_streamed = may_stream && is_aligned(dtype, sum, 0) &&
                                 is_aligned(dtype, NULL, width);
        for (int64_t i = 0; i < width; i += BLOCK) {
            const int64_t n = width - i < BLOCK ? width - i : BLOCK;
            const block z = load_source(dtype, order, from, i, n, true);
            prefetch_next(dtype, next, i, width, true);
            store(dtype, order, place(dtype, sum, i), z, 1, n, is_streamed);
        }
    }
}

void ISA(cpu_add)(enum roped_dtype dtype, int64_t width,
                  const struct cpu_norm_rows *rows, bool is_streamed)
{
    const struct cpu_norm norm = {.width = width};
    const struct cpu_norm_rows own = with_strides(&norm, rows);
    if (dtype == ROPED_F16)
        add_rows(ROPED_F16, width, &own, is_streamed);
    else if (dtype == ROPED_BF16)
        add_rows(ROPED_BF16, width, &own, is_streamed);
    else
        add_rows(ROPED_F32, width, &own, is_streamed);
}

/* ---------------------------------------------------------------- weights */

/* Whole blocks are written. */
INLINE void add_bias(enum roped_dtype dtype, enum order order, float *w,
                     const void *weight, float bias, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        block x = load(dtype, order, at(dtype, weight, i), part);
        store32(w + i, (block){splat(bias) + x.lo, splat(bias) + x.hi});
    }
}

INLINE void fill_ordered(enum roped_dtype dtype, enum order order, float *w,
                         const void *weight, float bias, int64_t n)
{
    if (dtype == ROPED_F32)
        add_bias(ROPED_F32, order, w, weight, bias, n);
    else if (dtype == ROPED_F16)
        add_bias(ROPED_F16, order, w, weight, bias, n);
    else if (dtype == ROPED_BF16)
        add_bias(ROPED_BF16, order, w, weight, bias, n);
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            store32(w + i, (block){splat(bias + 1), splat(bias + 1)});
}

void ISA(cpu_fill_weight)(enum roped_dtype of, enum roped_dtype dtype, float *w,
                          const void *weight, float bias, int64_t n)
{
    if (order_of(of) == PAIRS)
        fill_ordered(dtype, PAIRS, w, weight, bias, n);
    else
        fill_ordered(dtype, HALVES, w, weight, bias, n);
}

/* ------------------------------------------------------------------- rows */

/* No shift is a weight of 1, less 1. */
static void fill_shift(struct norm_part *a)
{
    const struct cpu_norm *norm = a->norm;
    const enum roped_dtype dtype = norm->shift_dtype;
    const void *shift = dtype ? at(dtype, norm->shift, a->first) : NULL;
    fill_ordered(dtype, order_of(norm->from), a->shift, shift, dtype ? 0 : -1,
                 a->n);
}

void ISA(cpu_fill_part)(struct norm_part *a)
{
    const struct cpu_norm *norm = a->norm;
    const enum roped_dtype dtype = norm->weight_dtype;
    const void *weight = dtype ? at(dtype, norm->weight, a->first) : NULL;
    int64_t left = norm->width - a->first;
    a->n = left < COLUMNS ? left : COLUMNS;
    if (order_of(norm->from) == PAIRS && !a->is_spread)
        fill_ordered(dtype, PAIRS, a->weight, weight, norm->bias, a->n);
    else
        fill_ordered(dtype, HALVES, a->weight, weight, norm->bias, a->n);
    if (a->shift)
        fill_shift(a);
}

/* What a loop over blocks is made for, all constants but is_streamed: that loop
 * twice is twice the code, and no faster. */
struct norm_form {
    enum roped_dtype from, to;
    bool is_rounded, is_sum, is_streamed;
    bool is_centred; /* rows have means */
    bool is_added, rounds_norm;
};

/* A part of a row. */
struct norm_row {
    struct source from;
    void *sum, *y;
    float s;
    struct cpu_mean mean;
    struct lines *sum_lines, *y_lines; /* where rows are streamed so */
};

/* Is a row streamed by lines that are no blocks? */
INLINE bool has_lines(struct norm_form form)
{
    return HAS_JOINED && form.is_streamed && size_of(form.to) == 2;
}

INLINE void store_part(enum roped_dtype dtype, struct norm_form form,
                       struct lines *lines, void *to, int64_t i, int64_t n,
                       block x)
{
    const enum order order = order_of(form.from);
    if (has_lines(form))
        store_block(dtype, order, lines, place(dtype, to, i), x, i == 0);
    else
        store(dtype, order, place(dtype, to, i), x, 1, n, form.is_streamed);
}

/* Elements [i, i + n), at most a block, of a part of a row: from z. */
INLINE void store_normal(struct norm_form form, const struct norm_part *a,
                         struct norm_row row, int64_t i, int64_t n, block z)
{
    const enum order order = order_of(form.from);
    block v =
        form.is_centred
            ? layer_block(form.to, z, row.mean, a->weight + i, a->shift + i,
                          row.s, form.is_rounded)
            : normal_block(form.to, z, a->weight + i, row.s, form.is_rounded);
    if (form.is_sum)
        store_part(form.from, form, row.sum_lines, row.sum, i, n, z);
    if (form.is_added && form.rounds_norm)
        v = round_to(form.to, v);
    if (form.is_added)
        v = plus(v, load(form.to, order, at(form.to, row.from.residual, i), n));
    store_part(form.to, form, row.y_lines, row.y, i, n, v);
}

INLINE block load_row(struct norm_form form, struct norm_row row, int64_t i,
                      int64_t n)
{
    return load_source(form.from, order_of(form.from), row.from, i, n,
                       form.is_sum);
}

/* Elements [i, i + n), at most a block. */
INLINE void normalize_block(struct norm_form form, const struct norm_part *a,
                            struct norm_row row, int64_t i, int64_t n)
{
    store_normal(form, a, row, i, n, load_row(form, row, i, n));
}

/* Two blocks, loaded before either is stored: with fewer instructions. */
INLINE void normalize_two(struct norm_form form, const struct norm_part *a,
                          struct norm_row row, int64_t i)
{
    const block z[2] = {load_row(form, row, i, BLOCK),
                        load_row(form, row, i + BLOCK, BLOCK)};
    store_normal(form, a, row, i, BLOCK, z[0]);
    store_normal(form, a, row, i + BLOCK, BLOCK, z[1]);
}

/* May the loop begin at any element? A block has more than the part of a line
 * that is before the first whole one, and weights that follow each other. */
INLINE bool takes_any_start(struct norm_form form)
{
    return form.from == ROPED_F32 && form.to == ROPED_F32 &&
           BLOCK * sizeof(float) >= STREAM_ALIGNMENT;
}

/* Behind the blocks of a row. The row after the next one is asked for. */
INLINE void finish_lines(struct norm_form form, struct norm_row row, int64_t i,
                         int64_t n, const struct cpu_norm_strides *stride)
{
    store_last(form.to, row.y_lines, place(form.to, row.y, i));
    prefetch_ends(form.to, row.y_lines, place(form.to, row.y, 2 * stride->y),
                  n);
    if (!form.is_sum)
        return;
    store_last(form.to, row.sum_lines, place(form.to, row.sum, i));
    prefetch_ends(form.to, row.sum_lines,
                  place(form.to, row.sum, 2 * stride->sum), n);
}

INLINE void normalize_rows(struct norm_form form, const struct norm_part *part)
{
    const struct cpu_norm norm = *part->norm; /* which no store can change */
    const struct cpu_norm_rows rows = *part->rows;
    const bool has_two = form.is_sum || form.is_added;
    struct norm_part a = *part;
    struct norm_form rest = form;
    int64_t head = rows.head;
    a.norm = &norm;
    rest.is_streamed = false;
    for (int64_t j = 0; j < rows.n; j++) {
        a.weight = part->weight + head * norm.room;
        if (form.is_centred)
            a.shift = part->shift + head * norm.room;
        struct norm_row row = {
            .from = source_at(form.from, &rows, j, a.first, has_two),
            .sum = form.is_sum ? place(form.from, rows.sum,
                                       j * rows.stride.sum + a.first)
                               : NULL,
            .y = place(form.to, rows.y, j * rows.stride.y + a.first),
            .s = rows.s[j]};
        struct lines y_lines = lines_of(form.to, row.y);
        struct lines sum_lines = lines_of(form.to, row.sum);
        row.y_lines = &y_lines;
        row.sum_lines = &sum_lines;
        if (form.is_centred)
            row.mean = rows.mean[j];
        const struct source next =
            source_at(form.from, &rows, j + rows.n, a.first, has_two);
        int64_t i = 0;
        if (takes_any_start(form) && form.is_streamed)
            i = to_aligned(form.to, row.y, a.n);
        if (i > 0)
            normalize_block(rest, &a, row, 0, i);
        for (; UNROLLS && i + 2 * BLOCK <= a.n; i += 2 * BLOCK) {
            prefetch_next(form.from, next, i, a.n, has_two);
            prefetch_next(form.from, next, i + BLOCK, a.n, has_two);
            normalize_two(form, &a, row, i);
        }
        for (; i + BLOCK <= a.n; i += BLOCK) {
            prefetch_next(form.from, next, i, a.n, has_two);
            normalize_block(form, &a, row, i, BLOCK);
        }
        if (has_lines(form) && i > 0)
            finish_lines(form, row, i, a.n, &rows.stride);
        if (i < a.n)
            normalize_block(rest, &a, row, i, a.n - i);
        head = head + 1 < norm.n_heads ? head + 1 : 0;
    }
}

/* Do whole lines of y and of the sums begin at the same elements? */
INLINE bool has_same_lines(struct norm_form form,
                           const struct cpu_norm_rows *rows)
{
    const uintptr_t apart = (uintptr_t)rows->y - (uintptr_t)rows->sum;
    return !form.is_sum ||
           (apart % STREAM_ALIGNMENT == 0 &&
            is_aligned(form.to, NULL, rows->stride.y - rows->stride.sum));
}

/* Narrow rows have hardly any whole lines. */
INLINE bool can_stream_form(struct norm_form form, const struct norm_part *a)
{
    enum { NARROWEST = 8 * BLOCK };
    if (HAS_JOINED && size_of(form.to) == 2 && a->norm->width >= NARROWEST)
        return a->norm->is_streamed;
    if (takes_any_start(form))
        return a->norm->is_streamed && has_same_lines(form, a->rows);
    return can_stream(a->norm, a->rows);
}

INLINE void normalize_form(struct norm_form form, const struct norm_part *a)
{
    form.is_streamed = can_stream_form(form, a);
    form.rounds_norm = a->norm->rounds_norm;
    normalize_rows(form, a);
}

INLINE void centre_part(enum roped_dtype from, enum roped_dtype to,
                        const struct norm_part *a)
{
    struct norm_form form = {.from = from, .to = to, .is_centred = true};
    const bool is_rounded = to != ROPED_F32 && a->norm->rounds_product;
    const bool is_sum = from == to && a->rows->residual != NULL;
    struct norm_form rounded = form, sum = form, rounded_sum = form;
    rounded.is_rounded = rounded_sum.is_rounded = true;
    sum.is_sum = rounded_sum.is_sum = true;
    if (is_rounded && is_sum)
        normalize_form(rounded_sum, a);
    else if (is_rounded)
        normalize_form(rounded, a);
    else if (is_sum)
        normalize_form(sum, a);
    else
        normalize_form(form, a);
}

INLINE void normalize_part(enum roped_dtype from, enum roped_dtype to,
                           const struct norm_part *a)
{
    const bool is_added = from == to && a->norm->is_added;
    const bool is_sum = from == to && a->rows->residual;
    const struct norm_form added = {.from = from, .to = to, .is_added = true};
    struct norm_form rounded_added = added;
    rounded_added.is_rounded = true;
    if (size_of(to) == 1)
        return;
    if (a->rows->mean)
        centre_part(from, to, a);
    else if (is_added && a->norm->rounds_product)
        normalize_form(rounded_added, a);
    else if (is_added)
        normalize_form(added, a);
    else if (a->norm->rounds_product && is_sum)
        normalize_form((struct norm_form){from, to, true, true}, a);
    else if (a->norm->rounds_product)
        normalize_form((struct norm_form){from, to, true, false}, a);
    else if (is_sum)
        normalize_form((struct norm_form){from, to, false, true}, a);
    else
        normalize_form((struct norm_form){from, to, false, false}, a);
}

INSTANCES(normalize_part, norm_part)

void ISA(cpu_normalize)(const struct cpu_norm *norm,
                        const struct cpu_norm_rows *rows)
{
    /* a last block may begin at any element */
    _Alignas(64) float w[COLUMNS + BLOCK], shift[COLUMNS + BLOCK];
    const struct cpu_norm_rows own = with_strides(norm, rows);
    struct norm_part a = {.norm = norm,
                          .rows = &own,
                          .weight = w,
                          .shift = rows->mean ? shift : NULL};
    if (roped_dtype_bytes(norm->to) == 1) {
        ISA(cpu_normalize_fp8)(norm, &own);
    } else if (norm->n_heads > 0) {
        a.n = norm->width;
        a.weight = norm->head_weight;
        a.shift = norm->head_shift;
        CALL_INSTANCE(norm->from, norm->to, normalize_part, &a)
    } else {
        FOR_PARTS(a, CALL_INSTANCE(norm->from, norm->to, normalize_part, &a))
    }
}
