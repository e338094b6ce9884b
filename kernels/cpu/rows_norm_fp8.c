/*
 * rows_norm_fp8.c - norms divided by a scale, given or their own, into FP8.
 */
#include "cpu/quotients.h"
#include "cpu/rows_norm.h"

enum {
    LARGEST_GROUP = 128,
    MOST_BLOCKS = LARGEST_GROUP / BLOCK,
    SMALLEST_GROUP = 16,
    MOST_GROUPS = COLUMNS / SMALLEST_GROUP,
    STEP = LANES < 16 ? 2 * BLOCK : 4 * BLOCK /* as registers allow */
};

/* What a loop into FP8 is made for: constants, but for is_streamed and norm. */
struct fp8_form {
    enum roped_dtype from, to;
    bool is_rounded, is_streamed;
    bool has_largest; /* values that have the largest code are frequent */
    bool is_halved;   /* lo and hi have scales of their own */
    bool is_kept;     /* x are norms, floats in the order of from */
    int64_t size;     /* of groups */
    const struct cpu_norm *norm;
};

INLINE struct fp8_form form_of(enum roped_dtype from, enum roped_dtype to,
                               bool is_rounded, bool is_streamed)
{
    return (struct fp8_form){.from = from,
                             .to = to,
                             .is_rounded = is_rounded,
                             .is_streamed = is_streamed};
}

/* Rounded to the type of x, which floats may be in the place of. */
INLINE block round_like_x(enum roped_dtype from, const struct cpu_norm *norm,
                          block v)
{
    if (from != ROPED_F32)
        return round_to(from, v);
    if (norm->type == ROPED_F16)
        return round_to(ROPED_F16, v);
    return norm->type == ROPED_BF16 ? round_to(ROPED_BF16, v) : v;
}

/* The norm of a block of values. */
INLINE block fp8_norm(struct fp8_form form, block z, const float *weight,
                      block s)
{
    block v = product(z, s);
    if (form.is_rounded)
        v = round_like_x(form.from, form.norm, v);
    return product(v, load32(weight));
}

/* What elements of a run are, at most a block. */
INLINE enum roped_dtype type_of(struct fp8_form form)
{
    return form.is_kept ? ROPED_F32 : form.from;
}

INLINE block both(float s)
{
    return (block){splat(s), splat(s)};
}

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

/* The largest |y| of n elements, spread over the lanes; all are kept, unless
 * kept is NULL. */
INLINE vfloat largest_norms(struct fp8_form form, const void *x,
                            const float *weight, float s, int64_t n,
                            float *kept)
{
    block largest = {splat(0), splat(0)};
    for (int64_t i = 0; i < n; i += BLOCK) {
        const block z =
            load(form.from, order_of(form.from), at(form.from, x, i),
                 n - i < BLOCK ? n - i : BLOCK);
        const block v = fp8_norm(form, z, weight + i, both(s));
        add_largest(&largest, v);
        if (kept)
            store32(kept + i, v);
    }
    return larger_magnitude(largest.lo, largest.hi);
}

INLINE void largest_of_rows(struct fp8_form form, const struct norm_part *part,
                            float *largest)
{
    const struct norm_part a = *part;
    for (int64_t row = 0; row < a.rows->n; row++) {
        const void *x = source_at(form.from, a.rows, row, a.first, false).x;
        const float of_part = largest_lane(
            largest_norms(form, x, a.weight, a.rows->s[row], a.n, NULL));
        largest[row] = of_part > largest[row] ? of_part : largest[row];
    }
}

INLINE void largest_of_part(enum roped_dtype from, const struct norm_part *a,
                            float *largest)
{
    struct fp8_form form = {.from = from, .norm = a->norm};
    struct fp8_form rounded = form;
    rounded.is_rounded = true;
    if (a->norm->rounds_product)
        largest_of_rows(rounded, a, largest);
    else
        largest_of_rows(form, a, largest);
}

static void find_largest(const struct norm_part *a, float *largest)
{
    CALL_OF_TYPE(a->norm->from, largest_of_part, a, largest)
}

