/*
 * compare_rows.c - differences of two blocks; built once per instruction set,
 * as rows.c is. Elements that are finite, and neither so large nor so small
 * that their squares are none of float32, take a short loop. Others are looked
 * at one by one, largest values by their bits, which have the order of
 * magnitudes.
 */
#include "cpu/compare_rows.h"
#include "cpu/rows_isa.h"

#include <math.h>

enum { INF = 0x7F800000, NO_MAGNITUDE = 0x7FFFFFFF };

/* What the lanes have found. */
struct lanes {
    vint largest, beyond, nan_alone; /* the last two count down */
    vfloat relative;
    doubles dot, aa, bb;
};

/* A mask has all bits of a lane or none. */
INLINE vint where(vint mask, vint yes, vint no)
{
    return (mask & yes) | (~mask & no);
}

INLINE bool any(vint mask)
{
    return !all_below((vfloat)(mask & (vint)splat(1)), 0.5f);
}

/* The bits of |a - b|: NO_MAGNITUDE of NaN in one alone. */
INLINE vint distance(vfloat a, vfloat b)
{
    vint bits = (vint)(a - b) & NO_MAGNITUDE;
    bits |= (vint)(bits > INF) & NO_MAGNITUDE;
    return bits & ~((vint)(a == b) | ((vint)(a != a) & (vint)(b != b)));
}

/* Adds the squares and the product of the numbers that are finite in both. */
INLINE void add_products(struct lanes *lanes, vfloat a, vfloat b)
{
    const vint is_finite = (vint)(((vint)a & NO_MAGNITUDE) < INF) &
                           (vint)(((vint)b & NO_MAGNITUDE) < INF);
    const doubles u = widen_floats((vfloat)((vint)a & is_finite));
    const doubles v = widen_floats((vfloat)((vint)b & is_finite));
    lanes->dot.lo += u.lo * v.lo;
    lanes->dot.hi += u.hi * v.hi;
    lanes->aa.lo += u.lo * u.lo;
    lanes->aa.hi += u.hi * u.hi;
    lanes->bb.lo += v.lo * v.lo;
    lanes->bb.hi += v.hi * v.hi;
}

/* Quotients are found where they may be larger than those before. */
INLINE void add_relative(struct lanes *lanes, vint bits, vfloat y)
{
    const vfloat d = (vfloat)bits;
    const vint is_inf = (vint)(bits == INF);
    const vint may_be_larger =
        is_inf | ((vint)(bits > 0) & (vint)(d >= lanes->relative * y));
    if (!any(may_be_larger))
        return;
    vint share = where(is_inf, bits, (vint)(d / y)) & may_be_larger;
    share = where((vint)(share > (vint)lanes->relative), share,
                  (vint)lanes->relative);
    lanes->relative = (vfloat)share;
}

INLINE void add_differences(struct lanes *lanes, vfloat a, vfloat b, float atol,
                            float rtol)
{
    const vint all = distance(a, b), is_number = (vint)(all <= INF);
    const vint bits = all & is_number;
    const vfloat y = (vfloat)((vint)b & NO_MAGNITUDE);
    lanes->nan_alone += ~is_number;
    lanes->beyond +=
        (vint)((vfloat)bits > multiply_add(splat(rtol), y, splat(atol))) |
        (vint)(bits == INF);
    lanes->largest = where((vint)(bits > lanes->largest), bits, lanes->largest);
    add_relative(lanes, bits, y);
    add_products(lanes, a, b);
}

/* ------------------------------------------------------------------ lanes */

static int32_t most_of(vint x)
{
    int32_t lane[LANES], most = 0;
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    return most;
}

static int64_t sum_of(vint x)
{
    int32_t lane[LANES];
    int64_t sum = 0;
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < LANES; i++)
        sum += lane[i];
    return sum;
}

/* The first element at this distance. */
static int64_t find(const float *a, const float *b, int32_t bits)
{
    for (int64_t i = 0;; i += LANES) {
        int32_t lane[LANES];
        const vint d = distance(load_lanes(a + i), load_lanes(b + i));
        memcpy(lane, &d, sizeof lane);
        for (int j = 0; j < LANES; j++)
            if (lane[j] == bits)
                return i + j;
    }
}

/* ------------------------------------------------------------- any elements */

