/*
 * quantize_rows.c - largest values and codes of a block, and values of codes;
 * built once per instruction set, as rows.c is. Magnitudes have the order of
 * their bits.
 */
#include "cpu/quantize_rows.h"
#include "cpu/rows_isa.h"

/* ----------------------------------------------------------------- largest */

/* The larger magnitude, lane by lane, by its bits: with all, that of NaN too,
 * which is beyond every number. */
INLINE vint larger(bool all, vfloat x, vint most)
{
    const vint bits = (vint)x & 0x7FFFFFFF;
    if (!all)
        return (vint)larger_magnitude(x, (vfloat)most);
    const vint is_larger = (vint)(bits > most);
    return (bits & is_larger) | (most & ~is_larger);
}

INLINE vint larger_of(bool all, const float *x, int64_t n, vint most)
{
    vint even = most, odd = most;
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        even = larger(all, load_lanes(x + i), even);
        odd = larger(all, load_lanes(x + i + LANES), odd);
    }
    if (i + LANES <= n) {
        even = larger(all, load_lanes(x + i), even);
        i += LANES;
    }
    if (i < n) {
        const block z = load32_part(x + i, n - i);
        even = larger(all, z.lo, even);
        odd = larger(all, z.hi, odd);
    }
    return larger(all, (vfloat)even, odd);
}

static int32_t largest_lane_of(vint x)
{
    int32_t lane[LANES], most = 0;
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    return most;
}

/* Four tiles side by side share their last steps, unless NaN is among them. */
INLINE void largest_of_tiles(bool all, const float *x, int64_t n, int64_t tile,
                             int32_t *most)
{
    enum { FOUR = 4 };
    for (; n >= FOUR * tile; n -= FOUR * tile, most += FOUR) {
        vfloat found[FOUR];
        float of_tile[FOUR];
        bool are_numbers = true;
        for (int j = 0; j < FOUR; j++, x += tile)
            found[j] = (vfloat)larger_of(all, x, tile, (vint)splat(0));
        for (int j = 0; all && j < FOUR; j++)
            are_numbers &= all_below(negative_magnitude(found[j]), 1);
        largest_lanes4(found, of_tile);
        for (int j = 0; j < FOUR; j++) {
            int32_t bits = are_numbers ? (int32_t)roped_float_bits(of_tile[j])
                                       : largest_lane_of((vint)found[j]);
            most[j] = bits > most[j] ? bits : most[j];
        }
    }
    for (; n > 0; n -= tile, x += tile, most++) {
        const int32_t bits = largest_lane_of(
            larger_of(all, x, n < tile ? n : tile, (vint)splat(0)));
        *most = bits > *most ? bits : *most;
    }
}

/* The narrow tiles of formats are constants. */
static void largest(const float *x, int64_t n, int64_t tile, bool counts_nan,
                    int32_t *most)
{
    if (counts_nan && tile == 32)
        largest_of_tiles(true, x, n, 32, most);
    else if (counts_nan)
        largest_of_tiles(true, x, n, tile, most);
    else if (tile == 16)
        largest_of_tiles(false, x, n, 16, most);
    else
        largest_of_tiles(false, x, n, tile, most);
}

/* ------------------------------------------------------------------- codes */

/* Of so many values each: no tile is smaller, and all are multiples. */
enum { STEP = 16, STEPS = CPU_BLOCK / STEP };

/* Codes in the making. Those of int8 and e2m1 are numbers in lanes first. */
struct making {
    const struct cpu_codes *how;
    const float *x;
    int64_t n;
    float divisor[STEPS]; /* of each step */
    _Alignas(64) int32_t lane[CPU_BLOCK];
    _Alignas(64) uint8_t code[CPU_BLOCK];
};

INLINE bool is_fp8(enum code_element element)
{
    return element == CODE_E4M3 || element == CODE_E5M2;
}

INLINE enum roped_dtype fp8_of(enum code_element element)
{
    return element == CODE_E5M2 ? ROPED_F8_E5M2 : ROPED_F8_E4M3;
}

