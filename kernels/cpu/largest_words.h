/*
 * largest_words.h - largest values of groups, from words of bfloat16 and
 * float16 and from floats: with AVX-512. Groups share their last steps.
 */
#ifndef ROPED_CPU_LARGEST_WORDS_H
#define ROPED_CPU_LARGEST_WORDS_H

#include "cpu/fp8_table.h"

enum { WIDE_GROUP = 128, MX_GROUP = 32, NV_GROUP = 16 };

/* -------------------------------------------------------------------- words */

/* The words from 'at' on of n, and zeros. */
INLINE raw16 words_of(const uint16_t *x, int64_t at, int64_t n)
{
    const int64_t left = n - at;
    uint32_t mask = left > 0 ? UINT32_MAX : 0;
    if (left > 0 && left < BLOCK)
        mask = (1u << left) - 1;
    return _mm512_maskz_loadu_epi16(mask, x + at);
}

/* Of lanes of 32 bits. */
INLINE raw16 upper_words(__m512i lo, __m512i hi)
{
    const __m512i odd = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
        27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(lo, odd, hi);
}

/*
 * A float cut off to a word, whose last bit is set where anything was lost. So
 * it has the same place among numbers whose last bit is 0 in a word, and what
 * is rounded to fewer bits is that of the float: all codes and scales of E8M0
 * but those whose scale is so small that words may be subnormal.
 */
INLINE raw16 odd_word(block x)
{
    const __m512i lo = _mm512_castps_si512((__m512)x.lo);
    const __m512i hi = _mm512_castps_si512((__m512)x.hi);
    const __m512i even = _mm512_set_epi16(
        62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
        26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i lost = _mm512_permutex2var_epi16(lo, even, hi);
    return upper_words(lo, hi) | _mm512_min_epu16(lost, _mm512_set1_epi16(1));
}

/* The same of pairs: a shift and a choice instead of each permutation. */
INLINE raw16 odd_word_of_pairs(block x)
{
    const __m512i lower = _mm512_set1_epi32(0xFFFF);
    const __m512i even = _mm512_castps_si512((__m512)x.lo);
    const __m512i odd = _mm512_castps_si512((__m512)x.hi);
    const __m512i word = selected(lower, _mm512_srli_epi32(even, 16), odd);
    const __m512i lost = selected(lower, even, _mm512_slli_epi32(odd, 16));
    return word | _mm512_min_epu16(lost, _mm512_set1_epi16(1));
}

/* ---------------------------------------------------------- largest values */

/* Of each lane of eight vectors, 8 words: those of the first at 0. */
INLINE __m512i largest_of_lanes(const __m512i *x)
{
    __m512i two[4], four[2];
    for (int i = 0; i < 4; i++)
        two[i] =
            _mm512_max_epi16(_mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]),
                             _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        four[i] =
            _mm512_max_epi16(_mm512_unpacklo_epi32(two[2 * i], two[2 * i + 1]),
                             _mm512_unpackhi_epi32(two[2 * i], two[2 * i + 1]));
    return _mm512_max_epi16(_mm512_unpacklo_epi64(four[0], four[1]),
                            _mm512_unpackhi_epi64(four[0], four[1]));
}

/* The larger of two lanes side by side, of x and then of y. */
INLINE __m512i larger_of_lanes(__m512i x, __m512i y)
{
    return _mm512_max_epi16(_mm512_shuffle_i32x4(x, y, 0x88),
                            _mm512_shuffle_i32x4(x, y, 0xDD));
}

/* So many groups of a block and more at once, or twice as many of a half. */
enum { LARGEST_STEP = 16 };

/* Bits of float32, of sixteen words. */
INLINE __m512i float_bits(enum roped_dtype dtype, __m256i word)
{
    return dtype == ROPED_F16
               ? _mm512_castps_si512(_mm512_cvtph_ps(word))
               : _mm512_slli_epi32(_mm512_cvtepu16_epi32(word), 16);
}

/* The same, of n groups. */
INLINE void store_largest(enum roped_dtype dtype, __m512i word, __m512i beyond,
                          int64_t n, int32_t *most)
{
    const __m512i x = _mm512_sub_epi16(_mm512_max_epi16(word, beyond), beyond);
    for (int64_t i = 0; i < 2 && n > i * LANES; i++)
        _mm512_mask_storeu_epi32(
            most + i * LANES, first_floats(n - i * LANES),
            float_bits(dtype, i == 0 ? _mm512_castsi512_si256(x)
                                     : _mm512_extracti64x4_epi64(x, 1)));
}

/* A vector of them; those that are there may be larger. It is stored as a
 * vector: what is loaded of parts waits until they are written, behind all that
 * was streamed before. */
INLINE void store_sixteen(__m512i bits, bool are_there, int32_t *most)
{
    if (are_there)
        bits = _mm512_max_epi32(bits, _mm512_loadu_si512(most));
    _mm512_storeu_si512(most, bits);
}

/* A word. */
INLINE int16_t infinity_of(enum roped_dtype dtype)
{
    return dtype == ROPED_F16 ? 0x7C00 : BF16_INFINITY;
}

