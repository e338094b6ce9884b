/*
 * vector_avx512.h - cpu/vector.h for AVX-512 (F, BW, DQ, VL, VBMI), with or
 * without its bfloat16 instructions.
 */
#ifndef ROPED_CPU_VECTOR_AVX512_H
#define ROPED_CPU_VECTOR_AVX512_H

#include <immintrin.h>

enum {
    LANES = 16,
    BLOCK = 2 * LANES,
    HAS_FUSED = 1,
    HAS_POWERS = 1,
    HAS_JOINED = 1,
    STREAMS = 1,
    UNROLLS = 0
};

typedef __m512 vfloat;
typedef __m512i raw16;
typedef __m256i raw8;
typedef int32_t vint __attribute__((vector_size(sizeof(vfloat))));
typedef struct {
    vfloat lo, hi;
} block;
typedef struct {
    __m512d lo, hi;
} doubles;

/* -------------------------------------------------------------- arithmetic */

/* All lanes. What is written with a mask of these and zeros elsewhere is the
 * instruction without a mask, but GCC 12 sees that two of one value are the
 * same: without a mask each has an undefined vector of its own beside it. */
enum { ALL_LANES = 0xFFFF };

INLINE vfloat splat(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vfloat difference_of_products(vfloat a, vfloat b, vfloat c, vfloat d)
{
    return _mm512_fmsub_ps(a, b, c * d);
}

INLINE vfloat negative_multiply_add(vfloat a, vfloat b, vfloat c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

typedef __mmask16 vmask;

INLINE vmask is_less(vfloat a, vfloat b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

INLINE vmask is_nan(vfloat x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}

INLINE vfloat pick_lanes(vmask mask, vfloat yes, vfloat no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}

INLINE vfloat at_least(vfloat least, vfloat x)
{
    /* the second where one is NaN */
    return _mm512_maskz_max_ps(ALL_LANES, x, least);
}

INLINE vfloat at_most(vfloat most, vfloat x)
{
    return _mm512_maskz_min_ps(ALL_LANES, most, x);
}

INLINE vfloat negative_magnitude(vfloat x)
{
    return _mm512_or_ps(x, splat(-0.0f));
}

INLINE vfloat scaled(vfloat x, vfloat k)
{
    return _mm512_maskz_scalef_ps(ALL_LANES, x, k);
}

INLINE vfloat reciprocal(vfloat x)
{
    const vfloat y = _mm512_maskz_rcp14_ps(ALL_LANES, x);
    return _mm512_fmadd_ps(y, _mm512_fnmadd_ps(x, y, splat(1)), y);
}

INLINE vfloat power_of_part(vint k)
{
    const __m512 first = _mm512_set_ps(
        0x1.6247ecp+0f, 0x1.5ab07ep+0f, 0x1.5342b6p+0f, 0x1.4bfdaep+0f,
        0x1.44e086p+0f, 0x1.3dea64p+0f, 0x1.371a74p+0f, 0x1.306fep+0f,
        0x1.29e9ep+0f, 0x1.2387a6p+0f, 0x1.1d4874p+0f, 0x1.172b84p+0f,
        0x1.11301ep+0f, 0x1.0b5586p+0f, 0x1.059b0ep+0f, 0x1p+0f);
    const __m512 last = _mm512_set_ps(
        0x1.f50766p+0f, 0x1.ea4afap+0f, 0x1.dfc974p+0f, 0x1.d5818ep+0f,
        0x1.cb720ep+0f, 0x1.c199bep+0f, 0x1.b7f77p+0f, 0x1.ae89fap+0f,
        0x1.a5503cp+0f, 0x1.9c4918p+0f, 0x1.93737cp+0f, 0x1.8ace54p+0f,
        0x1.82589ap+0f, 0x1.7a1148p+0f, 0x1.71f75ep+0f, 0x1.6a09e6p+0f);
    return _mm512_permutex2var_ps(first, (__m512i)k, last);
}

INLINE vfloat permuted(vfloat x, vint k)
{
    return _mm512_permutexvar_ps((__m512i)k, x);
}

INLINE vfloat look_up(const float table[32], vint k)
{
    return _mm512_permutex2var_ps(_mm512_load_ps(table), (__m512i)k,
                                  _mm512_load_ps(table + LANES));
}

INLINE vint nearest_integers(vfloat x)
{
    return (vint)_mm512_cvtps_epi32(x);
}

INLINE vfloat floats_of(vint x)
{
    return _mm512_cvtepi32_ps((__m512i)x);
}

INLINE bool all_below(vfloat x, float limit)
{
    return _mm512_cmp_ps_mask(x, splat(limit), _CMP_NLT_UQ) == 0;
}

INLINE vfloat larger_magnitude(vfloat x, vfloat magnitude)
{
    enum { LARGER_MAGNITUDE = 0xB };
    return _mm512_range_ps(x, magnitude, LARGER_MAGNITUDE);
}

INLINE vfloat smaller_magnitude(vfloat x, float most)
{
    enum { SMALLER_MAGNITUDE = 0xA };
    return _mm512_range_ps(x, splat(most), SMALLER_MAGNITUDE);
}

INLINE vfloat largest_magnitude(block x)
{
    return larger_magnitude(x.lo, x.hi);
}

INLINE vfloat unless_negative(vfloat x)
{
    /* the second where one is NaN, or both are 0 */
    return _mm512_max_ps(splat(-0.0f), x);
}

INLINE vint larger_integers(vint a, vint b)
{
    return (vint)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

INLINE float largest_lane(vfloat x)
{
    return _mm512_reduce_max_ps(x);
}

/* Of four vectors, to four floats. */
INLINE void largest_lanes4(const vfloat *x, float *out)
{
    const vfloat ab = _mm512_max_ps(_mm512_unpacklo_ps(x[0], x[1]),
                                    _mm512_unpackhi_ps(x[0], x[1]));
    const vfloat cd = _mm512_max_ps(_mm512_unpacklo_ps(x[2], x[3]),
                                    _mm512_unpackhi_ps(x[2], x[3]));
    const __m512d lo =
        _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d hi =
        _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const vfloat all =
        _mm512_max_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all),
                                      _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(out, _mm_max_ps(_mm256_castps256_ps128(half),
                                  _mm256_extractf128_ps(half, 1)));
}

INLINE vfloat where_odd(vint k, vfloat odd, vfloat even)
{
    return _mm512_mask_blend_ps(
        _mm512_test_epi32_mask((__m512i)k, _mm512_set1_epi32(1)), even, odd);
}

INLINE doubles widen_floats(vfloat x)
{
    return (doubles){_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                     _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}

INLINE double sum_of_doubles(doubles x)
{
    const __m512d sum = x.lo + x.hi;
    const __m256d four =
        _mm512_castpd512_pd256(sum) + _mm512_extractf64x4_pd(sum, 1);
    const __m128d two =
        _mm256_castpd256_pd128(four) + _mm256_extractf128_pd(four, 1);
    return two[0] + two[1];
}

/* Halves of two vectors are added, then quarters of four: the order of
 * sum_of_doubles, whose steps eight vectors share. */
INLINE __m512d add_halves(doubles a, doubles b)
{
    const __m512d x = a.lo + a.hi, y = b.lo + b.hi;
    return _mm512_shuffle_f64x2(x, y, 0x44) + _mm512_shuffle_f64x2(x, y, 0xEE);
}

INLINE __m512d add_quarters(__m512d x, __m512d y)
{
    return _mm512_shuffle_f64x2(x, y, 0x88) + _mm512_shuffle_f64x2(x, y, 0xDD);
}

INLINE void sums_of_doubles8(double *to, const doubles *x)
{
    const __m512d first =
        add_quarters(add_halves(x[0], x[1]), add_halves(x[2], x[3]));
    const __m512d last =
        add_quarters(add_halves(x[4], x[5]), add_halves(x[6], x[7]));
    const __m512d all =
        _mm512_unpacklo_pd(first, last) + _mm512_unpackhi_pd(first, last);
    const __m512i in_order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    _mm512_storeu_pd(to, _mm512_permutexvar_pd(in_order, all));
}

/* ------------------------------------------------------------------ memory */

INLINE __mmask16 first_floats(int64_t n)
{
    return (__mmask16)(n >= LANES ? 0xFFFFu : (1u << (n > 0 ? n : 0)) - 1u);
}

INLINE block load32(const void *from)
{
    const float *x = from;
    return (block){_mm512_loadu_ps(x), _mm512_loadu_ps(x + LANES)};
}

INLINE block load32_part(const void *from, int64_t n)
{
    const float *x = from;
    return (block){_mm512_maskz_loadu_ps(first_floats(n), x),
                   _mm512_maskz_loadu_ps(first_floats(n - LANES), x + LANES)};
}

INLINE block first_of(block x, int64_t n)
{
    return (block){_mm512_maskz_mov_ps(first_floats(n), x.lo),
                   _mm512_maskz_mov_ps(first_floats(n - LANES), x.hi)};
}

INLINE void store32(void *to, block x)
{
    float *y = to;
    _mm512_storeu_ps(y, x.lo);
    _mm512_storeu_ps(y + LANES, x.hi);
}

INLINE void store32_part(void *to, block x, int64_t n)
{
    float *y = to;
    _mm512_mask_storeu_ps(y, first_floats(n), x.lo);
    _mm512_mask_storeu_ps(y + LANES, first_floats(n - LANES), x.hi);
}

INLINE void stream32(void *to, block x)
{
    float *y = to;
    _mm512_stream_ps(y, x.lo);
    _mm512_stream_ps(y + LANES, x.hi);
}

INLINE raw16 load16(const void *from)
{
    return _mm512_loadu_si512(from);
}

INLINE raw16 load16_part(const void *from, int64_t n)
{
    return _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1u), from);
}

INLINE void store16(void *to, raw16 x)
{
    _mm512_storeu_si512(to, x);
}

INLINE void store16_part(void *to, raw16 x, int64_t n)
{
    _mm512_mask_storeu_epi16(to, (__mmask32)((1u << n) - 1u), x);
}

INLINE void stream16(void *to, raw16 x)
{
    _mm512_stream_si512(to, x);
}

INLINE void store8(void *to, raw8 x)
{
    _mm256_storeu_si256(to, x);
}

INLINE void store8_part(void *to, raw8 x, int64_t n)
{
    _mm256_mask_storeu_epi8(to, (__mmask32)((1u << n) - 1u), x);
}

INLINE void stream8(void *to, raw8 x)
{
    _mm256_stream_si256(to, x);
}

INLINE void stream64(void *to, const void *from)
{
    _mm512_stream_si512(to, _mm512_loadu_si512(from));
}

INLINE void fence(void)
{
    _mm_sfence();
}

/* ------------------------------------------------------------- conversions */

INLINE block widen_f16(raw16 x)
{
    return (block){_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                   _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1))};
}