void ISA(cpu_largest)(const struct cpu_norm *norm,
                      const struct cpu_norm_rows *rows, float *largest)
{
    _Alignas(64) float w[COLUMNS];
    const struct cpu_norm_rows own = with_strides(norm, rows);
    struct norm_part a = {.norm = norm, .rows = &own, .weight = w};
    memset(largest, 0, (size_t)rows->n * sizeof *largest);
    FOR_PARTS(a, find_largest(&a, largest);)
}

/* -------------------------------------------------------------- quotients */

/* What some norms are divided by. */
struct quotient {
    float divisor;
    float inverse, factor; /* a little above 1 / divisor, s / divisor: below;
                              factor 0: no code can be told */
};

/* A run of norms in a row, and where their codes go. */
struct run {
    const void *x;
    const float *weight;
    uint8_t *y;
    float s;
    struct quotient lo, hi; /* of the halves of blocks; one but for is_halved */
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

INLINE struct run run_at(struct fp8_form form, struct run run, int64_t i)
{
    run.x = at(type_of(form), run.x, i);
    run.weight += i;
    run.y += i;
    return run;
}

/* The norm of the first n elements of a run, at most a block, whose lanes
 * behind them hold anything. */
INLINE block norm_at(struct fp8_form form, struct run run, int64_t n)
{
    if (form.is_kept)
        return load32(run.x);
    return fp8_norm(form, load(form.from, order_of(form.from), run.x, n),
                    run.weight, both(run.s));
}

/*
 * Codes of n_blocks of a run, where all can be told. Without a rounding in
 * between one factor takes the place of s and the divisor: the products are no
 * further from the quotients than quotient_codes allows. A bound between the
 * largest code and what rounds to it keeps that code away from those that
 * cannot be told.
 */
INLINE bool store_codes(struct fp8_form form, struct run run, int n_blocks)
{
    const enum order order = order_of(form.from);
    const float bound = form.to == ROPED_F8_E4M3 ? 440 * QUOTIENT_E4M3 : 55296;
    const struct quotient lo = run.lo, hi = form.is_halved ? run.hi : run.lo;
    const block inverse = {splat(lo.inverse), splat(hi.inverse)};
    const block factor = {splat(lo.factor), splat(hi.factor)};
    block q[MOST_BLOCKS];
    raw8 codes[MOST_BLOCKS];
    if (UNLIKELY(lo.factor == 0 || hi.factor == 0))
        return false;
    for (int i = 0; i < n_blocks; i++) {
        const struct run one = run_at(form, run, i * BLOCK);
        q[i] = form.is_rounded || form.is_kept
                   ? product(norm_at(form, one, BLOCK), inverse)
                   : fp8_norm(form, load(form.from, order, one.x, BLOCK),
                              one.weight, factor);
        if (form.has_largest)
            q[i] = bounded(q[i], bound);
    }
    if (UNLIKELY(!quotient_codes(order, q, n_blocks,
                                 form.to == ROPED_F8_E4M3 ? 3 : 2, codes)))
        return false;
    for (int i = 0; i < n_blocks; i++)
        if (form.is_streamed)
            stream8(run.y + i * BLOCK, codes[i]);
        else
            store8(run.y + i * BLOCK, codes[i]);
    return true;
}

/* The first n elements of a block of a run, whatever their codes. */
INLINE void divide_block(struct fp8_form form, struct run run, int64_t n)
{
    const enum order order = order_of(form.from);
    const struct divisor lo = divisor_of(run.lo.divisor);
    const struct divisor hi = form.is_halved ? divisor_of(run.hi.divisor) : lo;
    store(form.to, order, run.y, quotients_by(norm_at(form, run, n), lo, hi), 1,
          n, form.is_streamed);
}

/* At most LARGEST_GROUP elements, of which some cannot be told: the blocks with
 * these are divided. */
struct rest {
    struct run run;
    int64_t n;
    struct fp8_form form;
};

INLINE void store_rest(struct fp8_form form, const struct rest *rest)
{
    for (int64_t i = 0; i < rest->n; i += BLOCK) {
        const struct run run = run_at(form, rest->run, i);
        const int64_t n = rest->n - i < BLOCK ? rest->n - i : BLOCK;
        if (n < BLOCK || !store_codes(form, run, 1))
            divide_block(form, run, n);
    }
}

/* By way of a buffer: what lies between streamed lines is streamed, and in one
 * go, or it would be read first. */
INLINE void divide_rest(enum roped_dtype from, enum roped_dtype to,
                        const struct rest *rest)
{
    uint8_t code[LARGEST_GROUP], *y = rest->run.y;
    struct fp8_form form = {.from = from,
                            .to = to,
                            .has_largest = rest->form.has_largest,
                            .is_halved = true,
                            .norm = rest->form.norm};
    struct fp8_form rounded = form, kept = form;
    struct rest buffered = *rest;
    raw8 codes;
    int64_t i = 0;
    if (size_of(to) > 1)
        return;
    rounded.is_rounded = true;
    kept.is_kept = true;
    buffered.run.y = code;
    if (rest->form.is_kept)
        store_rest(kept, &buffered);
    else if (rest->form.is_rounded)
        store_rest(rounded, &buffered);
    else
        store_rest(form, &buffered);
    for (; rest->form.is_streamed && i + BLOCK <= rest->n; i += BLOCK) {
        memcpy(&codes, code + i, sizeof codes);
        stream8(y + i, codes);
    }
    memcpy(y + i, code + i, (size_t)(rest->n - i));
}

INSTANCES(divide_rest, rest)

INLINE void divide_run(struct fp8_form form, struct run run, int64_t n)
{
    const struct rest rest = {run, n, form};
    CALL_INSTANCE(form.from, form.to, divide_rest, &rest)
}

INLINE void quantize_blocks(struct fp8_form form, struct run run, int n_blocks)
{
    if (UNLIKELY(!store_codes(form, run, n_blocks)))
        divide_run(form, run, n_blocks * BLOCK);
}

/* The first n elements of a run by one divisor, and asks for those at next. */
INLINE void quantize_row(struct fp8_form form, struct run run, int64_t n,
                         const void *next)
{
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        prefetch_elements(form.from, at(form.from, next, i), STEP);
        quantize_blocks(form, run_at(form, run, i), STEP / BLOCK);
    }
    if (i < n)
        divide_run(form, run_at(form, run, i), n - i);
}

