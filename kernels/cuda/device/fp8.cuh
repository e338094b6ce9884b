// fp8.cuh - float to FP8 as roped/numeric.h defines it: nearest even, saturated to the largest
// finite value, -0 and subnormals kept, NaN 0x7F; and to int8.
#pragma once

#include <math.h>
#include <stdint.h>

// For chips without the instruction. A normal result comes from adding half a unit to the bits, a
// subnormal one from adding a constant whose last place is the format's smallest step.
__device__ __forceinline__ uint32_t fp8_of(float x, bool is_e5m2)
{
    const int mantissa = is_e5m2 ? 2 : 3, bias = is_e5m2 ? 15 : 7;
    uint32_t sign = (__float_as_uint(x) >> 24) & 0x80u;
    float magnitude = fminf(fabsf(x), is_e5m2 ? 57344.0f : 448.0f);
    uint32_t bits = __float_as_uint(magnitude);
    float step = __uint_as_float((uint32_t)(127 + 1 - bias - mantissa + 23) << 23);
    uint32_t subnormal = __float_as_uint(magnitude + step) - __float_as_uint(step);
    uint32_t normal = bits + (1u << (22 - mantissa)) - 1u + ((bits >> (23 - mantissa)) & 1u);
    normal = (normal >> (23 - mantissa)) - ((uint32_t)(127 - bias) << mantissa);
    bool is_subnormal = bits < (uint32_t)(127 - bias + 1) << 23;
    return x != x ? 0x7Fu : sign | (is_subnormal ? subnormal : normal);
}

// Two codes, a in the lower byte.
template <bool is_e5m2>
__device__ __forceinline__ uint32_t fp8x2_of(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t codes;
    if constexpr (is_e5m2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(a), "f"(b));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(a), "f"(b));
    return codes;
#else
    return fp8_of(a, is_e5m2) | fp8_of(b, is_e5m2) << 8;
#endif
}

// n codes, the first in the lowest byte.
template <int n>
struct fp8_codes {
    static_assert(n == 1 || n == 2 || n == 4 || n == 8 || n == 16, "whole words");
    uint32_t word[(n + 3) / 4];
};

template <bool is_e5m2, int n>
__device__ __forceinline__ fp8_codes<n> fp8_codes_of(const float (&x)[n])
{
    fp8_codes<n> codes;
    if constexpr (n <= 2) {
        codes.word[0] = fp8x2_of<is_e5m2>(x[0], n == 2 ? x[n - 1] : 0.0f);
    } else {
#pragma unroll
        for (int i = 0; i < n / 4; i++)
            codes.word[i] = fp8x2_of<is_e5m2>(x[4 * i], x[4 * i + 1]) |
                            fp8x2_of<is_e5m2>(x[4 * i + 2], x[4 * i + 3]) << 16;
    }
    return codes;
}

// The larger one, or NaN where one of them is.
__device__ __forceinline__ float larger_or_nan(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
#else
    return a != a ? a : b != b ? b : fmaxf(a, b);
#endif
}

// To the nearest integer, NaN to 0, not below least or above 127.
template <int n>
__device__ __forceinline__ fp8_codes<n> int8_codes_of(const float (&x)[n], float least)
{
    fp8_codes<n> codes = {};
#pragma unroll
    for (int i = (n - 1) / 2 * 2; i >= 0; i -= 2) { // the instruction shifts what is there
        int code[2] = {};
#pragma unroll
        for (int j = 0; j < 2 && i + j < n; j++)
            code[j] = __float2int_rn(larger_or_nan(x[i + j], least));
        asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %0;"
            : "+r"(codes.word[i / 4])
            : "r"(code[1]), "r"(code[0]));
    }
    return codes;
}

