/*
 * vector_avx2.h - cpu/vector.h for AVX2, FMA and F16C.
 */
#ifndef ROPED_CPU_VECTOR_AVX2_H
#define ROPED_CPU_VECTOR_AVX2_H

#include <immintrin.h>

enum {
    LANES = 8,
    BLOCK = 2 * LANES,
    HAS_FUSED = 1,
    HAS_POWERS = 0,
    HAS_JOINED = 0,
    STREAMS = 1,
    UNROLLS = 0
};

typedef __m256 vfloat;
typedef __m256i raw16;
typedef __m128i raw8;
typedef int32_t vint __attribute__((vector_size(sizeof(vfloat))));
typedef struct {
    vfloat lo, hi;
} block;
typedef struct {
    __m256d lo, hi;
} doubles;

/* -------------------------------------------------------------- arithmetic */

INLINE vfloat splat(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vfloat permuted(vfloat x, vint k)
{
    return _mm256_permutevar8x32_ps(x, (__m256i)k);
}

INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vfloat difference_of_products(vfloat a, vfloat b, vfloat c, vfloat d)
{
    return _mm256_fmsub_ps(a, b, c * d);
}

INLINE vfloat negative_multiply_add(vfloat a, vfloat b, vfloat c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

INLINE vint nearest_integers(vfloat x)
{
    return (vint)_mm256_cvtps_epi32(x);
}

INLINE vfloat floats_of(vint x)
{
    return _mm256_cvtepi32_ps((__m256i)x);
}

INLINE bool all_below(vfloat x, float limit)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x, splat(limit), _CMP_NLT_UQ)) == 0;
}

INLINE vfloat larger_magnitude(vfloat x, vfloat magnitude)
{
    return _mm256_max_ps(_mm256_andnot_ps(splat(-0.0f), x), magnitude);
}

INLINE float largest_lane(vfloat x)
{
    __m128 most =
        _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

/* Of four vectors, to four floats. */
INLINE void largest_lanes4(const vfloat *x, float *out)
{
    const vfloat ab = _mm256_max_ps(_mm256_unpacklo_ps(x[0], x[1]),
                                    _mm256_unpackhi_ps(x[0], x[1]));
    const vfloat cd = _mm256_max_ps(_mm256_unpacklo_ps(x[2], x[3]),
                                    _mm256_unpackhi_ps(x[2], x[3]));
    const __m256d lo =
        _mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    const __m256d hi =
        _mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    const vfloat all =
        _mm256_max_ps(_mm256_castpd_ps(lo), _mm256_castpd_ps(hi));
    _mm_storeu_ps(out, _mm_max_ps(_mm256_castps256_ps128(all),
                                  _mm256_extractf128_ps(all, 1)));
}

INLINE vfloat where_odd(vint k, vfloat odd, vfloat even)
{
    return _mm256_blendv_ps(even, odd, (vfloat)(k << 31));
}

INLINE doubles widen_floats(vfloat x)
{
    return (doubles){_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                     _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}

INLINE double sum_of_doubles(doubles x)
{
    __m256d sum = x.lo + x.hi;
    __m128d half = _mm256_castpd256_pd128(sum) + _mm256_extractf128_pd(sum, 1);
    return half[0] + half[1];
}

/* ------------------------------------------------------------------ memory */

INLINE block load32(const void *from)
{
    const float *x = from;
    return (block){_mm256_loadu_ps(x), _mm256_loadu_ps(x + LANES)};
}

INLINE void store32(void *to, block x)
{
    float *y = to;
    _mm256_storeu_ps(y, x.lo);
    _mm256_storeu_ps(y + LANES, x.hi);
}

INLINE void stream32(void *to, block x)
{
    float *y = to;
    _mm256_stream_ps(y, x.lo);
    _mm256_stream_ps(y + LANES, x.hi);
}

INLINE raw16 load16(const void *from)
{
    return _mm256_loadu_si256(from);
}

INLINE void store16(void *to, raw16 x)
{
    _mm256_storeu_si256(to, x);
}

INLINE void stream16(void *to, raw16 x)
{
    _mm256_stream_si256(to, x);
}

INLINE void store8(void *to, raw8 x)
{
    _mm_storeu_si128(to, x);
}

INLINE void stream8(void *to, raw8 x)
{
    _mm_stream_si128(to, x);
}

INLINE void stream64(void *to, const void *from)
{
    const __m256i *x = from;
    __m256i *y = to;
    _mm256_stream_si256(y, _mm256_loadu_si256(x));
    _mm256_stream_si256(y + 1, _mm256_loadu_si256(x + 1));
}

INLINE void fence(void)
{
    _mm_sfence();
}

/* ------------------------------------------------------------- conversions */

INLINE block widen_f16(raw16 x)
{
    return (block){_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                   _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

INLINE block load_f16(const void *from)
{
    const __m128i *x = from;
    return (block){_mm256_cvtph_ps(_mm_loadu_si128(x)),
                   _mm256_cvtph_ps(_mm_loadu_si128(x + 1))};
}

INLINE raw16 narrow_f16(block x)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return _mm256_set_m128i(_mm256_cvtps_ph(x.hi, NEAREST),
                            _mm256_cvtps_ph(x.lo, NEAREST));
}

INLINE vfloat order_quarters(vfloat x)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xD8));
}