static void differences(const float *a, const float *b, int64_t n, int64_t at,
                        const struct compare_plan *plan,
                        struct compare_part *part)
{
    const float atol = plan->atol, rtol = plan->rtol;
    struct lanes lanes = {.relative = splat(part->relative)};
    for (int64_t i = 0; i < n; i += LANES)
        add_differences(&lanes, load_lanes(a + i), load_lanes(b + i), atol,
                        rtol);
    const int64_t nan_alone = -sum_of(lanes.nan_alone);
    const int32_t bits = most_of(lanes.largest);
    const float largest = roped_bits_float((uint32_t)bits);
    if (nan_alone > 0 && part->nan_at < 0)
        part->nan_at = at + find(a, b, NO_MAGNITUDE);
    if (largest > part->largest) {
        part->at = at + find(a, b, bits);
        part->largest = largest;
    }
    part->relative = largest_lane(lanes.relative);
    part->beyond -= sum_of(lanes.beyond);
    part->nan_alone += nan_alone;
    part->dot += sum_of_doubles(lanes.dot);
    part->aa += sum_of_doubles(lanes.aa);
    part->bb += sum_of_doubles(lanes.bb);
}

/* --------------------------------------------------------- finite elements */

/* Of so many vectors products are added as float32, and quotients are looked
 * for once. */
enum { CHUNK = 8 * LANES };

/* What the lanes have found of finite elements. */
struct finite {
    float relative;
    vfloat largest, beyond;
    doubles dot, aa, bb;
};

struct products {
    vfloat dot, aa, bb;
};

INLINE doubles add_floats(doubles sum, vfloat x)
{
    const doubles wide = widen_floats(x);
    return (doubles){sum.lo + wide.lo, sum.hi + wide.hi};
}

/* Differences and products of a vector. Returns a lane below 0 where the
 * quotient is none that is larger than those before. */
INLINE vfloat add_vector(struct finite *all, struct products *sum, vfloat a,
                         vfloat b, float atol, float rtol, float least)
{
    const vfloat d = larger_magnitude(a - b, splat(0));
    const vfloat y = larger_magnitude(b, splat(0));
    all->largest = at_least(d, all->largest);
    all->beyond =
        pick_lanes(is_less(multiply_add(splat(rtol), y, splat(atol)), d),
                   all->beyond + splat(1), all->beyond);
    sum->dot = multiply_add(a, b, sum->dot);
    sum->aa = multiply_add(a, a, sum->aa);
    sum->bb = multiply_add(b, b, sum->bb);
    return d - at_least(splat(least), splat(all->relative) * y);
}

/* The largest quotient of a chunk and those before: apart from the loop that
 * seldom needs it, whose registers it would take. */
static NOINLINE float largest_quotient(enum roped_dtype dtype, const void *a,
                                       const void *b, float relative)
{
    struct lanes lanes = {.relative = splat(relative)};
    for (int64_t i = 0; i < CHUNK; i += BLOCK) {
        const block x = load(dtype, order_of(dtype), at(dtype, a, i), BLOCK);
        const block y = load(dtype, order_of(dtype), at(dtype, b, i), BLOCK);
        add_relative(&lanes, distance(x.lo, y.lo),
                     larger_magnitude(y.lo, splat(0)));
        add_relative(&lanes, distance(x.hi, y.hi),
                     larger_magnitude(y.hi, splat(0)));
    }
    return largest_lane(lanes.relative);
}

INLINE void add_chunk(enum roped_dtype dtype, const void *a, const void *b,
                      const struct compare_plan *plan, struct finite *all)
{
    const float atol = plan->atol, rtol = plan->rtol;
    /* of what does not differ there is no quotient; none is beyond Inf */
    const float least = all->relative < INFINITY ? 0x1p-149f : INFINITY;
    struct products sum = {splat(0), splat(0), splat(0)};
    vfloat excess = splat(-1);
    for (int64_t i = 0; i < CHUNK; i += BLOCK) {
        const block x = load(dtype, order_of(dtype), at(dtype, a, i), BLOCK);
        const block y = load(dtype, order_of(dtype), at(dtype, b, i), BLOCK);
        const vfloat lo = add_vector(all, &sum, x.lo, y.lo, atol, rtol, least);
        const vfloat hi = add_vector(all, &sum, x.hi, y.hi, atol, rtol, least);
        excess = at_least(at_least(lo, hi), excess);
    }
    if (UNLIKELY(!all_below(excess, 0)))
        all->relative = largest_quotient(dtype, a, b, all->relative);
    all->dot = add_floats(all->dot, sum.dot);
    all->aa = add_floats(all->aa, sum.aa);
    all->bb = add_floats(all->bb, sum.bb);
}

