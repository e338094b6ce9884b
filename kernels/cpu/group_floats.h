/*
 * group_floats.h - NVFP4 codes of groups of 16 floats, by a table for each
 * scale: with AVX-512. See group_words.h for what becomes codes from words.
 *
 * A product with a number near factor / scale says in which half of a unit a
 * quotient lies. Each half has at most one number at which a code begins, and a
 * table has the least float whose quotient is rounded to that code. So the
 * product may be wrong by a quarter of a unit, and codes are those of quotients
 * nevertheless.
 */
#ifndef ROPED_CPU_GROUP_FLOATS_H
#define ROPED_CPU_GROUP_FLOATS_H

#include "cpu/group_words.h"

/*
 * The least floats whose codes are 1 to 7 where values are multiplied by factor
 * and divided by d, each rounded to float32: see fill_nibble_words. They are at
 * most three floats from what a division says, unless some of these numbers are
 * too small or too large for that: false.
 */
INLINE bool find_least_floats(float factor, float d, float *least)
{
    enum { GOES_UP = 0x2A, CODES = 0x7F, NEAR = 3 };
    const __m256 half_way =
        _mm256_setr_ps(0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 5);
    const __m256i one = _mm256_set1_epi32(1);
    __m256i x =
        _mm256_sub_epi32(_mm256_castps_si256(half_way * _mm256_set1_ps(d) /
                                             _mm256_set1_ps(factor)),
                         _mm256_set1_epi32(NEAR));
    __m256i found = x;
    __mmask8 is_below = 0;
    for (int i = 0; i <= 2 * NEAR; i++) {
        const __m256 q =
            _mm256_castsi256_ps(x) * _mm256_set1_ps(factor) / _mm256_set1_ps(d);
        is_below =
            (__mmask8)((_mm256_cmp_ps_mask(q, half_way, _CMP_LT_OQ) & GOES_UP) |
                       (_mm256_cmp_ps_mask(q, half_way, _CMP_LE_OQ) &
                        ~GOES_UP));
        if (i == 0 && (is_below & CODES) != CODES)
            return false;
        found = _mm256_mask_add_epi32(found, is_below, found, one);
        x = _mm256_add_epi32(x, one);
    }
    _mm256_storeu_si256((void *)least, found);
    return (is_below & CODES) == 0;
}

/*
 * Halves are counted in the last bits of floats from 2 on, up to the fifteenth,
 * where NaN is as well. Codes are divided by Inf where a scale is 0: no float
 * is large enough for any but 0.
 */
enum { N_HALVES = 16 };
#define HALVES_FROM 2.0f
#define ONE_HALF    0x1p-22f

INLINE bool fill_nibble_floats(float factor, float d,
                               struct cpu_nibble_float *to)
{
    static const uint8_t of_half[N_HALVES] = {0, 1, 2, 3, 4, 4, 5, 5,
                                              6, 6, 6, 6, 6, 6, 6, 6};
    const float product = 2 * ONE_HALF * (factor / d);
    float least[8];
    to->product = 0;
    for (int i = 0; i < N_HALVES; i++)
        to->least[i] = INFINITY;
    if (d == 0)
        return true;
    if (!(product >= 0x1p-100f && product <= 0x1p100f) ||
        !find_least_floats(factor, d, least))
        return false;
    to->product = product;
    for (int i = 0; i < N_HALVES; i++)
        to->least[i] = least[of_half[i]];
    return true;
}

/* False where a scale has no table. */
INLINE bool know_float_scales(float factor, int64_t n, const uint8_t *scale,
                              struct cpu_nibble_floats *table)
{
    for (int64_t i = 0;
         (i += first_unknown(table->is_known, scale + i, n - i)) < n;) {
        const uint8_t code = scale[i];
        if (!fill_nibble_floats(factor, roped_e4m3_to_float(code),
                                &table->of[code]))
            return false;
        table->is_known[code] = true;
    }
    return true;
}

/* In the lowest six bits of a lane the half, 16 where a float is not below the
 * least one there, and 32 where it is negative. */