INLINE block split32(block x)
{
    return (block){order_quarters(_mm256_shuffle_ps(x.lo, x.hi, 0x88)),
                   order_quarters(_mm256_shuffle_ps(x.lo, x.hi, 0xDD))};
}

INLINE block merge32(block x)
{
    vfloat even = order_quarters(x.lo), odd = order_quarters(x.hi);
    return (block){_mm256_unpacklo_ps(even, odd),
                   _mm256_unpackhi_ps(even, odd)};
}

INLINE vfloat widen_bf16_half(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

INLINE block widen_bf16(raw16 x)
{
    return (block){widen_bf16_half(_mm256_castsi256_si128(x)),
                   widen_bf16_half(_mm256_extracti128_si256(x, 1))};
}

/* All ones in the lanes that are NaN. */
INLINE __m256i nan_lanes(vfloat x)
{
    return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

INLINE bool any_nan(block x)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x.lo, x.hi, _CMP_UNORD_Q)) != 0;
}

/* Lanes whose lower half is x, not NaN, as bf16. */
INLINE __m256i round_bf16(vfloat x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(
        _mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_srli_epi32(sum, 16);
}

INLINE __m256i nan_to_bf16(__m256i code, vfloat x)
{
    __m256i nan = _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 16),
                                  _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(code, nan, nan_lanes(x));
}

INLINE raw16 narrow_bf16(block x)
{
    __m256i lo = round_bf16(x.lo), hi = round_bf16(x.hi);
    if (UNLIKELY(any_nan(x))) {
        lo = nan_to_bf16(lo, x.lo);
        hi = nan_to_bf16(hi, x.hi);
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xD8);
}

INLINE raw16 result_bf16(block x)
{
    return narrow_bf16(x);
}

INLINE raw16 merge_bf16(block x)
{
    return narrow_bf16(merge32(x));
}

INLINE block split_bf16(raw16 x)
{
    const __m256i upper = _mm256_set1_epi32(-65536);
    return (block){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                   _mm256_castsi256_ps(_mm256_and_si256(x, upper))};
}

INLINE vfloat add_bf16_squares(vfloat sum, raw16 x)
{
    const block v = split_bf16(x);
    return multiply_add(v.hi, v.hi, multiply_add(v.lo, v.lo, sum));
}

/*
 * Magnitudes of x, at most max, to FP8 codes: m mantissa bits, bias b. Adding
 * the power of two whose unit in the last place is the spacing of codes at |x|
 * rounds to nearest even; the low bits of the sum then count codes from the
 * start of the binade, and the exponent says which code that is.
 */
INLINE __m256i fp8_magnitude(vfloat x, int m, int b, float max)
{
    const int smallest = 128 - b; /* exponent field of the smallest normal */
    const int first_code = -(smallest << m) & 0xFF;
    __m256i bits = _mm256_castps_si256(x);
    __m256i magnitude =
        _mm256_min_epu32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)),
                         _mm256_castps_si256(_mm256_set1_ps(max)));
    __m256i binade = _mm256_and_si256(
        _mm256_max_epu32(magnitude, _mm256_set1_epi32(smallest << 23)),
        _mm256_set1_epi32(0xFF << 23));
    __m256i power = _mm256_add_epi32(
        binade, _mm256_set1_epi32(((23 - m) << 23) + first_code));
    vfloat sum = _mm256_castsi256_ps(magnitude) + _mm256_castsi256_ps(power);
    __m256i code = _mm256_add_epi32(_mm256_castps_si256(sum),
                                    _mm256_srli_epi32(binade, 23 - m));
    return _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
}