INLINE void quantize_rows(struct fp8_form form, const struct norm_part *part)
{
    const struct norm_part a = *part; /* which no store can change */
    const struct cpu_norm norm = *part->norm;
    const struct cpu_norm_rows rows = *part->rows;
    const int64_t batch = rows.n * rows.stride.x;
    form.norm = &norm;
    for (int64_t row = 0; row < rows.n; row++) {
        struct run run = {
            .x = source_at(form.from, &rows, row, a.first, false).x,
            .weight = a.weight,
            .y = place(form.to, rows.y, row * rows.stride.y + a.first),
            .s = rows.s[row],
            .lo = {.divisor = rows.divisor[row]}};
        run.lo.inverse = above_inverse(form.to, run.lo.divisor);
        run.lo.factor = a.is_tame ? above_quotient(run.s, run.lo.inverse) : 0;
        run.hi = run.lo;
        quantize_row(form, run, a.n, at(form.from, run.x, batch));
    }
}

INLINE void quantize_part(enum roped_dtype from, enum roped_dtype to,
                          const struct norm_part *a)
{
    const bool is_streamed = can_stream(a->norm, a->rows);
    if (size_of(to) > 1)
        return;
    if (a->norm->rounds_product)
        quantize_rows(form_of(from, to, true, is_streamed), a);
    else
        quantize_rows(form_of(from, to, false, is_streamed), a);
}

INSTANCES(quantize_part, norm_part)

static void quantize(const struct norm_part *a)
{
    CALL_INSTANCE(a->norm->from, a->norm->to, quantize_part, a)
}

static bool are_tame(const float *weight, int64_t n)
{
    vint most = (vint)splat(0);
    for (int64_t i = 0; i < n; i += BLOCK) {
        const block w = load32(weight + i);
        most = larger_integers((vint)w.lo & INT32_MAX, most);
        most = larger_integers((vint)w.hi & INT32_MAX, most);
    }
    return all_below((vfloat)most, 0x1p63f);
}

