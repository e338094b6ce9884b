// fp8.cuh - float to FP8 as roped/numeric.h defines it: nearest even, saturated to the largest
// finite value, -0 and subnormals kept, NaN 0x7F.
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

// Two codes, a in the lower byte. The format is the same for a whole launch: the branch never
// diverges.
__device__ __forceinline__ uint32_t fp8x2_of(float a, float b, bool is_e5m2)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t codes;
    if (is_e5m2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(a), "f"(b));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(a), "f"(b));
    return codes;
#else
    return fp8_of(a, is_e5m2) | fp8_of(b, is_e5m2) << 8;
#endif
}

// Stores n codes of x * scale in one access; to is aligned to n.
template <int n>
__device__ __forceinline__ void store_fp8(uint8_t *to, const float (&x)[n], float scale,
                                          bool is_e5m2)
{
    static_assert(n == 1 || n == 2 || n == 4 || n == 8, "whole words");
    if constexpr (n == 1) {
        *to = (uint8_t)fp8x2_of(x[0] * scale, 0.0f, is_e5m2);
    } else if constexpr (n == 2) {
        *reinterpret_cast<uint16_t *>(to) = (uint16_t)fp8x2_of(x[0] * scale, x[1] * scale, is_e5m2);
    } else {
        uint32_t word[n / 4];
#pragma unroll
        for (int i = 0; i < n / 4; i++)
            word[i] = fp8x2_of(x[4 * i] * scale, x[4 * i + 1] * scale, is_e5m2) |
                      fp8x2_of(x[4 * i + 2] * scale, x[4 * i + 3] * scale, is_e5m2) << 16;
        if constexpr (n == 4)
            *reinterpret_cast<uint32_t *>(to) = word[0];
        else
            *reinterpret_cast<uint2 *>(to) = make_uint2(word[0], word[1]);
    }
}

// Division by a number that many values share, in three operations instead of ten: its reciprocal
// as a sum of two floats, high below it and low what is left. The quotient is then within 2^-43 of
// the exact one before its only rounding: as good as correctly rounded (a product with a reciprocal
// of one float is not: 49 * (1 / 49) is below 1). low is never 0, so that Inf stays Inf. Divisors
// at the ends of the range are brought to its middle first, by a power of two that the values then
// get too; quotients that matter to FP8 are exact under it.
struct shared_divisor {
    float first; // power of two
    float high, low;
};

__host__ __device__ static inline struct shared_divisor divisor_of(float x)
{
    struct shared_divisor divisor;
    divisor.first = x < 0x1p-60f ? 0x1p96f : x > 0x1p60f ? 0x1p-64f : 1.0f;
    x *= divisor.first;
    divisor.high = 1.0f / x;
    float rest = fmaf(-divisor.high, x, 1.0f);
    if (rest < 0) {
        divisor.high *= 1.0f - 0x1p-23f;
        rest = fmaf(-divisor.high, x, 1.0f);
    }
    divisor.low = fmaxf(rest * divisor.high, divisor.high * 0x1p-60f);
    return divisor;
}

__device__ __forceinline__ float divide(float x, const shared_divisor &divisor)
{
    x *= divisor.first;
    return fmaf(x, divisor.high, x * divisor.low);
}