INLINE vfloat without_nan(vfloat x, float instead)
{
    return pick_lanes(is_nan(x), splat(instead), x);
}

/* A whole number in the low byte of each lane. */
INLINE vint i8_of(vfloat x, float least)
{
    return (
        vint)(at_most(splat(127), at_least(splat(least), without_nan(x, 0))) +
              splat(0x1.8p23f));
}

/*
 * Adding the power of two whose unit in the last place is the spacing of codes
 * at |x| rounds to nearest even: the low bits of the sum then count codes from
 * a number on that the exponent says.
 */
INLINE vint e2m1_of(vfloat x)
{
    const int32_t spacing = 22 << 23;
    const vfloat number = without_nan(x, 6);
    const vfloat a = at_most(splat(6), larger_magnitude(number, splat(0)));
    const vint power = ((vint)at_least(splat(1), a) & 0x7F800000) + spacing;
    const vint count = (vint)(a + (vfloat)power) - power;
    return (count + (power >> 22) - 2 * (127 + 22)) |
           (((vint)number >> 28) & 8);
}

/* Codes of quotients, each correctly rounded. */
INLINE void store_quotients(enum code_element element, struct making *of,
                            int64_t i, block q)
{
    const float least = of->how->least;
    if (is_fp8(element))
        store8(of->code + i, narrow8(fp8_of(element), HALVES, q, 1));
    else if (element == CODE_I8)
        store32(of->lane + i, (block){(vfloat)i8_of(q.lo, least),
                                      (vfloat)i8_of(q.hi, least)});
    else
        store32(of->lane + i,
                (block){(vfloat)e2m1_of(q.lo), (vfloat)e2m1_of(q.hi)});
}

INLINE block step_of(const float *value, int64_t i)
{
    return (block){splat(value[i / STEP]), splat(value[(i + LANES) / STEP])};
}

INLINE block load_step(enum code_element element, const struct making *of,
                       int64_t i)
{
    const block x = load32(of->x + i);
    return element == CODE_E2M1 ? times(x, splat(of->how->factor)) : x;
}

/* is_exact: all are divided by powers of two, and products with their inverses
 * are the quotients. */
INLINE void make(enum code_element element, bool is_exact, struct making *of)
{
    const int64_t n_steps = (of->n + 2 * STEP - 1) / (2 * STEP) * 2;
    for (int64_t i = 0; is_exact && i < n_steps; i++)
        of->divisor[i] = 1 / of->divisor[i];
    for (int64_t i = 0; i < of->n; i += BLOCK) {
        const block x = load_step(element, of, i), by = step_of(of->divisor, i);
        store_quotients(element, of, i,
                        is_exact ? product(x, by)
                                 : (block){x.lo / by.lo, x.hi / by.hi});
    }
}

/* 2^-127, of E8M0, is a power of two that is subnormal; NaN and Inf have exact
 * inverses too. */
static bool are_powers(const float *x, int64_t n)
{
    uint32_t others = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = roped_float_bits(x[i]) & 0x7FFFFFFFu;
        others |=
            bits == 0x400000u || bits > 0x7F800000u ? 0 : bits & 0x7FFFFFu;
    }
    return others == 0;
}

#define MAKE(element)                                                          \
    case element:                                                              \
        if (is_exact)                                                          \
            make(element, true, of);                                           \
        else                                                                   \
            make(element, false, of);                                          \
        break;

static void make_all(bool is_exact, struct making *of)
{
    switch (of->how->element) {
        MAKE(CODE_E4M3)
        MAKE(CODE_E5M2)
        MAKE(CODE_I8)
        MAKE(CODE_E2M1)
    }
}

/* The lanes as bytes; two of e2m1 are one. */
static void pack(const struct making *of, uint8_t *restrict to)
{
    const int32_t *restrict lane = of->lane;
    if (of->how->element == CODE_I8)
        for (int64_t i = 0; i < of->n; i++)
            to[i] = (uint8_t)lane[i];
    else if (of->how->element == CODE_E2M1)
        for (int64_t i = 0; i < of->n / 2; i++)
            to[i] = (uint8_t)(lane[2 * i] | lane[2 * i + 1] << 4);
}

