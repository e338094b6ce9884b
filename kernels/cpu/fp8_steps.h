/*
 * fp8_steps.h - FP8 codes of values that have one divisor, and largest values:
 * with AVX-512.
 *
 * Nothing is divided. Codes are the same in each binade of them, whose steps
 * are found once, and are a look-up and a sum then. Values that are not normal
 * numbers as codes are divided.
 */
#ifndef ROPED_CPU_FP8_STEPS_H
#define ROPED_CPU_FP8_STEPS_H

#include "cpu/group_words.h"

enum { CUT_BF16 = 16, CUT_F16 = 13 };

/* ------------------------------------------------------------------- steps */

/*
 * struct cpu_fp8_steps says where codes begin, for values of one divisor d.
 * Bits of magnitudes are those of words, or of floats: words with 16 more
 * behind them. A binade of codes has 128 words from base on, slots of eight,
 * none of which has the beginnings of two codes. In each slot a number that is
 * added to bits, less those of base, makes codes of them: 1 << (7 - m) words
 * have one code then, 0 at zero.
 */

/*
 * The least bits whose quotients by d, correctly rounded to float32, have a
 * code above 8 numbers of so many units, or 4, that are half-way between two
 * codes, of which the lower one is even and odd by turns. half_way has the
 * middle between such a number and the next float32, from which on quotients
 * are no longer that number: above it where ties go down, and below it where
 * they go up. Products with d are exact. Returned is how far they are below
 * 'from', and 0 behind them.
 */
INLINE __m512i steps_below(int m, int cut, double unit, int64_t from)
{
    enum { FIRST = (1023 - 127) << 7 }; /* exponent 0, of words */
    const __m512i goes_up = _mm512_set_epi64(1, 0, 1, 0, 1, 0, 1, 0);
    const __m512d half_way =
        m == 3 ? _mm512_set_pd(15.5 - 0x1p-21, 14.5 + 0x1p-21, 13.5 - 0x1p-21,
                               12.5 + 0x1p-21, 11.5 - 0x1p-21, 10.5 + 0x1p-21,
                               9.5 - 0x1p-21, 8.5 + 0x1p-21)
               : _mm512_set_pd(0, 0, 0, 0, 7.5 - 0x1p-22, 6.5 + 0x1p-22,
                               5.5 - 0x1p-22, 4.5 + 0x1p-22);
    const __m512i bits =
        _mm512_castpd_si512(_mm512_mul_pd(half_way, _mm512_set1_pd(unit)));
    const __m512i last = _mm512_srli_epi64(_mm512_sub_epi64(bits, goes_up),
                                           (unsigned)(29 + cut));
    const __m512i below = _mm512_sub_epi64(
        _mm512_set1_epi64(from + ((int64_t)FIRST << (16 - cut)) - 1), last);
    return _mm512_zextsi256_si512(
        _mm512_maskz_cvtepi64_epi32((__mmask8)((1u << (1 << m)) - 1), below));
}

/* How many bits of floats are cut off: all that words of bfloat16 and float16
 * do not have, where the largest code is a number of float16 that is not too
 * small; else float16 are floats. */
INLINE int cut_of(int m, enum roped_dtype dtype, float d)
{
    const float most = d * (m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX);
    if (dtype == ROPED_F16)
        return most >= 0x1p-2f && most <= 0x1p17f ? CUT_F16 : 0;
    return dtype == ROPED_BF16 ? CUT_BF16 : 0;
}