INLINE raw8 narrow_fp8(block x, float scale, int m, int b, float max)
{
    x = (block){x.lo * splat(scale), x.hi * splat(scale)};
    __m256i lo = fp8_magnitude(x.lo, m, b, max);
    __m256i hi = fp8_magnitude(x.hi, m, b, max);
    /* packing with signed saturation keeps the sign of the float's bits */
    __m256i sign = _mm256_packs_epi32(_mm256_castps_si256(x.lo),
                                      _mm256_castps_si256(x.hi));
    if (UNLIKELY(any_nan(x))) {
        const __m256i nan = _mm256_set1_epi32(0x7F);
        __m256i lo_nan = nan_lanes(x.lo), hi_nan = nan_lanes(x.hi);
        lo = _mm256_blendv_epi8(lo, nan, lo_nan);
        hi = _mm256_blendv_epi8(hi, nan, hi_nan);
        sign = _mm256_andnot_si256(_mm256_packs_epi32(lo_nan, hi_nan), sign);
    }
    __m256i code = _mm256_packus_epi32(lo, hi);
    code = _mm256_or_si256(_mm256_packus_epi16(code, code),
                           _mm256_and_si256(_mm256_packs_epi16(sign, sign),
                                            _mm256_set1_epi8((char)0x80)));
    return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(
        code, _mm256_set_epi32(0, 0, 0, 0, 5, 1, 4, 0)));
}

/* All ones where x is NaN or near to where codes change. */
INLINE __m256i unsure_lanes(vfloat x, int m)
{
    const __m256i far = _mm256_set1_epi32((1 << (22 - m)) - QUOTIENT_WINDOW);
    __m256i low = _mm256_and_si256(_mm256_castps_si256(x), far);
    return _mm256_cmpeq_epi32(low, _mm256_setzero_si256());
}

/* q is cut off to float16, half a code's unit is added, and the upper bits are
 * the code. */
INLINE raw8 cut_codes(enum order order, block q, int m)
{
    enum { CUT = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC };
    const __m256i sign = _mm256_set1_epi16((short)0x8000);
    const __m256i largest = _mm256_set1_epi16(m == 3 ? 0x7EFF : 0x7BFF);
    __m128i lo = _mm256_cvtps_ph(q.lo, CUT), hi = _mm256_cvtps_ph(q.hi, CUT);
    __m256i half = order == PAIRS ? _mm256_set_m128i(_mm_unpackhi_epi16(lo, hi),
                                                     _mm_unpacklo_epi16(lo, hi))
                                  : _mm256_set_m128i(hi, lo);
    __m256i sum =
        _mm256_add_epi16(half, _mm256_set1_epi16(m == 3 ? 0x40 : 0x80));
    __m256i magnitude =
        m == 3 ? _mm256_add_epi16(sum, sum) : _mm256_andnot_si256(sign, sum);
    __m256i code = _mm256_or_si256(_mm256_min_epu16(magnitude, largest),
                                   _mm256_and_si256(sum, sign));
    code = _mm256_srli_epi16(code, 8);
    return _mm256_castsi256_si128(
        _mm256_permute4x64_epi64(_mm256_packus_epi16(code, code), 0xD8));
}

INLINE bool quotient_codes(enum order order, const block *q, int n, int m,
                           raw8 *codes)
{
    __m256i unsure = _mm256_setzero_si256();
    for (int i = 0; i < n; i++)
        unsure =
            _mm256_or_si256(unsure, _mm256_or_si256(unsure_lanes(q[i].lo, m),
                                                    unsure_lanes(q[i].hi, m)));
    if (UNLIKELY(_mm256_movemask_epi8(unsure) != 0))
        return false;
    for (int i = 0; i < n; i++)
        codes[i] = cut_codes(order, q[i], m);
    return true;
}

INLINE block bounded(block x, float bound)
{
    const vfloat most = splat(bound), least = splat(-bound);
    return (block){_mm256_max_ps(least, _mm256_min_ps(most, x.lo)),
                   _mm256_max_ps(least, _mm256_min_ps(most, x.hi))};
}

#endif
