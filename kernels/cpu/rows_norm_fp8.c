/*
 * rows_norm_fp8.c - norms divided by a scale, given or their own, into FP8.
 */
#include "cpu/rows_norm.h"

enum {
    LARGEST_GROUP = 128,
    MOST_BLOCKS = LARGEST_GROUP / BLOCK,
    MOST_GROUPS = COLUMNS / (LARGEST_GROUP / 2),
    STEP = LANES < 16 ? 2 * BLOCK : 4 * BLOCK /* as registers allow */
};

/* The loops that are made once per type of x. */
#define CALL_OF_TYPE(dtype, loop, ...)                                         \
    if ((dtype) == ROPED_F16)                                                  \
        loop(ROPED_F16, __VA_ARGS__);                                          \
    else if ((dtype) == ROPED_BF16)                                            \
        loop(ROPED_BF16, __VA_ARGS__);                                         \
    else                                                                       \
        loop(ROPED_F32, __VA_ARGS__);

/* ---------------------------------------------------------------- largest */

INLINE void add_largest(block *largest, block v)
{
    largest->lo = larger_magnitude(v.lo, largest->lo);
    largest->hi = larger_magnitude(v.hi, largest->hi);
}

INLINE float largest_of(block x)
{
    return largest_lane(larger_magnitude(x.lo, x.hi));
}

/* The largest |y| of n elements. */
INLINE float largest_norm(enum roped_dtype from, const void *x,
                          const float *weight, float s, int64_t n,
                          bool is_rounded)
{
    block largest = {splat(0), splat(0)};
    for (int64_t i = 0; i < n; i += BLOCK) {
        const block z = load(from, order_of(from), at(from, x, i),
                             n - i < BLOCK ? n - i : BLOCK);
        add_largest(&largest, normal_block(from, z, weight + i, s, is_rounded));
    }
    return largest_of(largest);
}

INLINE void largest_of_rows(enum roped_dtype from, const struct norm_part *part,
                            float *largest, bool is_rounded)
{
    const struct norm_part a = *part;
    for (int64_t row = 0; row < a.rows->n; row++) {
        const int64_t first = row * a.norm->width + a.first;
        const float of_part =
            largest_norm(from, at(from, a.rows->x, first), a.weight,
                         a.rows->s[row], a.n, is_rounded);
        largest[row] = of_part > largest[row] ? of_part : largest[row];
    }
}

INLINE void largest_of_part(enum roped_dtype from, const struct norm_part *a,
                            float *largest)
{
    if (a->norm->rounds_product)
        largest_of_rows(from, a, largest, true);
    else
        largest_of_rows(from, a, largest, false);
}

void ISA(cpu_largest)(const struct cpu_norm *norm,
                      const struct cpu_norm_rows *rows, float *largest)
{
    _Alignas(64) float w[COLUMNS];
    struct norm_part a = {.norm = norm, .rows = rows, .weight = w};
    memset(largest, 0, (size_t)rows->n * sizeof *largest);
    FOR_PARTS(a, CALL_OF_TYPE(norm->from, largest_of_part, &a, largest))
}

/* -------------------------------------------------------------- quotients */

/* A run of norms in a row, and where their codes go. */
struct run {
    const void *x;
    const float *weight;
    uint8_t *y;
    float s, divisor;
};

/* A little more than 1 / divisor, or 0, of which no code can be told: where
 * that, or a product with it that matters, could lose bits. */
INLINE float above_inverse(enum roped_dtype to, float divisor)
{
    float above =
        to == ROPED_F8_E4M3 ? QUOTIENT_ABOVE * QUOTIENT_E4M3 : QUOTIENT_ABOVE;
    return divisor >= 0x1p-30f && divisor <= 0x1p100f ? 1 / divisor * above : 0;
}

/* The same times s, for weights up to 2^70. */
INLINE float above_quotient(float s, float inverse)
{
    const float factor = s * inverse;
    return factor >= 0x1p-100f && factor <= 0x1p100f ? factor : 0;
}

INLINE raw8 divided_codes(enum roped_dtype from, enum roped_dtype to, block v,
                          float divisor)
{
    const vfloat by = splat(divisor);
    return narrow8(to, order_of(from), (block){v.lo / by, v.hi / by}, 1);
}

/* n norms, divided one by one. */
INLINE void divide_norms(enum roped_dtype from, const struct run *run,
                         enum roped_dtype to, int64_t n, bool is_rounded)
{
    const enum order order = order_of(from);
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        const block z = load(from, order, at(from, run->x, i), part);
        const block v =
            is_rounded ? normal_block(from, z, run->weight + i, run->s, true)
                       : normal_block(from, z, run->weight + i, run->s, false);
        const raw8 codes =
            to == ROPED_F8_E4M3
                ? divided_codes(from, ROPED_F8_E4M3, v, run->divisor)
                : divided_codes(from, ROPED_F8_E5M2, v, run->divisor);
        if (part == BLOCK)
            store8(run->y + i, codes);
        else
            store8_part(run->y + i, codes, part);
    }
}