/* The element whose difference this is. */
INLINE int64_t find_finite(enum roped_dtype dtype, const void *a, const void *b,
                           float largest)
{
    for (int64_t i = 0;; i += BLOCK) {
        float d[BLOCK];
        const block x = load(dtype, HALVES, at(dtype, a, i), BLOCK);
        const block y = load(dtype, HALVES, at(dtype, b, i), BLOCK);
        const vfloat lo = larger_magnitude(x.lo - y.lo, splat(0));
        const vfloat hi = larger_magnitude(x.hi - y.hi, splat(0));
        if (all_below(at_least(lo, hi), largest))
            continue;
        store32(d, (block){lo, hi});
        for (int j = 0; j < BLOCK; j++)
            if (d[j] == largest)
                return i + j;
    }
}

/* Is this what squares of float32 add up to, with nothing lost? Of NaN and Inf
 * it is NaN or Inf. */
static bool is_sound(double squares)
{
    return squares > 0x1p-80 && squares < INFINITY;
}

INLINE bool add_finite(enum roped_dtype dtype, const void *a, const void *b,
                       int64_t n, int64_t first,
                       const struct compare_plan *plan,
                       struct compare_part *part)
{
    struct finite all = {.relative = part->relative};
    for (int64_t i = 0; i < n; i += CHUNK) {
        const void *x = at(dtype, a, i), *y = at(dtype, b, i);
        prefetch_ahead(dtype, x, CHUNK);
        prefetch_ahead(dtype, y, CHUNK);
        add_chunk(dtype, x, y, plan, &all);
    }
    const double aa = sum_of_doubles(all.aa), bb = sum_of_doubles(all.bb);
    const float largest = largest_lane(all.largest);
    if (!is_sound(aa) || !is_sound(bb))
        return false;
    if (largest > part->largest) {
        part->at = first + find_finite(dtype, a, b, largest);
        part->largest = largest;
    }
    part->relative = all.relative;
    float beyond[LANES];
    store_lanes(beyond, all.beyond);
    for (int i = 0; i < LANES; i++)
        part->beyond += (int64_t)beyond[i];
    part->dot += sum_of_doubles(all.dot);
    part->aa += aa;
    part->bb += bb;
    return true;
}

static bool finite_differences(enum roped_dtype dtype, const void *a,
                               const void *b, int64_t n, int64_t first,
                               const struct compare_plan *plan,
                               struct compare_part *part)
{
    if (dtype == ROPED_F32)
        return add_finite(ROPED_F32, a, b, n, first, plan, part);
    if (dtype == ROPED_F16)
        return add_finite(ROPED_F16, a, b, n, first, plan, part);
    return add_finite(ROPED_BF16, a, b, n, first, plan, part);
}

/* ------------------------------------------------------------------- steps */

/* Between two of one sign are as many numbers as their bits differ, and between
 * others those from both down to 0. The compiler makes vectors of these loops,
 * but not where the last step is a choice. */
#define STEPS(signed, unsigned, inf)                                           \
    const signed *a = of_a, *b = of_b;                                         \
    const signed magnitude = (signed)((unsigned)-1 >> 1);                      \
    unsigned most = 0;                                                         \
    for (int64_t i = 0; i < n; i++) {                                          \
        const signed x = a[i] & magnitude, y = b[i] & magnitude;               \
        const unsigned turn =                                                  \
            (unsigned)((signed)(a[i] ^ b[i]) >> (8 * sizeof(signed) - 1));     \
        const signed larger = x > y ? x : y, smaller = x > y ? y : x;          \
        const unsigned less = (unsigned)(((unsigned)smaller ^ turn) - turn);   \
        const unsigned steps = (unsigned)((unsigned)larger - less) &           \
                               (unsigned)-(larger <= (inf));                   \
        most = steps > most ? steps : most;                                    \
    }                                                                          \
    return most;

static uint32_t steps_16(const void *of_a, const void *of_b, int64_t n,
                         int16_t inf)
{
    STEPS(int16_t, uint16_t, inf)
}

static uint32_t steps_32(const void *of_a, const void *of_b, int64_t n)
{
    STEPS(int32_t, uint32_t, INF)
}

extern const struct cpu_compare_rows ISA(cpu_compare_rows);
const struct cpu_compare_rows ISA(cpu_compare_rows) = {
    .finite = finite_differences,
    .differences = differences,
    .steps_16 = steps_16,
    .steps_32 = steps_32,
};