INLINE block load_f16(const void *from)
{
    const __m256i *x = from;
    return (block){_mm512_cvtph_ps(_mm256_loadu_si256(x)),
                   _mm512_cvtph_ps(_mm256_loadu_si256(x + 1))};
}

INLINE raw16 narrow_f16(block x)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_cvtps_ph(x.lo, NEAREST)),
        _mm512_cvtps_ph(x.hi, NEAREST), 1);
}

INLINE raw16 joined(raw16 x, raw16 y, int64_t first)
{
    const __m512i lane = _mm512_set_epi16(
        31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14,
        13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_permutex2var_epi16(
        x, _mm512_add_epi16(lane, _mm512_set1_epi16((short)first)), y);
}

/* The bytes of words: permutations of bytes are one operation, those of words
 * two. */
INLINE __m512i bytes_of_words(__m512i index)
{
    return _mm512_add_epi16(
        _mm512_mullo_epi16(index, _mm512_set1_epi16(0x0202)),
        _mm512_set1_epi16(0x0100));
}

/* Words 0, 2, 4 .., then 1, 3, 5 ..; and back. */
INLINE raw16 even_words_first(raw16 x)
{
    const __m512i index = _mm512_set_epi16(
        31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26,
        24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutexvar_epi8(bytes_of_words(index), x);
}

INLINE raw16 alternate_words(raw16 x)
{
    const __m512i index = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
        6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi8(bytes_of_words(index), x);
}

INLINE block split_f16(raw16 x)
{
    return widen_f16(even_words_first(x));
}

INLINE raw16 merge_f16(block x)
{
    return alternate_words(narrow_f16(x));
}

INLINE block split32(block x)
{
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14,
                                          12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    return (block){_mm512_permutex2var_ps(x.lo, even, x.hi),
                   _mm512_permutex2var_ps(x.lo, odd, x.hi)};
}

INLINE block merge32(block x)
{
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                           18, 2, 17, 1, 16, 0);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    return (block){_mm512_permutex2var_ps(x.lo, first, x.hi),
                   _mm512_permutex2var_ps(x.lo, last, x.hi)};
}

/* Word i of a half becomes the upper word of lane i, over a zero. */
INLINE block widen_bf16(raw16 x)
{
    const __m512i low =
        _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0,
                         7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
    const __m512i high = _mm512_or_si512(low, _mm512_set1_epi16(16));
    const __mmask64 upper = 0xCCCCCCCCCCCCCCCCu; /* bytes of a lane */
    return (block){_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(
                       upper, bytes_of_words(low), x)),
                   _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(
                       upper, bytes_of_words(high), x))};
}

