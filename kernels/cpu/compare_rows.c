/*
 * compare_rows.c - differences of two blocks; built once per instruction set,
 * as rows.c is. The compiler makes vectors of these loops: largest values are
 * found by their bits, which have the order of magnitudes, and sums have lanes.
 */
#include "cpu/compare_rows.h"
#include "cpu/rows_isa.h"

enum { SUM_LANES = 8, INF = 0x7F800000, NO_MAGNITUDE = 0x7FFFFFFF };

INLINE int32_t bits_of_one(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE bool is_nan(float x)
{
    return x != x;
}

/* The bits of |a - b|: NO_MAGNITUDE of NaN in one alone. */
INLINE int32_t distance(float a, float b)
{
    int32_t bits = bits_of_one(a - b) & NO_MAGNITUDE;
    bits = bits > INF ? NO_MAGNITUDE : bits;
    bits = a == b ? 0 : bits;
    return is_nan(a) & is_nan(b) ? 0 : bits;
}

/* The first element at this distance. */
static int64_t find(const float *a, const float *b, int32_t bits)
{
    int64_t i = 0;
    while (distance(a[i], b[i]) != bits)
        i++;
    return i;
}

static NOINLINE void add_products(const float *a, const float *b, int64_t n,
                                  struct compare_part *part)
{
    double dot[SUM_LANES] = {0}, aa[SUM_LANES] = {0}, bb[SUM_LANES] = {0};
    for (int64_t i = 0; i < n; i += SUM_LANES) {
        float x[SUM_LANES] = {0}, y[SUM_LANES] = {0};
        const int64_t here = n - i < SUM_LANES ? n - i : SUM_LANES;
        memcpy(x, a + i, (size_t)here * sizeof *x);
        memcpy(y, b + i, (size_t)here * sizeof *y);
        for (int j = 0; j < SUM_LANES; j++) {
            const bool is_finite = ((bits_of_one(x[j]) & NO_MAGNITUDE) < INF) &
                                   ((bits_of_one(y[j]) & NO_MAGNITUDE) < INF);
            const double u = is_finite ? x[j] : 0, v = is_finite ? y[j] : 0;
            dot[j] += u * v;
            aa[j] += u * u;
            bb[j] += v * v;
        }
    }
    for (int j = 0; j < SUM_LANES; j++) {
        part->dot += dot[j];
        part->aa += aa[j];
        part->bb += bb[j];
    }
}

static void differences(const float *a, const float *b, int64_t n, int64_t at,
                        const struct compare_plan *plan,
                        struct compare_part *part)
{
    const float atol = plan->atol, rtol = plan->rtol;
    int32_t largest = 0, relative = 0, beyond = 0, nan_alone = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = distance(a[i], b[i]);
        const float d = float_of(bits),
                    y = float_of(bits_of_one(b[i]) & NO_MAGNITUDE);
        const int32_t is_number = bits <= INF;
        int32_t share = bits_of_one(d / y);
        share = bits == INF ? INF : share;
        share = (bits == 0) | !is_number ? 0 : share;
        nan_alone += !is_number;
        beyond += is_number & ((d > atol + rtol * y) | (bits == INF));
        largest = is_number & (bits > largest) ? bits : largest;
        relative = share > relative ? share : relative;
    }
    add_products(a, b, n, part);
    if (nan_alone > 0 && part->nan_at < 0)
        part->nan_at = at + find(a, b, NO_MAGNITUDE);
    if (largest > bits_of_one(part->largest)) {
        part->at = at + find(a, b, largest);
        part->largest = float_of(largest);
    }
    if (relative > bits_of_one(part->relative))
        part->relative = float_of(relative);
    part->beyond += beyond;
    part->nan_alone += nan_alone;
}

/* Numbers in their order: 0 and -0 are one. */
INLINE int32_t place_of(int32_t bits, int32_t sign)
{
    return bits & sign ? -(bits & ~sign) : bits;
}

static uint32_t steps_32(const void *a, const void *b, int64_t n,
                         uint32_t least)
{
    const int32_t *x = a, *y = b;
    for (int64_t i = 0; i < n; i++) {
        const int32_t p = place_of(x[i], INT32_MIN);
        const int32_t q = place_of(y[i], INT32_MIN);
        uint32_t steps =
            p > q ? (uint32_t)p - (uint32_t)q : (uint32_t)q - (uint32_t)p;
        steps = ((x[i] & NO_MAGNITUDE) > INF) | ((y[i] & NO_MAGNITUDE) > INF)
                    ? 0
                    : steps;
        least = steps > least ? steps : least;
    }
    return least;
}

static uint32_t steps_16(const void *a, const void *b, int64_t n, int32_t inf,
                         uint32_t least)
{
    const uint16_t *x = a, *y = b;
    int32_t most = (int32_t)least;
    for (int64_t i = 0; i < n; i++) {
        const int32_t p = place_of(x[i], 0x8000), q = place_of(y[i], 0x8000);
        int32_t steps = p > q ? p - q : q - p;
        steps = ((x[i] & 0x7FFF) > inf) | ((y[i] & 0x7FFF) > inf) ? 0 : steps;
        most = steps > most ? steps : most;
    }
    return (uint32_t)most;
}

extern const struct cpu_compare_rows ISA(cpu_compare_rows);
const struct cpu_compare_rows ISA(cpu_compare_rows) = {
    .differences = differences,
    .steps_32 = steps_32,
    .steps_16 = steps_16,
};