static NOINLINE void divide_run(enum roped_dtype from, const struct run *run,
                                enum roped_dtype to, int64_t n,
                                bool is_rounded){
    CALL_OF_TYPE(from, divide_norms, run, to, n, is_rounded)}

/* Codes of n_blocks of quotients, where they can be told. */
INLINE bool store_codes(enum roped_dtype from, enum roped_dtype to, uint8_t *y,
                        const block *q, int n_blocks, bool is_streamed)
{
    raw8 codes[MOST_BLOCKS];
    if (!quotient_codes(order_of(from), q, n_blocks,
                        to == ROPED_F8_E4M3 ? 3 : 2, codes))
        return false;
    for (int i = 0; i < n_blocks; i++)
        if (is_streamed)
            stream8(y + i * BLOCK, codes[i]);
        else
            store8(y + i * BLOCK, codes[i]);
    return true;
}

/* What a loop into FP8 is made for. */
struct fp8_form {
    bool is_rounded, is_streamed;
    bool has_largest; /* values that have the largest code are frequent */
};

/*
 * n_blocks of a row. Without a rounding in between one factor takes the place
 * of s and the divisor: the products are no further from the quotients than
 * quotient_codes allows. A bound between the largest code and what rounds to it
 * keeps that code away from those that cannot be told.
 */
INLINE void quantize_blocks(enum roped_dtype from, enum roped_dtype to,
                            struct run run, float inverse, float factor,
                            int n_blocks, struct fp8_form form)
{
    const float bound = to == ROPED_F8_E4M3 ? 440 * QUOTIENT_E4M3 : 55296;
    block q[MOST_BLOCKS];
    for (int i = 0; i < n_blocks; i++) {
        const float *w = run.weight + i * BLOCK;
        const block z =
            load(from, order_of(from), at(from, run.x, i * BLOCK), BLOCK);
        q[i] = form.is_rounded ? times(normal_block(from, z, w, run.s, true),
                                       splat(inverse))
                               : normal_block(from, z, w, factor, false);
        if (form.has_largest)
            q[i] = bounded(q[i], bound);
    }
    if (UNLIKELY(!store_codes(from, to, run.y, q, n_blocks, form.is_streamed)))
        divide_run(from, &run, to, n_blocks * BLOCK, form.is_rounded);
}

INLINE struct run run_at(enum roped_dtype from, struct run run, int64_t i)
{
    return (struct run){at(from, run.x, i), run.weight + i, run.y + i, run.s,
                        run.divisor};
}

INLINE void quantize_rows(enum roped_dtype from, enum roped_dtype to,
                          const struct norm_part *part, bool is_tame,
                          struct fp8_form form)
{
    const struct norm_part a = *part; /* which no store can change */
    const struct cpu_norm_rows rows = *part->rows;
    const int64_t width = part->norm->width, batch = rows.n * width;
    for (int64_t row = 0; row < rows.n; row++) {
        const int64_t first = row * width + a.first;
        const struct run run = {at(from, rows.x, first), a.weight,
                                place(to, rows.y, first), rows.s[row],
                                rows.divisor[row]};
        const float inverse = above_inverse(to, run.divisor);
        const float factor = is_tame ? above_quotient(run.s, inverse) : 0;
        int64_t i = 0;
        for (; i + STEP <= a.n; i += STEP) {
            for (int64_t j = i; j < i + STEP; j += BLOCK)
                prefetch(at(from, run.x, batch + j));
            quantize_blocks(from, to, run_at(from, run, i), inverse, factor,
                            STEP / BLOCK, form);
        }
        if (i < a.n) {
            const struct run rest = run_at(from, run, i);
            divide_run(from, &rest, to, a.n - i, form.is_rounded);
        }
    }
}

/* Is no weight so large that it makes something of what product lost? */
static bool has_tame_weights(const struct norm_part *a)
{
    block largest = {splat(0), splat(0)};
    for (int64_t i = 0; i < a->n; i += BLOCK)
        add_largest(&largest, load32(a->weight + i));
    return largest_of(largest) <= 0x1p70f;
}

INLINE void quantize_part(enum roped_dtype from, enum roped_dtype to,
                          const struct norm_part *a)
{
    const bool is_streamed = can_stream(a->norm, a->rows);
    const bool is_tame = has_tame_weights(a);
    if (size_of(to) > 1)
        return;
    if (a->norm->rounds_product && is_streamed)
        quantize_rows(from, to, a, is_tame,
                      (struct fp8_form){true, true, false});
    else if (a->norm->rounds_product)
        quantize_rows(from, to, a, is_tame,
                      (struct fp8_form){true, false, false});
    else if (is_streamed)
        quantize_rows(from, to, a, is_tame,
                      (struct fp8_form){false, true, false});
    else
        quantize_rows(from, to, a, is_tame,
                      (struct fp8_form){false, false, false});
}

INSTANCES(quantize_part, norm_part)