INLINE block split_bf16(raw16 x)
{
    return (block){
        _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
        _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)))};
}

#ifdef __AVX512BF16__
/* The instruction takes subnormals for zeros: their squares are too small. */
INLINE vfloat add_bf16_squares(vfloat sum, raw16 x)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)x);
}
#else
INLINE vfloat add_bf16_squares(vfloat sum, raw16 x)
{
    const block v = split_bf16(x);
    return multiply_add(v.hi, v.hi, multiply_add(v.lo, v.lo, sum));
}
#endif

INLINE bool any_nan(block x)
{
    return _mm512_cmp_ps_mask(x.lo, x.hi, _CMP_UNORD_Q) != 0;
}

/* Bits whose upper half is x, not NaN, as bf16. */
INLINE __m512i round_bf16(vfloat x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)),
                            odd);
}

INLINE raw16 round_block_to_bf16(block x)
{
    const __m512i upper = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
        27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    raw16 code =
        _mm512_permutex2var_epi16(round_bf16(x.lo), upper, round_bf16(x.hi));
    if (UNLIKELY(any_nan(x)))
        code = _mm512_mask_mov_epi16(
            code, _mm512_kunpackw(is_nan(x.hi), is_nan(x.lo)),
            _mm512_or_si512(
                _mm512_permutex2var_epi16(_mm512_castps_si512(x.lo), upper,
                                          _mm512_castps_si512(x.hi)),
                _mm512_set1_epi16(0x40)));
    return code;
}

