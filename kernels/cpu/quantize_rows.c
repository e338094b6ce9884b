/*
 * quantize_rows.c - largest values and codes of a block, and values of codes;
 * built once per instruction set, as rows.c is. Magnitudes have the order of
 * their bits.
 */
#include "cpu/quantize_rows.h"
#include "cpu/quotients.h"

#include <math.h>

#if defined(HAS_BYTE_TABLES)
#include "cpu/group_floats.h"
#endif

/* ----------------------------------------------------------------- largest */

/* The larger magnitude, lane by lane, by its bits: with all, that of NaN too,
 * which is beyond every number. larger_magnitude is for results of arithmetic:
 * a signalling NaN would take the place of the largest. */
INLINE vint larger(bool all, vfloat x, vint most)
{
    const vint bits = (vint)x & 0x7FFFFFFF;
    return all ? larger_integers(bits, most)
               : (vint)at_least((vfloat)most, (vfloat)bits);
}

/* Four at a time, as each waits for the one before. */
INLINE vint larger_of(bool all, const float *x, int64_t n, vint most)
{
    enum { FOUR = 4 };
    vint found[FOUR] = {most, most, most, most};
    int64_t i = 0;
    for (; i + FOUR * LANES <= n; i += FOUR * LANES)
        for (int j = 0; j < FOUR; j++)
            found[j] = larger(all, load_lanes(x + i + j * LANES), found[j]);
    for (int j = 0; i + LANES <= n; i += LANES, j = !j)
        found[j] = larger(all, load_lanes(x + i), found[j]);
    if (i < n) {
        const block z = load32_part(x + i, n - i);
        found[0] = larger(all, z.lo, found[0]);
    }
    for (int j = 1; j < FOUR; j++)
        found[0] = larger(all, (vfloat)found[j], found[0]);
    return found[0];
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

INLINE void largest_of_narrow(const float *x, int64_t n, int32_t *most)
{
#if defined(HAS_BYTE_TABLES)
    enum { SIXTEEN = NV_GROUP * LANES };
    for (; n >= SIXTEEN; n -= SIXTEEN, x += SIXTEEN, most += LANES)
        largest_of_sixteen(x, NV_GROUP, SIXTEEN, true, most);
#endif
    largest_of_tiles(false, x, n, 16, most);
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
        largest_of_narrow(x, n, most);
    else
        largest_of_tiles(false, x, n, tile, most);
}

/* ------------------------------------------------------------------- codes */

/* Of so many values each: no tile is smaller, and all are multiples. */
enum { STEP = 16, STEPS = CPU_BLOCK / STEP };

/* Codes in the making. Those of e2m1 are bytes first. */
struct making {
    const struct cpu_codes *how;
    const float *x;
    uint8_t *to;
    int64_t n;
    bool is_streamed;
    /* of each step: see struct divisor */
    float divisor[STEPS], inverse[STEPS], rest[STEPS];
    _Alignas(64) uint16_t two[STEPS * STEP / 2]; /* codes, a byte each */
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

/* Codes of n quotients, each correctly rounded. They go from registers to where
 * they stay: what is streamed is written in order, and a load that two stores
 * made up would wait behind it. */
INLINE void store_quotients(enum code_element element, struct making *of,
                            int64_t i, block q, int64_t n)
{
    const float least = of->how->least;
    if (is_fp8(element))
        store(fp8_of(element), HALVES, of->to + i, q, 1, n, of->is_streamed);
    else if (element == CODE_I8)
        store_raw8(of->to + i,
                   low_bytes(i8_of(q.lo, least), i8_of(q.hi, least)), n,
                   of->is_streamed);
    else
        store8(of->two + i / 2, narrow_fp8(q, 1, 1, 1, 6)); /* see pack */
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
        of->inverse[i] = 1 / of->divisor[i];
    for (int64_t i = 0; !is_exact && i < n_steps; i++) {
        const struct divisor one = divisor_of(of->divisor[i]);
        of->inverse[i] = one.inverse;
        of->rest[i] = one.rest;
    }
    for (int64_t i = 0; i < of->n; i += BLOCK) {
        const block x = load_step(element, of, i);
        const block inverse = step_of(of->inverse, i);
        store_quotients(element, of, i,
                        is_exact ? product(x, inverse)
                                 : quotients(x, step_of(of->divisor, i),
                                             inverse, step_of(of->rest, i)),
                        of->n - i < BLOCK ? of->n - i : BLOCK);
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

/* Two codes are a byte. As FP8 of one mantissa bit and bias 1 each has a byte,
 * with the sign on top; NaN is 0x7F and becomes 7. */
static void pack(const struct making *of, uint8_t *restrict to)
{
    const uint16_t *restrict two = of->two;
    for (int64_t i = 0; i < of->n / 2; i++) {
        const int code = (two[i] & 0x0707) | (two[i] >> 4 & 0x0808);
        to[i] = (uint8_t)(code | code >> 4);
    }
}

/* What is streamed is whole lines. */
static void put(uint8_t *to, const uint8_t *from, int64_t n, bool is_streamed)
{
    int64_t i = 0;
    if (is_streamed)
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

/* What tiles have, for each step of n values. */
static void spread_tiles(float *to, const float *of_tile, int64_t n,
                         int64_t tile)
{
    const int64_t n_steps = (n + STEP - 1) / STEP;
    const int64_t n_tiles = (n + tile - 1) / tile, steps = tile / STEP;
    if (n_tiles == 1)
        spread(to, of_tile, 1, n_steps);
    else if (steps == 1)
        spread(to, of_tile, n_tiles, 1);
    else if (steps == 2)
        spread(to, of_tile, n_tiles, 2);
    else
        spread(to, of_tile, n_tiles, steps);
    const int64_t end = n_tiles == 1 ? n_steps : n_tiles * steps;
    if (end < STEPS) /* a block may reach behind the last tile */
        to[end] = of_tile[n_tiles - 1];
}

static void encode(const struct cpu_codes *how, void *to, const float *x,
                   int64_t n, int64_t tile, const float *divisor)
{
    struct making of;
#if defined(HAS_BYTE_TABLES)
    if (how->element == CODE_I8 && (tile >= n || tile % TABLE_STEP == 0)) {
        struct cpu_codes own = *how;
        own.ahead = 0;
        ISA(cpu_encode_type)(&own, ROPED_F32, to, x, n, tile, divisor, NULL);
        return;
    }
#endif
    of.how = how;
    of.x = x;
    of.to = to;
    of.n = n;
    of.is_streamed = how->is_streamed && is_aligned(ROPED_U8, to, 0);
    spread_tiles(of.divisor, divisor, n, tile);
    make_all(are_powers(of.divisor, (n + STEP - 1) / STEP), &of);
    if (how->element != CODE_E2M1)
        return;
    pack(&of, of.code);
    put(to, of.code, code_bytes(how->element, n), of.is_streamed);
}

/* ------------------------------------------------------------------ groups */

INLINE float number_of(const struct code_rule *rule, int32_t largest)
{
    const struct cpu_fp8_scale how = {rule->scale_ub, rule->largest,
                                      rule->least_scale};
    const float scale =
        cpu_fp8_scale_of(&how, roped_bits_float((uint32_t)largest));
    const uint32_t bits = roped_float_bits(scale == 0 ? 1 : scale);
    return roped_bits_float(
        rule->power_of_two ? (bits + 0x7FFFFFu) & 0x7F800000u : bits);
}

/* Several are whole vectors: what is loaded of parts waits until they are
 * written, behind all that was streamed before. */
static void numbers(const struct code_rule *rule, const int32_t *largest,
                    int64_t n, float *scale)
{
    const struct code_rule own = *rule;
    if (n == 1)
        *scale = number_of(&own, *largest);
    for (int64_t i = 0; n > 1 && i < n; i += LANES)
        for (int64_t j = i; j < i + LANES; j++)
            scale[j] = number_of(&own, largest[j]);
}

static void powers(const struct code_rule *rule, const int32_t *largest,
                   int64_t n, uint8_t *code, float *divisor)
{
    enum { INFINITE = 0x7F800000, EXPONENT_0 = 127 };
    const uint32_t round_bits = rule->round_bits;
    const int32_t less =
        (int32_t)(roped_float_bits(rule->largest) >> 23) - EXPONENT_0;
    const int32_t of_infinity = rule->infinity == INFINITY_IS_NAN ? 0xFF : 0xFE;
    for (int64_t i = 0; i < n; i++) {
        const int32_t a = largest[i];
        int32_t e = (int32_t)(((uint32_t)a + round_bits) >> 23) - less;
        e = e < 0 ? 0 : e;
        e = a == INFINITE ? of_infinity : e;
        e = a > INFINITE ? 0xFF : e;
        const uint32_t bits = (uint32_t)e << 23;
        divisor[i] =
            roped_bits_float(bits | (e == 0 || e == 0xFF ? 0x400000u : 0));
        code[i] = (uint8_t)e;
    }
}

#if defined(HAS_BYTE_TABLES)
INLINE void odd_words_of(enum roped_dtype dtype, bool asks_ahead, uint16_t *to,
                         const void *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        const void *from = at(dtype, x, i);
        if (asks_ahead)
            prefetch_ahead(dtype, from, BLOCK);
        store16(to + i, odd_word(load(dtype, HALVES, from, BLOCK)));
    }
}

static void odd_words(enum roped_dtype dtype, bool asks_ahead, uint16_t *to,
                      const void *x, int64_t n)
{
    if (dtype == ROPED_F16 && asks_ahead)
        odd_words_of(ROPED_F16, true, to, x, n);
    else if (dtype == ROPED_F16)
        odd_words_of(ROPED_F16, false, to, x, n);
    else if (asks_ahead)
        odd_words_of(ROPED_F32, true, to, x, n);
    else
        odd_words_of(ROPED_F32, false, to, x, n);
}

static void largest_groups(enum roped_dtype dtype, const void *x, int64_t n,
                           int64_t group, bool counts_nan, int32_t *most)
{
    if (group == NV_GROUP && dtype == ROPED_F16)
        largest_of_groups(ROPED_F16, NV_GROUP, false, false, x, n, most);
    else if (group == NV_GROUP)
        largest_of_groups(ROPED_BF16, NV_GROUP, false, false, x, n, most);
    else if (counts_nan)
        largest_of_groups(ROPED_BF16, MX_GROUP, true, false, x, n, most);
    else
        largest_of_groups(ROPED_BF16, MX_GROUP, false, false, x, n, most);
}

static void encode_powers(const struct cpu_codes *how, void *to, const void *x,
                          int64_t n, const float *divisor)
{
    const bool is_streamed = how->is_streamed && is_aligned(ROPED_U8, to, 0);
    if (how->element == CODE_E2M1 && is_streamed)
        encode_mxfp4(true, to, x, n, how->ahead, divisor);
    else if (how->element == CODE_E2M1)
        encode_mxfp4(false, to, x, n, how->ahead, divisor);
    else if (is_streamed)
        encode_mxfp8(true, to, x, n, how->ahead, divisor);
    else
        encode_mxfp8(false, to, x, n, how->ahead, divisor);
}

INLINE void encode_nibbles_of(enum roped_dtype dtype,
                              const struct cpu_codes *how, void *to,
                              const void *x, int64_t n, const uint8_t *scale,
                              struct cpu_nibble_words *table)
{
    know_scales(dtype, how->factor, n / NV_GROUP, scale, table);
    if (how->is_streamed && is_aligned(ROPED_U8, to, 0))
        encode_nvfp4(dtype, true, to, x, n, how->ahead, scale, table);
    else
        encode_nvfp4(dtype, false, to, x, n, how->ahead, scale, table);
}

static void encode_nibbles(const struct cpu_codes *how, enum roped_dtype dtype,
                           void *to, const void *x, int64_t n,
                           const uint8_t *scale, struct cpu_nibble_words *table)
{
    if (dtype == ROPED_F16)
        encode_nibbles_of(ROPED_F16, how, to, x, n, scale, table);
    else
        encode_nibbles_of(ROPED_BF16, how, to, x, n, scale, table);
}

static bool encode_float_nibbles(const struct cpu_codes *how, void *to,
                                 const float *x, int64_t n,
                                 const uint8_t *scale,
                                 struct cpu_nibble_floats *table)
{
    if (!know_float_scales(how->factor, n / NV_GROUP, scale, table))
        return false;
    if (how->is_streamed && is_aligned(ROPED_U8, to, 0))
        encode_nvfp4_floats(true, to, x, n, how->ahead, scale, table);
    else
        encode_nvfp4_floats(false, to, x, n, how->ahead, scale, table);
    return true;
}

static void expand_nibbles(void *to, const void *from, int64_t n, int64_t group,
                           const uint8_t *scale, bool is_streamed,
                           const struct cpu_nibble_values *table)
{
    const bool streams = is_streamed && is_aligned(ROPED_U8, to, 0);
    if (group == NV_GROUP && streams)
        expand_nibble_row(NV_GROUP, true, to, from, n, scale, table);
    else if (group == NV_GROUP)
        expand_nibble_row(NV_GROUP, false, to, from, n, scale, table);
    else if (streams)
        expand_nibble_row(MX_GROUP, true, to, from, n, scale, table);
    else
        expand_nibble_row(MX_GROUP, false, to, from, n, scale, table);
}
#endif

/* ------------------------------------------------------------------ values */

typedef uint8_t bytes __attribute__((vector_size(BLOCK)));
typedef uint16_t halves __attribute__((vector_size(2 * BLOCK)));
typedef uint32_t pairs __attribute__((vector_size(2 * BLOCK)));
_Static_assert(sizeof(pairs) == sizeof(vint), "two codes a lane");

/* Codes of floats are the upper bits of float16's, where these have as many
 * bits in the exponent, and of 2^-8 or 2^-14 of them where they have less. NaN
 * of e4m3 has the magnitude of 480. */
INLINE float power_of(enum code_element element)
{
    return element == CODE_E4M3 ? 0x1p8f : element == CODE_E2M1 ? 0x1p14f : 1;
}

INLINE block values_of(enum code_element element, const uint8_t *code)
{
    raw16 half;
    if (element == CODE_I8) {
        const vint lo = load_bytes(code), hi = load_bytes(code + LANES);
        return (block){floats_of(lo << 24 >> 24), floats_of(hi << 24 >> 24)};
    }
    if (element == CODE_E2M1) { /* two a byte */
        const pairs x = (pairs)load_bytes(code);
        const pairs y =
            (x & 8) << 12 | (x & 7) << 9 | (x & 0x80) << 24 | (x & 0x70) << 21;
        memcpy(&half, &y, sizeof half);
    } else {
        bytes one;
        memcpy(&one, code, sizeof one);
        const halves x = __builtin_convertvector(one, halves);
        const halves nan = (halves)((x & 0x7F) == 0x7F) & 0x7C00;
        const halves y = element == CODE_E5M2
                             ? x << 8
                             : ((x & 0x80) << 8 | (x & 0x7F) << 7 | nan);
        memcpy(&half, &y, sizeof half);
    }
    return times(widen_f16(half), splat(power_of(element)));
}

/* Some values; a step's scale is that of its tile. */
struct expanding {
    void *to;
    const uint8_t *code;
    int64_t n, tile;
    bool has_one_scale;
    float scale[STEPS];
};

/* Elements [i, i + n), at most a block. */
INLINE void expand_block(enum code_element element, enum roped_dtype type,
                         const struct expanding *of, int64_t i, int64_t n,
                         bool is_streamed)
{
    const uint8_t *code = of->code + code_bytes(element, i);
    uint8_t part[BLOCK] = {0};
    if (n < BLOCK) {
        memcpy(part, code, (size_t)code_bytes(element, n));
        code = part;
    }
    store(type, HALVES, place(type, of->to, i),
          product(values_of(element, code), step_of(of->scale, i)), 1, n,
          is_streamed);
}

#if defined(HAS_BYTE_TABLES)
/* As floats. */
INLINE void expand_part(enum code_element element, enum roped_dtype type,
                        const struct expanding *of, int64_t i, int64_t n,
                        bool is_streamed)
{
    for (; n >= BLOCK; n -= BLOCK, i += BLOCK)
        expand_block(element, type, of, i, BLOCK, is_streamed);
}

/* The bfloat16 of all codes of e4m3 times a scale. */
INLINE void bf16_of_e4m3(float scale, raw16 *value)
{
    static const uint8_t code[128] = {
#define EIGHT(i) i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7
        EIGHT(0),  EIGHT(8),   EIGHT(16),  EIGHT(24), EIGHT(32), EIGHT(40),
        EIGHT(48), EIGHT(56),  EIGHT(64),  EIGHT(72), EIGHT(80), EIGHT(88),
        EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)};
    for (int i = 0; i < 128 / BLOCK; i++)
        value[i] = narrow16(
            ROPED_BF16, HALVES,
            times(values_of(CODE_E4M3, code + i * BLOCK), splat(scale)));
}

/* Groups of 32 of MXFP8, two at a time: bfloat16 by one table, and as many
 * binades further as the scale says, where they stay normal numbers. */
INLINE int64_t expand_powers(const struct expanding *of, bool is_streamed)
{
    raw16 value[128 / BLOCK];
    int64_t i = 0;
    bf16_of_e4m3(1, value);
    const struct value_table table = value_table_of(value);
    for (; i + TABLE_STEP <= of->n; i += TABLE_STEP) {
        const uint8_t *code = of->code + i;
        const uint32_t word[2] = {
            roped_float_bits(of->scale[i / STEP]) >> 16,
            roped_float_bits(of->scale[(i + BLOCK) / STEP]) >> 16};
        prefetch(code + AHEAD);
        if (UNLIKELY(!shifts_e4m3(word[0]) || !shifts_e4m3(word[1]))) {
            expand_part(CODE_E4M3, ROPED_BF16, of, i, TABLE_STEP, is_streamed);
            continue;
        }
        look_up_values(&table, code, value);
        shift_values(_mm512_loadu_si512(code), word, value);
        for (int j = 0; j < 2; j++)
            store_raw16(place(ROPED_BF16, of->to, i + j * BLOCK), value[j],
                        BLOCK, is_streamed);
    }
    return i;
}

/* Tiles of whole steps, of which each has a table. */
INLINE int64_t expand_tiles(const struct expanding *of, bool is_streamed)
{
    raw16 value[128 / BLOCK];
    int64_t i = 0;
    bf16_of_e4m3(1, value);
    const __m512i nan = value[3];
    while (i + TABLE_STEP <= of->n) {
        const int64_t left = (of->n - i) / TABLE_STEP * TABLE_STEP;
        const int64_t end = i + (left < of->tile ? left : of->tile);
        const float scale = of->scale[i / STEP];
        if (UNLIKELY(!scales_e4m3(scale))) {
            expand_part(CODE_E4M3, ROPED_BF16, of, i, end - i, is_streamed);
            i = end;
            continue;
        }
        spread_values(narrow16(ROPED_BF16, HALVES, first_values(scale)), nan,
                      value);
        const struct value_table table = value_table_of(value);
        for (; i < end; i += TABLE_STEP) {
            prefetch(of->code + AHEAD + i);
            look_up_values(&table, of->code + i, value);
            for (int j = 0; j < 2; j++)
                store_raw16(place(ROPED_BF16, of->to, i + j * BLOCK), value[j],
                            BLOCK, is_streamed);
        }
    }
    return i;
}

/* The first elements, as many as tables can tell, which take as long as some
 * hundred codes. With other scales NaN has a sign of its own. */
INLINE int64_t expand_by_table(enum code_element element, enum roped_dtype type,
                               const struct expanding *of, bool is_streamed)
{
    enum { FEWEST = 512, N_CODES = 128 };
    if (element == CODE_E4M3 && type == ROPED_BF16 && of->n >= FEWEST &&
        !of->has_one_scale && of->tile % TABLE_STEP == 0)
        return expand_tiles(of, is_streamed);
    if (element == CODE_E4M3 && type == ROPED_BF16 && of->n >= FEWEST &&
        !of->has_one_scale && of->tile == MX_GROUP &&
        are_powers(of->scale, of->n / STEP))
        return expand_powers(of, is_streamed);
    const float scale = of->scale[0];
    raw16 value[N_CODES / BLOCK];
    uint8_t code[N_CODES];
    int64_t i = 0;
    if (!is_fp8(element) || size_of(type) != 2 || !of->has_one_scale ||
        of->n < FEWEST || !isfinite(scale) || scale == 0)
        return 0;
    for (int j = 0; j < N_CODES; j++)
        code[j] = (uint8_t)j;
    for (int j = 0; j < N_CODES / BLOCK; j++)
        value[j] =
            narrow16(type, HALVES,
                     times(values_of(element, code + j * BLOCK), splat(scale)));
    const struct value_table table = value_table_of(value);
    for (; i + TABLE_STEP <= of->n; i += TABLE_STEP) {
        prefetch(of->code + AHEAD + i);
        look_up_values(&table, of->code + i, value);
        for (int j = 0; j < TABLE_STEP / BLOCK; j++)
            store_raw16(place(type, of->to, i + j * BLOCK), value[j], BLOCK,
                        is_streamed);
    }
    return i;
}
#endif

INLINE void expand_row(enum code_element element, enum roped_dtype type,
                       const struct expanding *of, bool may_stream)
{
    const bool is_streamed = may_stream && is_aligned(type, of->to, 0);
    int64_t i = 0;
#if defined(HAS_BYTE_TABLES)
    i = expand_by_table(element, type, of, is_streamed);
#endif
    for (; i + BLOCK <= of->n; i += BLOCK) {
        prefetch(at(ROPED_U8, of->code, AHEAD + code_bytes(element, i)));
        expand_block(element, type, of, i, BLOCK, is_streamed);
    }
    if (i < of->n)
        expand_block(element, type, of, i, of->n - i, false);
}

INLINE void expand_codes(enum code_element element,
                         const struct cpu_expansion *how,
                         const struct expanding *of)
{
    if (how->to == ROPED_F16)
        expand_row(element, ROPED_F16, of, how->is_streamed);
    else if (how->to == ROPED_BF16)
        expand_row(element, ROPED_BF16, of, how->is_streamed);
    else
        expand_row(element, ROPED_F32, of, how->is_streamed);
}

static void expand(const struct cpu_expansion *how, void *to, const void *from,
                   int64_t n, int64_t tile, const float *scale)
{
    struct expanding of;
    of.to = to;
    of.code = from;
    of.n = n;
    of.tile = tile;
    of.has_one_scale = tile >= n;
    spread_tiles(of.scale, scale, n, tile);
    switch (how->element) {
    case CODE_E4M3:
        expand_codes(CODE_E4M3, how, &of);
        break;
    case CODE_E5M2:
        expand_codes(CODE_E5M2, how, &of);
        break;
    case CODE_I8:
        expand_codes(CODE_I8, how, &of);
        break;
    case CODE_E2M1:
        expand_codes(CODE_E2M1, how, &of);
        break;
    }
}

extern const struct cpu_quantize_rows ISA(cpu_quantize_rows);
const struct cpu_quantize_rows ISA(cpu_quantize_rows) = {
    .largest = largest,
    .encode = encode,
#if defined(HAS_BYTE_TABLES)
    .largest_of = ISA(cpu_largest_of),
    .largest_results = ISA(cpu_largest_results),
    .encode_type = ISA(cpu_encode_type),
    .odd_words = odd_words,
    .largest_groups = largest_groups,
    .encode_powers = encode_powers,
    .encode_nvfp4 = encode_nibbles,
    .encode_nvfp4_floats = encode_float_nibbles,
    .first_unknown = first_unknown,
    .expand_nibbles = expand_nibbles,
#endif
    .numbers = numbers,
    .powers = powers,
    .expand = expand,
};