INLINE __m512i places_in_halves(vfloat x, const struct cpu_nibble_float *of)
{
    enum { UPPER = 16, NEGATIVE = 32, SIGN_TO_NEGATIVE = 26 };
    const vfloat magnitude = _mm512_abs_ps(x);
    /* the second of a minimum, where the first is NaN */
    const __m512i half = _mm512_castps_si512(_mm512_min_ps(
        _mm512_fmadd_round_ps(magnitude, splat(of->product), splat(HALVES_FROM),
                              _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC),
        splat(HALVES_FROM + (N_HALVES - 1) * ONE_HALF)));
    const __mmask16 is_upper = _mm512_cmp_ps_mask(
        magnitude, _mm512_permutexvar_ps(half, _mm512_load_ps(of->least)),
        _CMP_GE_OQ);
    return selected(
        _mm512_set1_epi32(NEGATIVE),
        _mm512_srli_epi32(_mm512_castps_si512(x), SIGN_TO_NEGATIVE),
        _mm512_mask_add_epi32(half, is_upper, half, _mm512_set1_epi32(UPPER)));
}

/* Codes of four groups: byte i of lane j is that of value j of group i. What
 * halves are counted from has none of the bits that are looked up. */
INLINE __m512i codes_of_places(const __m512i *place)
{
    static const _Alignas(64) uint8_t code[64] = {
        0, 1,  2,  3,  4,  4,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,
        1, 2,  3,  4,  5,  5,  6,  6,  7,  7,  7,  7,  7,  7,  7,  7,
        8, 9,  10, 11, 12, 12, 13, 13, 14, 14, 14, 14, 14, 14, 14, 7,
        9, 10, 11, 12, 13, 13, 14, 14, 15, 15, 15, 15, 15, 15, 15, 15};
    const __m512i all = place[0] | _mm512_slli_epi32(place[1], 8) |
                        _mm512_slli_epi32(place[2], 16) |
                        _mm512_slli_epi32(place[3], 24);
    return _mm512_permutexvar_epi8(all, _mm512_load_si512(code));
}

/* Byte i of lane j is the pair j of group i, of eight, and becomes byte j of
 * lane i. */
INLINE __m512i turned_bytes(__m512i x)
{
    const __m512i index = _mm512_set_epi8(
        63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53,
        45, 37, 29, 21, 13, 5, 60, 52, 44, 36, 28, 20, 12, 4, 59, 51, 43, 35,
        27, 19, 11, 3, 58, 50, 42, 34, 26, 18, 10, 2, 57, 49, 41, 33, 25, 17, 9,
        1, 56, 48, 40, 32, 24, 16, 8, 0);
    return _mm512_permutexvar_epi8(index, x);
}

/* Of n values, at most a step, and as many scales as a step has groups. */
INLINE void encode_nv_floats(bool is_streamed, void *to, const float *x,
                             int64_t n, const uint8_t *scale,
                             const struct cpu_nibble_floats *table)
{
    enum { FIRST_OF_TWO = 0x5555 };
    __m512i place[NV_GROUPS];
    for (int i = 0; i < NV_GROUPS; i++)
        place[i] = places_in_halves(
            n == NV_STEP ? _mm512_loadu_ps(x + i * NV_GROUP)
                         : _mm512_maskz_loadu_ps(first_floats(n - i * NV_GROUP),
                                                 x + i * NV_GROUP),
            &table->of[scale[i]]);
    const __m512i a = codes_of_places(place);
    const __m512i b = codes_of_places(place + NV_GROUPS / 2);
    /* the first values of pairs, of a and b by turns, and the second ones */
    const __m512i first =
        _mm512_mask_mov_epi32(_mm512_slli_epi64(b, 32), FIRST_OF_TWO, a);
    const __m512i second =
        _mm512_mask_mov_epi32(b, FIRST_OF_TWO, _mm512_srli_epi64(a, 32));
    store_bytes(to, turned_bytes(first | _mm512_slli_epi32(second, 4)), n / 2,
                is_streamed);
}

INLINE void encode_nvfp4_floats(bool is_streamed, uint8_t *to, const float *x,
                                int64_t n, int64_t ahead, const uint8_t *scale,
                                const struct cpu_nibble_floats *table)
{
    int64_t i = 0;
    for (; i + NV_STEP <= n; i += NV_STEP) {
        ask_ahead(x + i, ahead, NV_STEP * (int64_t)sizeof *x);
        encode_nv_floats(is_streamed, to + i / 2, x + i, NV_STEP,
                         scale + i / NV_GROUP, table);
    }
    if (i < n) {
        uint8_t last[NV_GROUPS] = {0};
        memcpy(last, scale + i / NV_GROUP, (size_t)((n - i) / NV_GROUP));
        encode_nv_floats(false, to + i / 2, x + i, n - i, last, table);
    }
}

#endif