#ifdef __AVX512BF16__
/* The instruction takes subnormals for zeros; other values it rounds alike. */
INLINE raw16 narrow_bf16(block x)
{
    enum { SUBNORMAL = 0x20 };
    if (UNLIKELY(!_kortestz_mask16_u8(_mm512_fpclass_ps_mask(x.lo, SUBNORMAL),
                                      _mm512_fpclass_ps_mask(x.hi, SUBNORMAL))))
        return round_block_to_bf16(x);
    return (raw16)_mm512_cvtne2ps_pbh(x.hi, x.lo);
}
#else
INLINE raw16 narrow_bf16(block x)
{
    return round_block_to_bf16(x);
}
#endif

INLINE raw16 result_bf16(block x)
{
    return narrow_bf16(x);
}

INLINE raw16 merge_bf16(block x)
{
    return alternate_words(narrow_bf16(x));
}

/* The sixteen powers of two from exponent field first on: see below. */
INLINE vfloat fp8_power(int first, int m, int b)
{
    const __m512i exponent = _mm512_add_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_set1_epi32(first));
    const __m512i smallest = _mm512_set1_epi32(128 - b); /* normal */
    __m512i binade = _mm512_max_epi32(exponent, smallest);
    __m512i power = _mm512_add_epi32(binade, _mm512_set1_epi32(23 - m));
    __m512i code = _mm512_sub_epi32(binade, smallest);
    return _mm512_castsi512_ps(_mm512_add_epi32(
        _mm512_slli_epi32(power, 23), _mm512_slli_epi32(code, (unsigned)m)));
}