static bool has_tame_weights(const struct norm_part *a)
{
    return are_tame(a->weight, a->n);
}

void ISA(cpu_normalize_fp8)(const struct cpu_norm *norm,
                            const struct cpu_norm_rows *rows)
{
    _Alignas(64) float w[COLUMNS];
    struct norm_part a = {.norm = norm, .rows = rows, .weight = w};
    FOR_PARTS(a, a.is_tame = has_tame_weights(&a); quantize(&a);)
}

/* ------------------------------------------------------------ rows, scaled */

/* Rows whose norms are kept between scale and codes. */
struct scaled_rows {
    const struct cpu_norm *norm;
    const struct cpu_norm_rows *rows;
    const float *weight;
    const struct cpu_fp8_scale *scale;
    float *scales;
};

INLINE void scaled_of_form(struct fp8_form form, const struct scaled_rows *of)
{
    const struct scaled_rows a = *of; /* which no store can change */
    const struct cpu_norm norm = *a.norm;
    const struct cpu_norm_rows rows = *a.rows;
    const bool is_tame = are_tame(a.weight, norm.width);
    struct fp8_form of_kept;
    _Alignas(64) float kept[CPU_KEPT];
    form.norm = &norm;
    of_kept = form;
    of_kept.is_kept = true;
    for (int64_t row = 0; row < rows.n; row++) {
        const void *x = source_at(form.from, &rows, row, 0, false).x;
        const float s = rows.s[row];
        struct run run = {.x = kept,
                          .weight = a.weight,
                          .y = place(form.to, rows.y, row * rows.stride.y),
                          .s = s};
        run.lo.divisor = a.scales[row] = cpu_fp8_scale_of(
            a.scale, largest_lane(largest_norms(form, x, a.weight, s,
                                                norm.width, kept)));
        run.lo.inverse = above_inverse(form.to, run.lo.divisor);
        run.lo.factor = is_tame ? above_quotient(s, run.lo.inverse) : 0;
        run.hi = run.lo;
        quantize_row(of_kept, run, norm.width,
                     at(form.from, x, rows.n * rows.stride.x));
    }
}

INLINE void scaled_rows_of(enum roped_dtype from, enum roped_dtype to,
                           const struct scaled_rows *a)
{
    const bool is_streamed = can_stream(a->norm, a->rows);
    if (size_of(to) > 1)
        return;
    if (a->norm->rounds_product)
        scaled_of_form(form_of(from, to, true, is_streamed), a);
    else
        scaled_of_form(form_of(from, to, false, is_streamed), a);
}

INSTANCES(scaled_rows_of, scaled_rows)

void ISA(cpu_normalize_scaled)(const struct cpu_norm *norm,
                               const struct cpu_norm_rows *rows,
                               const float *weight,
                               const struct cpu_fp8_scale *scale, float *scales)
{
    const struct cpu_norm_rows own = with_strides(norm, rows);
    const struct scaled_rows a = {norm, &own, weight, scale, scales};
    CALL_INSTANCE(norm->from, norm->to, scaled_rows_of, &a)
}

/* ----------------------------------------------------------------- groups */

/* Groups of a size, and where their scales go. */
struct fp8_job {
    int64_t size;
    const struct cpu_fp8_scale *scale;
    struct cpu_scales scales;
};

/* Columns of rows whose groups have scales of their own. */
struct group_part {
    struct norm_part part;
    struct fp8_job job;
};

/* What the groups of a part of a row are divided by, and what they are
 * multiplied by instead: see quantize_blocks. */
struct group_factors {
    float divisor[MOST_GROUPS], inverse[MOST_GROUPS], factor[MOST_GROUPS];
};

INLINE struct quotient quotient_of(const struct group_factors *of, int group)
{
    return (struct quotient){of->divisor[group], of->inverse[group],
                             of->factor[group]};
}

/* The largest |y| of n groups, and all that they are of. Two of a block, in lo
 * and in hi: a block that ends with the first has zeros in hi. */
