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

/* Of each vector. */
INLINE void largest_lanes(const vfloat *x, int n, float *out)
{
    int i = 0;
    for (; i + 4 <= n; i += 4)
        largest_lanes4(x + i, out + i);
    for (; i < n; i++)
        out[i] = largest_lane(x[i]);
}

/* The largest |y| of n elements, spread over the lanes. */
INLINE vfloat largest_norms(enum roped_dtype from, const void *x,
                            const float *weight, float s, int64_t n,
                            bool is_rounded)
{
    block largest = {splat(0), splat(0)};
    for (int64_t i = 0; i < n; i += BLOCK) {
        const block z = load(from, order_of(from), at(from, x, i),
                             n - i < BLOCK ? n - i : BLOCK);
        add_largest(&largest, normal_block(from, z, weight + i, s, is_rounded));
    }
    return larger_magnitude(largest.lo, largest.hi);
}

INLINE void largest_of_rows(enum roped_dtype from, const struct norm_part *part,
                            float *largest, bool is_rounded)
{
    const struct norm_part a = *part;
    for (int64_t row = 0; row < a.rows->n; row++) {
        const int64_t first = row * a.norm->width + a.first;
        const float of_part = largest_lane(
            largest_norms(from, at(from, a.rows->x, first), a.weight,
                          a.rows->s[row], a.n, is_rounded));
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
    float inverse, factor; /* a little above 1 / divisor, s / divisor: below;
                              factor 0: no code can be told */
};

/* A little more than 1 / divisor, or 0, of which no code can be told: where
 * that, or a product with it that matters, could lose bits. */
INLINE float above_inverse(enum roped_dtype to, float divisor)
{
    float above =
        to == ROPED_F8_E4M3 ? QUOTIENT_ABOVE * QUOTIENT_E4M3 : QUOTIENT_ABOVE;
    return divisor >= 0x1p-30f && divisor <= 0x1p100f ? 1 / divisor * above : 0;
}

/* The same times s, for weights up to 2^63, or 0. It is 0 also where s is 0 or
 * NaN, so that no x is Inf or NaN where it is not. */
INLINE float above_quotient(float s, float inverse)
{
    const float factor = s * inverse;
    return factor >= 0x1p-100f && factor <= 0x1p100f ? factor : 0;
}

INLINE struct run run_at(enum roped_dtype from, struct run run, int64_t i)
{
    run.x = at(from, run.x, i);
    run.weight += i;
    run.y += i;
    return run;
}

/* What a loop into FP8 is made for. */
struct fp8_form {
    bool is_rounded, is_streamed;
    bool has_largest; /* values that have the largest code are frequent */
};

/*
 * Codes of n_blocks of a run, where all can be told. Without a rounding in
 * between one factor takes the place of s and the divisor: the products are no
 * further from the quotients than quotient_codes allows. A bound between the
 * largest code and what rounds to it keeps that code away from those that
 * cannot be told.
 */
INLINE bool store_codes(enum roped_dtype from, enum roped_dtype to,
                        struct run run, int n_blocks, struct fp8_form form)
{
    const enum order order = order_of(from);
    const float bound = to == ROPED_F8_E4M3 ? 440 * QUOTIENT_E4M3 : 55296;
    block q[MOST_BLOCKS];
    raw8 codes[MOST_BLOCKS];
    if (UNLIKELY(run.factor == 0))
        return false;
    for (int i = 0; i < n_blocks; i++) {
        const float *w = run.weight + i * BLOCK;
        const block z = load(from, order, at(from, run.x, i * BLOCK), BLOCK);
        q[i] = form.is_rounded ? times(normal_block(from, z, w, run.s, true),
                                       splat(run.inverse))
                               : normal_block(from, z, w, run.factor, false);
        if (form.has_largest)
            q[i] = bounded(q[i], bound);
    }
    if (UNLIKELY(!quotient_codes(order, q, n_blocks,
                                 to == ROPED_F8_E4M3 ? 3 : 2, codes)))
        return false;
    for (int i = 0; i < n_blocks; i++)
        if (form.is_streamed)
            stream8(run.y + i * BLOCK, codes[i]);
        else
            store8(run.y + i * BLOCK, codes[i]);
    return true;
}

/* At most LARGEST_GROUP elements, of which some cannot be told: the blocks with
 * these are divided. */
struct rest {
    struct run run;
    int64_t n;
    struct fp8_form form;
};

INLINE void store_rest(enum roped_dtype from, enum roped_dtype to,
                       const struct rest *rest, bool is_rounded)
{
    const struct fp8_form form = {is_rounded, false, rest->form.has_largest};
    for (int64_t i = 0; i < rest->n; i += BLOCK) {
        const struct run run = run_at(from, rest->run, i);
        const int64_t n = rest->n - i < BLOCK ? rest->n - i : BLOCK;
        if (n == BLOCK && store_codes(from, to, run, 1, form))
            continue;
        const block v = normal_block(from, load(from, order_of(from), run.x, n),
                                     run.weight, run.s, is_rounded);
        const vfloat by = splat(run.divisor);
        store(to, order_of(from), run.y, (block){v.lo / by, v.hi / by}, 1, n,
              false);
    }
}

/* By way of a buffer: what lies between streamed lines is streamed, and in one
 * go, or it would be read first. */
INLINE void divide_rest(enum roped_dtype from, enum roped_dtype to,
                        const struct rest *rest)
{
    uint8_t code[LARGEST_GROUP], *y = rest->run.y;
    struct rest buffered = *rest;
    raw8 codes;
    int64_t i = 0;
    if (size_of(to) > 1)
        return;
    buffered.run.y = code;
    if (rest->form.is_rounded)
        store_rest(from, to, &buffered, true);
    else
        store_rest(from, to, &buffered, false);
    for (; rest->form.is_streamed && i + BLOCK <= rest->n; i += BLOCK) {
        memcpy(&codes, code + i, sizeof codes);
        stream8(y + i, codes);
    }
    memcpy(y + i, code + i, (size_t)(rest->n - i));
}

INSTANCES(divide_rest, rest)

INLINE void quantize_blocks(enum roped_dtype from, enum roped_dtype to,
                            struct run run, int n_blocks, struct fp8_form form)
{
    if (UNLIKELY(!store_codes(from, to, run, n_blocks, form))) {
        const struct rest rest = {run, n_blocks * BLOCK, form};
        CALL_INSTANCE(from, to, divide_rest, &rest)
    }
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
        struct run run = {at(from, rows.x, first),
                          a.weight,
                          place(to, rows.y, first),
                          rows.s[row],
                          rows.divisor[row],
                          0,
                          0};
        run.inverse = above_inverse(to, run.divisor);
        run.factor = is_tame ? above_quotient(run.s, run.inverse) : 0;
        int64_t i = 0;
        for (; i + STEP <= a.n; i += STEP) {
            for (int64_t j = i; j < i + STEP; j += BLOCK)
                prefetch(at(from, run.x, batch + j));
            quantize_blocks(from, to, run_at(from, run, i), STEP / BLOCK, form);
        }
        if (i < a.n) {
            const struct rest rest = {run_at(from, run, i), a.n - i, form};
            CALL_INSTANCE(from, to, divide_rest, &rest)
        }
    }
}

/* Is no weight Inf, NaN, or so large that it makes something of what a product
 * lost? */
static bool has_tame_weights(const struct norm_part *a)
{
    block sum = {splat(0), splat(0)};
    for (int64_t i = 0; i < a->n; i += BLOCK)
        add_squares(&sum, load32(a->weight + i));
    return all_below(sum.lo, 0x1p126f) && all_below(sum.hi, 0x1p126f);
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
    vfloat largest[MOST_GROUPS];
    for (int i = 0; i < n; i++)
        largest[i] =
            largest_norms(from, at(from, run->x, i * size),
                          run->weight + i * size, run->s, size, is_rounded);
    largest_lanes(largest, n, out->divisor);
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
        group.inverse = of.inverse[i];
        group.factor = of.factor[i];
        for (int64_t j = 0; j < size; j += BLOCK)
            prefetch(at(from, group.x, batch + j));
        quantize_blocks(from, to, group, (int)(size / BLOCK), form);
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
        const struct run run = {at(from, rows.x, first),
                                a.part.weight,
                                place(to, rows.y, first),
                                rows.s[row],
                                0,
                                0,
                                0};
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