// In one access; to is aligned to n.
template <int n>
__device__ __forceinline__ void store_fp8(uint8_t *to, const fp8_codes<n> &codes)
{
    if constexpr (n == 1)
        *to = (uint8_t)codes.word[0];
    else if constexpr (n == 2)
        *reinterpret_cast<uint16_t *>(to) = (uint16_t)codes.word[0];
    else if constexpr (n == 4)
        *reinterpret_cast<uint32_t *>(to) = codes.word[0];
    else if constexpr (n == 8)
        *reinterpret_cast<uint2 *>(to) = make_uint2(codes.word[0], codes.word[1]);
    else
        *reinterpret_cast<uint4 *>(to) =
            make_uint4(codes.word[0], codes.word[1], codes.word[2], codes.word[3]);
}

// Stores n codes of x. The format is the same for a whole launch: the branch never diverges.
template <int n>
__device__ __forceinline__ void store_fp8(uint8_t *to, const float (&x)[n], bool is_e5m2)
{
    if (is_e5m2)
        store_fp8(to, fp8_codes_of<true>(x));
    else
        store_fp8(to, fp8_codes_of<false>(x));
}

// Of x * scale.
template <int n>
__device__ __forceinline__ void store_fp8(uint8_t *to, const float (&x)[n], float scale,
                                          bool is_e5m2)
{
    float scaled[n];
#pragma unroll
    for (int i = 0; i < n; i++)
        scaled[i] = x[i] * scale;
    store_fp8(to, scaled, is_e5m2);
}

// The least power of two that is not less than a scale, which is normal.
__device__ __forceinline__ float power_from(float scale)
{
    return __uint_as_float((__float_as_uint(scale) + 0x7FFFFFu) & 0x7F800000u);
}

// Division by a number that many values share, in two operations instead of ten: its reciprocal
// as a sum of two floats, high below it and low what is left. The quotient is then within 2^-43 of
// the exact one before its only rounding: as good as correctly rounded (a product with a reciprocal
// of one float is not: 49 * (1 / 49) is below 1). low is never 0 or below, so that Inf stays Inf.
// Divisors at the ends of the range are brought to its middle first, by a power of two that the
// values then get too; quotients that matter to FP8 are exact under it.
struct shared_divisor {
    float first; // power of two, 1 for all but the strangest
    float high, low;
};

__host__ __device__ static inline struct shared_divisor divisor_of(float x)
{
    struct shared_divisor divisor;
    divisor.first = x < 0x1p-60f ? 0x1p96f : x > 0x1p60f ? 0x1p-64f : 1.0f;
    x *= divisor.first;
#if defined(__CUDA_ARCH__)
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(divisor.high) : "f"(x)); // within 2^-23
#else
    divisor.high = 1.0f / x;
#endif
    divisor.high *= 1.0f - 0x1p-22f;
    divisor.low = fmaxf(fmaf(-divisor.high, x, 1.0f) * divisor.high, 0.0f); // 0 for Inf
    return divisor;
}

// x / divisor, once x has been multiplied by what comes first.
__device__ __forceinline__ float quotient(float x, float high, float low)
{
    return fmaf(x, high, x * low);
}

__device__ __forceinline__ float divide(float x, const shared_divisor &divisor)
{
    return quotient(x * divisor.first, divisor.high, divisor.low);
}

template <int n>
__device__ __forceinline__ void multiply(float (&x)[n], float factor)
{
#pragma unroll
    for (float &value : x)
        value *= factor;
}

// Vectors x[v] by divisors [v].
template <int n, int kVec>
__device__ __forceinline__ void divide_all(float (&x)[n][kVec], const shared_divisor (&divisor)[n])
{
    bool is_strange = false;
#pragma unroll
    for (int v = 0; v < n; v++)
        is_strange = is_strange || divisor[v].first != 1.0f;
    if (is_strange) {
#pragma unroll
        for (int v = 0; v < n; v++)
            multiply(x[v], divisor[v].first);
    }
#pragma unroll
    for (int v = 0; v < n; v++)
#pragma unroll
        for (int i = 0; i < kVec; i++)
            x[v][i] = quotient(x[v][i], divisor[v].high, divisor[v].low);
}
