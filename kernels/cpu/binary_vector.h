/*
 * binary_vector.h - a vector of float32 as wide as the instruction set has
 * them, read from and written to memory of any float type; and a single
 * element by the same names, for what is left of a row. For sources built once
 * per instruction set; every function is inlined with a constant type.
 */
#ifndef ROPED_CPU_BINARY_VECTOR_H
#define ROPED_CPU_BINARY_VECTOR_H

#include <roped/dtype.h>
#include <roped/numeric.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifdef __OPTIMIZE__
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline __attribute__((unused))
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float vector __attribute__((vector_size(LANES * 4)));
typedef uint32_t vector_bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t vector_half __attribute__((vector_size(LANES * 2)));
typedef float half_vector __attribute__((vector_size(LANES * 2)));
typedef double double_vector __attribute__((vector_size(LANES * 4)));

INLINE size_t size_of(enum roped_dtype dtype)
{
    return dtype == ROPED_F32 ? 4 : 2;
}

INLINE vector splat(float x)
{
    return x - (vector){0};
}

/* ---------------------------------------------------------------- elements */

INLINE float load_one(enum roped_dtype dtype, const void *from, int64_t i)
{
    if (dtype == ROPED_F32)
        return ((const float *)from)[i];
    uint16_t code = ((const uint16_t *)from)[i];
    return dtype == ROPED_F16 ? roped_f16_to_float(code)
                              : roped_bf16_to_float(code);
}

INLINE void store_one(enum roped_dtype dtype, void *to, int64_t i, float x)
{
    if (dtype == ROPED_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] =
            dtype == ROPED_F16 ? roped_float_to_f16(x) : roped_float_to_bf16(x);
}

/* ----------------------------------------------------------------- vectors */

INLINE vector f16_to_vector(vector_half codes)
{
#if defined(__AVX512F__)
    return (vector)_mm512_cvtph_ps((__m256i)codes);
#elif defined(__F16C__)
    return (vector)_mm256_cvtph_ps((__m128i)codes);
#elif defined(__aarch64__)
    return (vector)vcvt_f32_f16((float16x4_t)codes);
#else
    vector x;
    for (int i = 0; i < LANES; i++)
        x[i] = roped_f16_to_float(codes[i]);
    return x;
#endif
}

INLINE vector_half vector_to_f16(vector x)
{
#if defined(__AVX512F__)
    return (vector_half)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT |
                                                       _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (vector_half)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT |
                                                       _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
    return (vector_half)vcvt_f16_f32((float32x4_t)x);
#else
    vector_half codes;
    for (int i = 0; i < LANES; i++)
        codes[i] = roped_float_to_f16(x[i]);
    return codes;
#endif
}

/* Sixteen bits to the lower half of each lane, and back. The compiler's own
 * conversion goes through narrower vectors. */
INLINE vector_bits widen_bits(vector_half codes)
{
#if defined(__AVX512F__)
    return (vector_bits)_mm512_cvtepu16_epi32((__m256i)codes);
#elif defined(__AVX2__)
    return (vector_bits)_mm256_cvtepu16_epi32((__m128i)codes);
#else
    return __builtin_convertvector(codes, vector_bits);
#endif
}

INLINE vector_half narrow_bits(vector_bits bits)
{
#if defined(__AVX512F__)
    return (vector_half)_mm512_cvtepi32_epi16((__m512i)bits);
#else
    return __builtin_convertvector(bits, vector_half);
#endif
}

/* roped_float_to_bf16 with a mask in place of the branch: a NaN keeps its upper
 * bits and becomes quiet. */
INLINE vector_half vector_to_bf16(vector x)
{
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return (vector_half)vcvt_bf16_f32((float32x4_t)x);
#else
    vector_bits bits = (vector_bits)x;
    vector_bits is_nan = (vector_bits)(x != x);
    vector_bits rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    vector_bits nan = bits | 0x400000u;
    return narrow_bits(((rounded & ~is_nan) | (nan & is_nan)) >> 16);
#endif
}

INLINE vector load(enum roped_dtype dtype, const void *from, int64_t i)
{
    vector x;
    vector_half codes;
    if (dtype == ROPED_F32) {
        memcpy(&x, (const float *)from + i, sizeof x);
        return x;
    }
    memcpy(&codes, (const uint16_t *)from + i, sizeof codes);
    if (dtype == ROPED_F16)
        return f16_to_vector(codes);
    return (vector)(widen_bits(codes) << 16);
}

/* Stores past the caches; to is a multiple of the stored bytes. */
INLINE void stream_vector(float *to, vector x)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, (__m256)x);
#elif defined(__SSE2__)
    _mm_stream_ps(to, (__m128)x);
#else
    memcpy(to, &x, sizeof x);
#endif
}

INLINE void stream_half(uint16_t *to, vector_half codes)
{
#if defined(__AVX512F__)
    _mm256_stream_si256((void *)to, (__m256i)codes);
#elif defined(__AVX2__)
    _mm_stream_si128((void *)to, (__m128i)codes);
#else
    memcpy(to, &codes, sizeof codes);
#endif
}

INLINE void store(enum roped_dtype dtype, bool is_streamed, void *to, int64_t i,
                  vector x)
{
    float *wide = (float *)to + i;
    uint16_t *narrow = (uint16_t *)to + i;
    if (dtype == ROPED_F32) {
        if (is_streamed)
            stream_vector(wide, x);
        else
            memcpy(wide, &x, sizeof x);
        return;
    }
    vector_half codes =
        dtype == ROPED_F16 ? vector_to_f16(x) : vector_to_bf16(x);
    if (is_streamed)
        stream_half(narrow, codes);
    else
        memcpy(narrow, &codes, sizeof codes);
}

/* Elements from to up to the next address that a vector can be streamed to. */
INLINE int64_t to_aligned(enum roped_dtype dtype, const void *to)
{
    size_t bytes = LANES * size_of(dtype);
    return (int64_t)((bytes - (uintptr_t)to % bytes) % bytes / size_of(dtype));
}

/* sum[0 .. LANES) += x */
INLINE void add_to_doubles(double *sum, vector x)
{
    half_vector half[2];
    double_vector part[2];
    memcpy(half, &x, sizeof half);
    memcpy(part, sum, sizeof part);
    part[0] += __builtin_convertvector(half[0], double_vector);
    part[1] += __builtin_convertvector(half[1], double_vector);
    memcpy(sum, part, sizeof part);
}

#endif