INLINE void largest_of_groups(struct fp8_form form, const struct run *run,
                              int n, float *kept, float *out)
{
    const int64_t size = form.size;
    vfloat largest[MOST_GROUPS + 1];
    for (int i = 0; i < n; i += form.is_halved ? 2 : 1) {
        const void *x = at(form.from, run->x, i * size);
        const float *weight = run->weight + i * size;
        if (form.is_halved) {
            const block z = load(form.from, order_of(form.from), x,
                                 i + 1 < n ? BLOCK : size);
            const block v = fp8_norm(form, z, weight, both(run->s));
            largest[i] = larger_magnitude(v.lo, splat(0));
            largest[i + 1] = larger_magnitude(v.hi, splat(0));
            store32(kept + i * size, v);
        } else {
            largest[i] =
                largest_norms(form, x, weight, run->s, size, kept + i * size);
        }
    }
    largest_lanes(largest, n, out);
}

/* One loop per step, so that groups do not wait for each other's divisions. */
INLINE void find_factors(struct fp8_form form, const struct group_part *a,
                         const struct run *run, float *kept,
                         struct group_factors *out)
{
    const int n = (int)(a->part.n / form.size);
    const float s = a->part.is_tame ? run->s : 0;
    largest_of_groups(form, run, n, kept, out->divisor);
    for (int i = 0; i < n; i++)
        out->divisor[i] = cpu_fp8_scale_of(a->job.scale, out->divisor[i]);
    for (int i = 0; i < n; i++)
        out->inverse[i] = above_inverse(form.to, out->divisor[i]);
    for (int i = 0; i < n; i++)
        out->factor[i] = above_quotient(s, out->inverse[i]);
}

/* Codes of n groups, of which a block has two: the last may be alone. */
INLINE void halved_groups(struct fp8_form form, struct run run, int n,
                          const struct group_factors *of)
{
    for (int i = 0; i < n; i += 2) {
        struct run pair = run_at(form, run, i * form.size);
        pair.lo = quotient_of(of, i);
        pair.hi = quotient_of(of, i + 1 < n ? i + 1 : i);
        if (i + 1 < n)
            quantize_blocks(form, pair, 1);
        else
            divide_run(form, pair, form.size);
    }
}

INLINE void groups_of_row(struct fp8_form form, const struct group_part *a,
                          struct run run, float *scales, int64_t batch)
{
    struct group_factors of;
    _Alignas(64) float kept[COLUMNS + BLOCK];
    const int64_t size = form.size;
    const int n = (int)(a->part.n / size);
    const void *next = at(form.from, run.x, batch);
    find_factors(form, a, &run, kept, &of);
    form.is_kept = true;
    run.x = kept;
    for (int i = 0; i < n; i++)
        scales[i * a->job.scales.group] = of.divisor[i];
    if (form.is_halved) {
        halved_groups(form, run, n, &of);
        return;
    }
    for (int i = 0; i < n; i++) {
        struct run group = run_at(form, run, i * size);
        group.lo = group.hi = quotient_of(&of, i);
        prefetch_elements(form.from, at(form.from, next, i * size), size);
        quantize_blocks(form, group, (int)(size / BLOCK));
    }
}

INLINE void groups_of_size(struct fp8_form form,
                           const struct group_part *groups, int64_t size)
{
    const struct group_part a = *groups; /* which no store can change */
    const struct cpu_norm norm = *a.part.norm;
    const struct cpu_norm_rows rows = *a.part.rows;
    const struct cpu_scales scales = a.job.scales;
    form.norm = &norm;
    form.size = size;
    form.is_halved = size < BLOCK;
    for (int64_t row = 0; row < rows.n; row++) {
        const int64_t first = a.part.first;
        const struct run run = {
            .x = source_at(form.from, &rows, row, first, false).x,
            .weight = a.part.weight,
            .y = place(form.to, rows.y, row * rows.stride.y + first),
            .s = rows.s[row]};
        groups_of_row(form, &a, run,
                      scales.data + row * scales.row +
                          first / size * scales.group,
                      rows.n * rows.stride.x);
    }
}