/* What is streamed is whole lines. */
static void put(uint8_t *to, const uint8_t *from, int64_t n, bool is_streamed)
{
    int64_t i = 0;
    if (is_streamed && is_aligned(ROPED_U8, to, 0))
        for (; i + STREAM_ALIGNMENT <= n; i += STREAM_ALIGNMENT)
            stream64(to + i, from + i);
    memcpy(to + i, from + i, (size_t)(n - i));
}

INLINE void spread(float *restrict to, const float *restrict of_tile,
                   int64_t n_tiles, int64_t steps)
{
    for (int64_t i = 0; i < n_tiles; i++)
        for (int64_t j = 0; j < steps; j++)
            to[i * steps + j] = of_tile[i];
}

static void encode(const struct cpu_codes *how, void *to, const float *x,
                   int64_t n, int64_t tile, const float *divisor)
{
    const int64_t n_tiles = (n + tile - 1) / tile, steps = tile / STEP;
    struct making of;
    of.how = how;
    of.x = x;
    of.n = n;
    if (steps == 1)
        spread(of.divisor, divisor, n_tiles, 1);
    else if (steps == 2)
        spread(of.divisor, divisor, n_tiles, 2);
    else
        spread(of.divisor, divisor, n_tiles, steps);
    if (n_tiles * steps < STEPS) /* a block may reach behind the last tile */
        of.divisor[n_tiles * steps] = divisor[n_tiles - 1];
    make_all(are_powers(of.divisor, (n + STEP - 1) / STEP), &of);
    pack(&of, of.code);
    put(to, of.code, code_bytes(how->element, n), how->is_streamed);
}

/* ------------------------------------------------------------------ values */

/* The value of a float of few bits: so many of the mantissa, a bias, and the
 * first magnitude that is Inf or NaN. */
static inline float value_of(int32_t magnitude, int32_t sign, int mantissa,
                             int bias, int32_t first_special)
{
    const float step =
        roped_bits_float((uint32_t)(128 - bias - mantissa) << 23);
    const float small = (float)magnitude * step;
    const int32_t digits = magnitude << (23 - mantissa);
    int32_t bits;
    memcpy(&bits, &small, sizeof bits);
    if (magnitude >= 1 << mantissa)
        bits = digits + ((127 - bias) << 23);
    if (magnitude >= first_special)
        bits = digits | 0x7F800000;
    return roped_bits_float((uint32_t)bits | (uint32_t)sign << 24);
}

static void expand(enum code_element element, float *restrict to,
                   const void *from, int64_t n)
{
    const uint8_t *restrict code = from;
    const int8_t *restrict number = from;
    switch (element) {
    case CODE_E4M3:
        for (int64_t i = 0; i < n; i++)
            to[i] = value_of(code[i] & 0x7F, code[i] & 0x80, 3, 7, 0x7F);
        break;
    case CODE_E5M2:
        for (int64_t i = 0; i < n; i++)
            to[i] = value_of(code[i] & 0x7F, code[i] & 0x80, 2, 15, 0x7C);
        break;
    case CODE_I8:
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)number[i];
        break;
    case CODE_E2M1:
        for (int64_t i = 0; i < n / 2; i++) {
            to[2 * i] = value_of(code[i] & 7, code[i] << 4 & 0x80, 1, 1, 8);
            to[2 * i + 1] = value_of(code[i] >> 4 & 7, code[i] & 0x80, 1, 1, 8);
        }
        break;
    }
}

static void multiply(float *x, int64_t n, int64_t tile, const float *scale)
{
    for (; n > 0; x += tile, n -= tile, scale++) {
        const int64_t n_here = n < tile ? n : tile;
        const float factor = *scale;
        for (int64_t i = 0; i < n_here; i++)
            x[i] *= factor;
    }
}

extern const struct cpu_quantize_rows ISA(cpu_quantize_rows);
const struct cpu_quantize_rows ISA(cpu_quantize_rows) = {
    .largest = largest,
    .encode = encode,
    .expand = expand,
    .multiply = multiply,
};