/* The lanes of a group, or of the first n of its values, with beyond added. */
INLINE __m512i largest_of_words(const uint16_t *x, int64_t width, int64_t n,
                                __m512i beyond)
{
    const __m512i magnitude = _mm512_set1_epi16(BF16_MAGNITUDE);
    __m512i most = _mm512_setzero_si512();
    if (n >= width)
        for (int64_t i = 0; i < width; i += BLOCK)
            most = _mm512_max_epi16(
                most, _mm512_add_epi16(load16(x + i) & magnitude, beyond));
    for (int64_t i = 0; n < width && i < n; i += BLOCK)
        most = _mm512_max_epi16(
            most, _mm512_add_epi16(words_of(x, i, n) & magnitude, beyond));
    return most;
}

/* Of n values, at most a step. Groups of more than a block are wide. */
INLINE void largest_of_step(enum roped_dtype dtype, int64_t group,
                            bool counts_nan, bool are_there, const uint16_t *x,
                            int64_t n, int32_t *most)
{
    const __m512i even_lanes = _mm512_set_epi16(
        31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17, 24, 16, 15, 7,
        14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    /* with it added NaN is negative */
    const __m512i beyond =
        _mm512_set1_epi16(counts_nan ? 0 : INT16_MAX - infinity_of(dtype));
    const int64_t width = group < BLOCK ? BLOCK : group;
    __m512i found[2], word[8];
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 8; j++) {
            const int64_t at = (8 * i + j) * width;
            word[j] = largest_of_words(x + at, width, n - at, beyond);
        }
        found[i] = largest_of_lanes(word);
    }
    const __m512i pairs = larger_of_lanes(found[0], found[1]);
    const __m512i all = larger_of_lanes(pairs, pairs);
    if (group == NV_GROUP) {
        store_largest(dtype, _mm512_permutexvar_epi16(even_lanes, pairs),
                      beyond, n / NV_GROUP, most);
    } else if (group == MX_GROUP) {
        store_largest(dtype, all, beyond, n / MX_GROUP, most);
    } else {
        const __m256i half = _mm512_castsi512_si256(
            _mm512_sub_epi16(_mm512_max_epi16(all, beyond), beyond));
        store_sixteen(float_bits(dtype, half), are_there, most);
    }
}

INLINE void largest_of_groups(enum roped_dtype dtype, int64_t group,
                              bool counts_nan, bool are_there,
                              const uint16_t *x, int64_t n, int32_t *most)
{
    const int64_t step = LARGEST_STEP * (group < BLOCK ? BLOCK : group);
    for (; n >= step; n -= step, x += step, most += step / group)
        largest_of_step(dtype, group, counts_nan, are_there, x, step, most);
    if (n > 0)
        largest_of_step(dtype, group, counts_nan, are_there, x, n, most);
}

/* The lanes of a group, or of the first n of its values. */
INLINE vfloat largest_of_floats(const float *x, int64_t group, int64_t n)
{
    vfloat most = splat(0);
    if (n >= group)
#pragma GCC unroll 8
        for (int64_t i = 0; i < group; i += LANES)
            most = at_least(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    for (int64_t i = 0; n < group && i < n; i += LANES)
        most = at_least(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(
                                  first_floats(n - i), x + i)));
    return most;
}

/* The last steps of sixteen vectors, of which eight are left. */
INLINE void store_last_steps(vfloat *a, bool are_there, int32_t *most)
{
    for (int i = 0; i < 4; i++) {
        const __m512d y = _mm512_castps_pd(a[2 * i]);
        const __m512d z = _mm512_castps_pd(a[2 * i + 1]);
        a[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(y, z)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(y, z)));
    }
    for (int k = 2; k > 0; k /= 2) /* lanes of 4 groups */
        for (int i = 0; i < k; i++)
            a[i] = _mm512_max_ps(
                _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
    store_sixteen(_mm512_castps_si512(a[0]), are_there, most);
}

/* Of n floats, at most sixteen groups of whole vectors, which share their last
 * steps: the bits of numbers. */
INLINE void largest_of_sixteen(const float *x, int64_t group, int64_t n,
                               bool are_there, int32_t *most)
{
    vfloat a[NV_GROUP];
    for (int64_t i = 0; i < NV_GROUP; i++)
        a[i] = largest_of_floats(x + i * group, group, n - i * group);
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_max_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                             _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    store_last_steps(a, are_there, most);
}

/* The same of sixteen groups of 16, none of which has a signalling NaN: of two
 * others one instruction has the larger magnitude. */
INLINE void largest_of_results(const float *x, int32_t *most)
{
    vfloat a[NV_GROUP / 2];
    for (int i = 0; i < 8; i++) {
        const vfloat y = _mm512_loadu_ps(x + 2 * i * NV_GROUP);
        const vfloat z = _mm512_loadu_ps(x + (2 * i + 1) * NV_GROUP);
        a[i] = at_least(splat(0), larger_magnitude(_mm512_unpacklo_ps(y, z),
                                                   _mm512_unpackhi_ps(y, z)));
    }
    store_last_steps(a, false, most);
}

#endif