INLINE void groups_of_form(struct fp8_form form, const struct group_part *a)
{
    form.has_largest = true;
    if (a->job.size == LARGEST_GROUP)
        groups_of_size(form, a, LARGEST_GROUP);
    else if (a->job.size == LARGEST_GROUP / 2)
        groups_of_size(form, a, LARGEST_GROUP / 2);
    else if (form.from == ROPED_F32 && a->job.size == 2 * SMALLEST_GROUP)
        groups_of_size(form, a, 2 * SMALLEST_GROUP);
    else if (form.from == ROPED_F32)
        groups_of_size(form, a, SMALLEST_GROUP);
}

INLINE void groups_of_part(enum roped_dtype from, enum roped_dtype to,
                           const struct group_part *a)
{
    const bool is_streamed = can_stream(a->part.norm, a->part.rows);
    if (size_of(to) > 1)
        return;
    if (a->part.norm->rounds_product)
        groups_of_form(form_of(from, to, true, is_streamed), a);
    else
        groups_of_form(form_of(from, to, false, is_streamed), a);
}

INSTANCES(groups_of_part, group_part)

static void quantize_groups(const struct norm_part *a,
                            const struct fp8_job *job)
{
    const struct group_part groups = {*a, *job};
    CALL_INSTANCE(a->norm->from, a->norm->to, groups_of_part, &groups)
}

/*
 * Groups narrower than a block of pairs are worked on as floats, a part of a
 * row at a time, in a buffer that stays in the first-level cache: the loops for
 * float serve them all. Sums are added up before: norm.c.
 */
INLINE void spread_row(enum roped_dtype dtype, const struct norm_part *part,
                       int64_t row, float *z)
{
    const struct norm_part a = *part; /* which no store can change */
    const struct cpu_norm_rows rows = *a.rows;
    const void *from = source_at(dtype, &rows, row, a.first, false).x;
    const struct source next =
        source_at(dtype, &rows, row + rows.n, a.first, false);
    for (int64_t i = 0; i < a.n; i += BLOCK) {
        prefetch_next(dtype, next, i, a.n, false);
        store32(z + i, load(dtype, HALVES, at(dtype, from, i),
                            a.n - i < BLOCK ? a.n - i : BLOCK));
    }
}

/* The loop on one row of a part, as floats. */
static void run_row(const struct norm_part *a, int64_t row,
                    const struct fp8_job *job)
{
    _Alignas(64) float z[COLUMNS];
    const int64_t y = row * a->rows->stride.y + a->first;
    struct cpu_norm norm = *a->norm;
    struct cpu_norm_rows rows = {.n = 1,
                                 .stride = {.x = a->n, .y = a->n},
                                 .x = z,
                                 .y = place(norm.to, a->rows->y, y),
                                 .s = a->rows->s + row};
    struct norm_part part = *a;
    struct fp8_job own = *job;
    CALL_OF_TYPE(norm.from, spread_row, a, row, z)
    norm.width = a->n;
    norm.from = ROPED_F32;
    norm.is_streamed = can_stream(a->norm, a->rows);
    part.norm = &norm;
    part.rows = &rows;
    part.first = 0;
    own.scales.data +=
        row * job->scales.row + a->first / job->size * job->scales.group;
    quantize_groups(&part, &own);
}

static void run_groups(const struct norm_part *a, const struct fp8_job *job)
{
    if (!a->is_spread)
        quantize_groups(a, job);
    for (int64_t row = 0; a->is_spread && row < a->rows->n; row++)
        run_row(a, row, job);
}

void ISA(cpu_normalize_groups)(const struct cpu_norm *norm,
                               const struct cpu_norm_rows *rows,
                               int64_t group_size,
                               const struct cpu_fp8_scale *scale,
                               const struct cpu_scales *scales)
{
    _Alignas(64) float w[COLUMNS];
    const struct cpu_norm_rows own = with_strides(norm, rows);
    struct norm_part a = {.norm = norm,
                          .rows = &own,
                          .weight = w,
                          .is_spread = group_size < LARGEST_GROUP / 2 &&
                                       norm->from != ROPED_F32};
    const struct fp8_job job = {
        .size = group_size, .scale = scale, .scales = *scales};
    FOR_PARTS(a, a.is_tame = has_tame_weights(&a); run_groups(&a, &job);)
}
