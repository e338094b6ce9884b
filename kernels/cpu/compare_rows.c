/*
 * compare_rows.c - differences of two blocks; built once per instruction set,
 * as rows.c is. Largest values are found by their bits, which have the order of
 * magnitudes.
 */
#include "cpu/compare_rows.h"
#include "cpu/rows_isa.h"

enum { INF = 0x7F800000, NO_MAGNITUDE = 0x7FFFFFFF };

typedef uint32_t vcount __attribute__((vector_size(sizeof(vfloat))));

/* What the lanes have found. */
struct lanes {
    vint largest, beyond, nan_alone; /* the last two count down */
    vcount steps;
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

/* Numbers in their order: 0 and -0 are one. */
INLINE vint places_of(vint bits)
{
    return where((vint)(bits < 0), -(bits & NO_MAGNITUDE), bits);
}

INLINE void add_steps(struct lanes *lanes, vfloat a, vfloat b)
{
    const vint p = places_of((vint)a), q = places_of((vint)b);
    const vint up = (vint)((vcount)p - (vcount)q);
    const vint down = (vint)((vcount)q - (vcount)p);
    const vint are_numbers = (vint)(a == a) & (vint)(b == b);
    const vcount steps = (vcount)(where((vint)(p > q), up, down) & are_numbers);
    lanes->steps = (vcount)where((vint)(steps > lanes->steps), (vint)steps,
                                 (vint)lanes->steps);
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
    lanes->beyond += (vint)((vfloat)bits > splat(atol) + splat(rtol) * y) |
                     (vint)(bits == INF);
    lanes->largest = where((vint)(bits > lanes->largest), bits, lanes->largest);
    add_relative(lanes, bits, y);
    add_steps(lanes, a, b);
    add_products(lanes, a, b);
}

/* ------------------------------------------------------------------ lanes */

static uint32_t most_of(vcount x)
{
    uint32_t lane[LANES], most = 0;
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

/* ----------------------------------------------------------------- blocks */

static uint32_t differences(const float *a, const float *b, int64_t n,
                            int64_t at, const struct compare_plan *plan,
                            struct compare_part *part)
{
    const float atol = plan->atol, rtol = plan->rtol;
    struct lanes lanes = {.relative = splat(part->relative)};
    for (int64_t i = 0; i < n; i += LANES)
        add_differences(&lanes, load_lanes(a + i), load_lanes(b + i), atol,
                        rtol);
    const int64_t nan_alone = -sum_of(lanes.nan_alone);
    const uint32_t bits = most_of((vcount)lanes.largest);
    const float largest = roped_bits_float(bits);
    if (nan_alone > 0 && part->nan_at < 0)
        part->nan_at = at + find(a, b, NO_MAGNITUDE);
    if (largest > part->largest) {
        part->at = at + find(a, b, (int32_t)bits);
        part->largest = largest;
    }
    part->relative = largest_lane(lanes.relative);
    part->beyond -= sum_of(lanes.beyond);
    part->nan_alone += nan_alone;
    part->dot += sum_of_doubles(lanes.dot);
    part->aa += sum_of_doubles(lanes.aa);
    part->bb += sum_of_doubles(lanes.bb);
    return most_of(lanes.steps);
}

static uint32_t steps_16(const uint16_t *a, const uint16_t *b, int64_t n,
                         int32_t inf)
{
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t x = a[i] & 0x7FFF, y = b[i] & 0x7FFF;
        const int32_t p = a[i] & 0x8000 ? -x : x, q = b[i] & 0x8000 ? -y : y;
        int32_t steps = p > q ? p - q : q - p;
        steps = (x > inf) | (y > inf) ? 0 : steps;
        most = steps > most ? steps : most;
    }
    return (uint32_t)most;
}

extern const struct cpu_compare_rows ISA(cpu_compare_rows);
const struct cpu_compare_rows ISA(cpu_compare_rows) = {
    .differences = differences,
    .steps_16 = steps_16,
};