/*
 * |x| * scale to FP8 codes in the low byte of each lane: m mantissa bits, bias
 * b. Adding the power of two whose unit in the last place is the spacing of
 * codes at |x| rounds to nearest even; the low bits of the sum then count
 * codes from the start of the binade. The power is looked up by the last five
 * bits of the exponent, with the binade's first code, less those 2^m that the
 * sum counts for the binade's start, in its low bits.
 *
 * Smaller exponents than the table has must not be looked up. e5m2 needs all
 * of it and takes the maximum; for e4m3 it is cheaper to add a little, which
 * carries into the next binade only what rounds alike in both.
 */
INLINE __m512i fp8_magnitude(vfloat x, float scale, int m, int b, float max)
{
    enum { SMALLER_MAGNITUDE = 0xA };
    const vfloat factor = splat(scale);
    vfloat magnitude =
        _mm512_range_ps(x, splat(max / scale), SMALLER_MAGNITUDE);
    vfloat binade;
    if (m == 3)
        binade = magnitude * factor + splat(0x1p-14f);
    else
        binade = _mm512_max_ps(magnitude * factor, splat(0x1p-14f));
    __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(binade), 23);
    vfloat power = _mm512_permutex2var_ps(fp8_power(128, m, b), exponent,
                                          fp8_power(112, m, b));
    return _mm512_castps_si512(magnitude * factor + power);
}

/* A byte of every lane of lo and hi, by a table of those of byte 0. */
INLINE raw8 pick_bytes(__m512i lo, __m512i table, __m512i hi, int byte)
{
    __m512i index = _mm512_add_epi8(table, _mm512_set1_epi8((char)byte));
    return _mm512_castsi512_si256(_mm512_permutex2var_epi8(lo, index, hi));
}

/* Byte 0 of every lane of a block whose halves are its first and last. */
INLINE __m512i narrow_table(void)
{
    return _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x7C787470, 0x6C686460,
                            0x5C585450, 0x4C484440, 0x3C383430, 0x2C282420,
                            0x1C181410, 0x0C080400);
}

INLINE raw8 low_bytes(vint lo, vint hi)
{
    return pick_bytes((__m512i)lo, narrow_table(), (__m512i)hi, 0);
}

INLINE vint load_bytes(const void *from)
{
    return (vint)_mm512_cvtepu8_epi32(_mm_loadu_si128(from));
}

INLINE raw8 pack_fp8(block x, float scale, int m, int b, float max,
                     __m512i table)
{
    enum { SELECT = 0xD8 }; /* bits of the second where the third is set */
    if (UNLIKELY(scale < 0x1p-100f)) { /* max / scale must be finite */
        x = (block){x.lo * splat(scale), x.hi * splat(scale)};
        scale = 1;
    }
    raw8 code = pick_bytes(fp8_magnitude(x.lo, scale, m, b, max), table,
                           fp8_magnitude(x.hi, scale, m, b, max), 0);
    raw8 top = pick_bytes(_mm512_castps_si512(x.lo), table,
                          _mm512_castps_si512(x.hi), 3);
    code = _mm256_ternarylogic_epi32(code, top, _mm256_set1_epi8((char)0x80),
                                     SELECT);
    if (UNLIKELY(any_nan(x))) {
        raw8 nan = pick_bytes(_mm512_movm_epi32(is_nan(x.lo)), table,
                              _mm512_movm_epi32(is_nan(x.hi)), 0);
        code = _mm256_ternarylogic_epi32(code, _mm256_set1_epi8(0x7F), nan,
                                         SELECT);
    }
    return code;
}