INLINE void find_steps(int m, int cut, float d, struct cpu_fp8_steps *steps)
{
    enum { WORDS = 128, SLOT = 8 };
    const int by = 16 - cut; /* bits behind those of words */
    const int step = WORDS >> m;
    const float max = m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    const float normal = d * (m == 3 ? 0x1p-6f : 0x1p-14f);
    const float unit = d * (m == 3 ? 0x1p-9f : 0x1p-16f);
    const int32_t base = (int32_t)(roped_float_bits(normal) >> 16) << by;
    const __m512i slot =
        _mm512_set_epi32(15 * SLOT, 14 * SLOT, 13 * SLOT, 12 * SLOT, 11 * SLOT,
                         10 * SLOT, 9 * SLOT, 8 * SLOT, 7 * SLOT, 6 * SLOT,
                         5 * SLOT, 4 * SLOT, 3 * SLOT, 2 * SLOT, SLOT, 0);
    /* how many codes have begun where a slot does, or one less where the last
     * of these begins there */
    const __m512 first = _mm512_castsi512_ps(_mm512_add_epi32(
        _mm512_slli_epi32(_mm512_set1_epi32(base), (unsigned)cut),
        _mm512_slli_epi32(slot, 16)));
    const __m512i n = _mm512_cvttps_epi32(_mm512_fmadd_ps(
        first, splat(0x1.fffffp-1f / unit), splat(m == 3 ? -7.5f : -3.5f)));
    const __m512i next = _mm512_permutexvar_epi32(
        n, steps_below(m, cut, unit, base + ((WORDS + step) << by)));
    const __m512i no_step = _mm512_slli_epi32(
        _mm512_sub_epi32(_mm512_set1_epi32(WORDS), slot), (unsigned)by);
    __m512i more =
        _mm512_add_epi32(_mm512_slli_epi32(n, (unsigned)(7 - m + by)),
                         _mm512_max_epi32(next, no_step));
    /* float16 has smaller exponents, and other words of what is subnormal */
    const int32_t less = cut == CUT_F16 ? (127 - 15) << 10 : 0;
    const int32_t infinite =
        cut == CUT_F16 ? infinity_of(ROPED_F16) : BF16_INFINITY << by;
    const int32_t binade = WORDS << by;
    int32_t least = base - less;
    if (cut == CUT_F16 && least < binade) {
        const int32_t up = (2 * binade - 1 - least) / binade * binade;
        least += up;
        more = _mm512_add_epi32(more, _mm512_set1_epi32(up));
    }
    const int32_t twice = cut > 0 ? 0x10001 : 1;
    if (cut > 0)
        more = _mm512_or_si512(more, _mm512_slli_epi32(more, 16));
    _mm512_store_si512(steps->more, more);
    steps->base = least * twice;
    steps->room = (infinite - 1 - least) * twice;
    steps->most =
        ((int32_t)(roped_float_bits(d * max) >> cut) - less - least) * twice;
    steps->divisor = d;
}

/* ------------------------------------------------------------------- codes */

/* Steps in vectors, which no store can change. */
struct steps {
    __m512i more, base, room, most;
};

INLINE struct steps load_steps(const struct cpu_fp8_steps *of)
{
    return (struct steps){
        _mm512_load_si512(of->more), _mm512_set1_epi32(of->base),
        _mm512_set1_epi32(of->room), _mm512_set1_epi32(of->most)};
}

/* Codes in the upper bytes of words, right where values are normal: others are
 * in rare. */
INLINE __m512i codes_of_words(int m, int cut, const struct steps *steps,
                              raw16 x, __mmask32 *rare)
{
    const int up = m + 1 - (CUT_BF16 - cut);
    const __m512i above =
        _mm512_sub_epi16(x & _mm512_set1_epi16(BF16_MAGNITUDE), steps->base);
    const __m512i from = _mm512_min_epu16(above, steps->most);
    const __m512i slot = cut == CUT_BF16 ? _mm512_srli_epi16(from, 2)
                                         : _mm512_srli_epi16(from, 5);
    const __m512i sum =
        _mm512_add_epi16(from, _mm512_permutexvar_epi16(slot, steps->more));
    *rare = _mm512_cmpgt_epu16_mask(above, steps->room);
    return selected(_mm512_set1_epi16(0x7F00),
                    up == 4   ? _mm512_slli_epi16(sum, 4)
                    : up == 3 ? _mm512_slli_epi16(sum, 3)
                    : up == 1 ? _mm512_slli_epi16(sum, 1)
                              : sum,
                    x);
}

/* The same of floats, in their upper bytes. */
INLINE __m512i codes_of_floats(int m, const struct steps *steps, vfloat x,
                               __mmask16 *rare)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i above =
        _mm512_sub_epi32(bits & _mm512_set1_epi32(INT32_MAX), steps->base);
    const __m512i from = _mm512_min_epu32(above, steps->most);
    const __m512i sum = _mm512_add_epi32(
        from,
        _mm512_permutexvar_epi32(_mm512_srli_epi32(from, 19), steps->more));
    *rare = _mm512_cmpgt_epu32_mask(above, steps->room);
    return selected(_mm512_set1_epi32(0x7F000000),
                    _mm512_slli_epi32(sum, (unsigned)(m + 1)), bits);
}