void ISA(cpu_normalize_fp8)(const struct cpu_norm *norm,
                            const struct cpu_norm_rows *rows)
{
    _Alignas(64) float w[COLUMNS];
    struct norm_part a = {.norm = norm, .rows = rows, .weight = w};
    FOR_PARTS(a, CALL_INSTANCE(norm->from, norm->to, quantize_part, &a))
}

/* ----------------------------------------------------------------- groups */

/* Columns of rows whose groups have scales of their own. */
struct group_part {
    struct norm_part part;
    int64_t size;
    const struct cpu_fp8_scale *scale;
    float *scales;
    bool is_tame; /* has_tame_weights */
};

/* What the groups of a part of a row are divided by, and what they are
 * multiplied by instead: see quantize_blocks. */
struct group_factors {
    float divisor[MOST_GROUPS], inverse[MOST_GROUPS], factor[MOST_GROUPS];
};

/* One loop per step, so that groups do not wait for each other's divisions. */
INLINE void find_factors(enum roped_dtype from, enum roped_dtype to,
                         const struct group_part *a, const struct run *run,
                         int64_t size, bool is_rounded,
                         struct group_factors *out)
{
    const int n = (int)(a->part.n / size);
    const float s = a->is_tame ? run->s : 0;
    for (int i = 0; i < n; i++)
        out->divisor[i] =
            largest_norm(from, at(from, run->x, i * size),
                         run->weight + i * size, run->s, size, is_rounded);
    for (int i = 0; i < n; i++)
        out->divisor[i] = cpu_fp8_scale_of(a->scale, out->divisor[i]);
    for (int i = 0; i < n; i++)
        out->inverse[i] = above_inverse(to, out->divisor[i]);
    for (int i = 0; i < n; i++)
        out->factor[i] = above_quotient(s, out->inverse[i]);
}

INLINE void groups_of_row(enum roped_dtype from, enum roped_dtype to,
                          const struct group_part *a, struct run run,
                          float *scales, int64_t batch, int64_t size,
                          struct fp8_form form)
{
    struct group_factors of;
    const int n = (int)(a->part.n / size);
    find_factors(from, to, a, &run, size, form.is_rounded, &of);
    memcpy(scales, of.divisor, (size_t)n * sizeof *scales);
    for (int i = 0; i < n; i++) {
        struct run group = run_at(from, run, i * size);
        group.divisor = of.divisor[i];
        for (int64_t j = 0; j < size; j += BLOCK)
            prefetch(at(from, group.x, batch + j));
        quantize_blocks(from, to, group, of.inverse[i], of.factor[i],
                        (int)(size / BLOCK), form);
    }
}

INLINE void groups_of_size(enum roped_dtype from, enum roped_dtype to,
                           const struct group_part *groups, int64_t size,
                           struct fp8_form form)
{
    const struct group_part a = *groups; /* which no store can change */
    const struct cpu_norm_rows rows = *a.part.rows;
    const int64_t width = a.part.norm->width;
    for (int64_t row = 0; row < rows.n; row++) {
        const int64_t first = row * width + a.part.first;
        const struct run run = {at(from, rows.x, first), a.part.weight,
                                place(to, rows.y, first), rows.s[row], 0};
        groups_of_row(from, to, &a, run, a.scales + first / size,
                      rows.n * width, size, form);
    }
}

INLINE void groups_of_form(enum roped_dtype from, enum roped_dtype to,
                           const struct group_part *a, struct fp8_form form)
{
    if (a->size == LARGEST_GROUP)
        groups_of_size(from, to, a, LARGEST_GROUP, form);
    else
        groups_of_size(from, to, a, LARGEST_GROUP / 2, form);
}

INLINE void groups_of_part(enum roped_dtype from, enum roped_dtype to,
                           const struct group_part *a)
{
    const bool is_streamed = can_stream(a->part.norm, a->part.rows);
    if (size_of(to) > 1)
        return;
    if (a->part.norm->rounds_product && is_streamed)
        groups_of_form(from, to, a, (struct fp8_form){true, true, true});
    else if (a->part.norm->rounds_product)
        groups_of_form(from, to, a, (struct fp8_form){true, false, true});
    else if (is_streamed)
        groups_of_form(from, to, a, (struct fp8_form){false, true, true});
    else
        groups_of_form(from, to, a, (struct fp8_form){false, false, true});
}

INSTANCES(groups_of_part, group_part)

void ISA(cpu_normalize_groups)(const struct cpu_norm *norm,
                               const struct cpu_norm_rows *rows,
                               int64_t group_size,
                               const struct cpu_fp8_scale *scale, float *scales)
{
    _Alignas(64) float w[COLUMNS];
    struct group_part a = {.part = {.norm = norm, .rows = rows, .weight = w},
                           .size = group_size,
                           .scale = scale,
                           .scales = scales};
    FOR_PARTS(a.part, a.is_tame = has_tame_weights(&a.part);
              CALL_INSTANCE(norm->from, norm->to, groups_of_part, &a))
}