INLINE raw8 narrow_fp8(block x, float scale, int m, int b, float max)
{
    return pack_fp8(x, scale, m, b, max, narrow_table());
}

INLINE raw8 merge_fp8(block x, float scale, int m, int b, float max)
{
    const __m512i table = _mm512_set_epi32(
        0, 0, 0, 0, 0, 0, 0, 0, 0x7C3C7838, 0x74347030, 0x6C2C6828, 0x64246020,
        0x5C1C5818, 0x54145010, 0x4C0C4808, 0x44044000);
    return pack_fp8(x, scale, m, b, max, table);
}

/* Of 32 words, which are in an order. */
INLINE __m512i upper_bytes(enum order order)
{
    return order == PAIRS ? _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x3F1F3D1D,
                                             0x3B1B3919, 0x37173515, 0x33133111,
                                             0x2F0F2D0D, 0x2B0B2909, 0x27072505,
                                             0x23032101)
                          : _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x3F3D3B39,
                                             0x37353331, 0x2F2D2B29, 0x27252321,
                                             0x1F1D1B19, 0x17151311, 0x0F0D0B09,
                                             0x07050301);
}

/* Lanes where both q are far enough from where codes change. */
INLINE __mmask16 sure_lanes(block q, int m)
{
    const __m512i far = _mm512_set1_epi32((1 << (22 - m)) - QUOTIENT_WINDOW);
    __mmask16 sure = _mm512_test_epi32_mask(_mm512_castps_si512(q.lo), far);
    return _mm512_mask_test_epi32_mask(sure, _mm512_castps_si512(q.hi), far);
}

/* q is cut off to float16, half a code's unit is added, and the upper bits are
 * the code. */
INLINE raw8 cut_codes(enum order order, block q, int m)
{
    enum { CUT = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC };
    enum { SELECT = 0xD8 }; /* bits of the second where the third is set */
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    const __m512i largest = _mm512_set1_epi16(m == 3 ? 0x7EFF : 0x7BFF);
    __m512i half =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(q.lo, CUT)),
                           _mm512_cvtps_ph(q.hi, CUT), 1);
    __m512i sum =
        _mm512_add_epi16(half, _mm512_set1_epi16(m == 3 ? 0x40 : 0x80));
    __m512i magnitude =
        m == 3 ? _mm512_add_epi16(sum, sum) : _mm512_andnot_si512(sign, sum);
    magnitude = _mm512_min_epu16(magnitude, largest);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi8(
        upper_bytes(order),
        _mm512_ternarylogic_epi32(magnitude, sum, sign, SELECT)));
}

INLINE bool quotient_codes(enum order order, const block *q, int n, int m,
                           raw8 *codes)
{
    __mmask16 sure = sure_lanes(q[0], m);
    for (int i = 1; i < n; i++)
        sure = _kand_mask16(sure, sure_lanes(q[i], m));
    if (UNLIKELY(!_kortestc_mask16_u8(sure, sure)))
        return false;
    for (int i = 0; i < n; i++)
        codes[i] = cut_codes(order, q[i], m);
    return true;
}

INLINE block bounded(block x, float bound)
{
    enum { SMALLER_MAGNITUDE = 0x2 };
    const vfloat most = splat(bound);
    return (block){_mm512_range_ps(x.lo, most, SMALLER_MAGNITUDE),
                   _mm512_range_ps(x.hi, most, SMALLER_MAGNITUDE)};
}

#endif