/* Of a block of values, the first n, and zeros. */
INLINE __m512i codes_of_block(int m, enum roped_dtype dtype, int cut,
                              const struct steps *steps, const void *x,
                              int64_t n, __mmask32 *rare)
{
    *rare = 0;
    if (n <= 0)
        return _mm512_setzero_si512();
    if (cut > 0)
        return codes_of_words(m, cut, steps,
                              n < BLOCK ? load16_part(x, n) : load16(x), rare);
    const block z = load(dtype, HALVES, x, n < BLOCK ? n : BLOCK);
    __mmask16 lo, hi;
    const __m512i first = codes_of_floats(m, steps, z.lo, &lo);
    const __m512i last = codes_of_floats(m, steps, z.hi, &hi);
    *rare = _mm512_kunpackw(hi, lo);
    return upper_words(first, last);
}

/* The codes of quotients, whatever they are. */
static NOINLINE __m512i divided_codes(int m, enum roped_dtype dtype,
                                      const void *x, int64_t n, float d)
{
    const float max = m == 3 ? ROPED_E4M3_MAX : ROPED_E5M2_MAX;
    const vfloat by = splat(d);
    raw8 code[2];
    for (int64_t i = 0; i < 2; i++) {
        const int64_t left = n - i * BLOCK;
        block z = {splat(0), splat(0)};
        if (left > 0)
            z = load(dtype, HALVES, at(dtype, x, i * BLOCK),
                     left < BLOCK ? left : BLOCK);
        code[i] = narrow_fp8((block){z.lo / by, z.hi / by}, 1, m,
                             m == 3 ? 7 : 15, max);
    }
    return joined_bytes(code[0], code[1]);
}

/* The first n of TABLE_STEP. */
INLINE __m512i step_of_codes(int m, enum roped_dtype dtype, int cut,
                             const struct steps *steps, const void *x,
                             int64_t n, float d)
{
    __mmask32 rare[2];
    const __m512i lo = codes_of_block(m, dtype, cut, steps, x, n, &rare[0]);
    const __m512i hi = codes_of_block(m, dtype, cut, steps, at(dtype, x, BLOCK),
                                      n - BLOCK, &rare[1]);
    if (UNLIKELY(!_kortestz_mask32_u8(rare[0], rare[1])))
        return divided_codes(m, dtype, x, n, d);
    return every_second_byte(lo, hi, true);
}

INLINE void encode_cut(int m, enum roped_dtype dtype, int cut, bool is_streamed,
                       const struct cpu_fp8_steps *of, uint8_t *to,
                       const void *x, int64_t n, int64_t ahead)
{
    const struct steps steps = load_steps(of);
    const float d = of->divisor;
    int64_t i = 0;
    for (; i + TABLE_STEP <= n; i += TABLE_STEP) {
        const void *from = at(dtype, x, i);
        if (ahead)
            prefetch_elements(dtype, at(ROPED_U8, from, ahead), TABLE_STEP);
        store_bytes(to + i,
                    step_of_codes(m, dtype, cut, &steps, from, TABLE_STEP, d),
                    TABLE_STEP, is_streamed);
    }
    if (i < n)
        _mm512_mask_storeu_epi8(
            to + i, ((uint64_t)1 << (n - i)) - 1,
            step_of_codes(m, dtype, cut, &steps, at(dtype, x, i), n - i, d));
}

INLINE void encode_row(int m, enum roped_dtype dtype, bool is_streamed,
                       const struct cpu_fp8_steps *of, uint8_t *to,
                       const void *x, int64_t n, int64_t ahead)
{
    if (dtype == ROPED_BF16)
        encode_cut(m, dtype, CUT_BF16, is_streamed, of, to, x, n, ahead);
    else if (cut_of(m, dtype, of->divisor) == CUT_F16)
        encode_cut(m, dtype, CUT_F16, is_streamed, of, to, x, n, ahead);
    else
        encode_cut(m, dtype, 0, is_streamed, of, to, x, n, ahead);
}

#endif
