// sincos.cuh - cos and sin of a rotary angle, accurate to float32 at every position.
//
// The usual fast sine (__sinf) is off by the angle's rounding times its size: 1e-4 at position
// 8,192. Here whole quarter turns are taken off exactly and the rest, at most pi/4, goes through
// float32 polynomials with errors below one unit in the last place.
#pragma once

#include <stdint.h>

// cos and sin of x + quadrant * pi/2, |x| <= pi/4.
__device__ __forceinline__ void sincos_of_rest(float x, int quadrant, float &sine, float &cosine)
{
    float z = x * x;
    float sin_x =
        fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f), x * z, x);
    float cos_x =
        fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f),
             z * z, fmaf(-0.5f, z, 1.0f));
    float swap_sin = quadrant & 1 ? cos_x : sin_x;
    float swap_cos = quadrant & 1 ? sin_x : cos_x;
    uint32_t sin_sign = (uint32_t)quadrant << 30 & 0x80000000u;
    uint32_t cos_sign = (uint32_t)(quadrant + 1) << 30 & 0x80000000u;
    sine = __uint_as_float(__float_as_uint(swap_sin) ^ sin_sign);
    cosine = __uint_as_float(__float_as_uint(swap_cos) ^ cos_sign);
}

// Any angle below 2^50: reduced in double, pi/2 in two parts.
__device__ __forceinline__ void sincos_of(double angle, float &sine, float &cosine)
{
    constexpr double kTwoOverPi = 0.63661977236758134308;
    constexpr double kHalfPiHigh = 1.57079632679489655800e+00;
    constexpr double kHalfPiLow = 6.12323399573676603587e-17;
    constexpr double kToInteger = 6755399441055744.0; // 1.5 * 2^52: the sum's low bits are k
    double shifted = fma(angle, kTwoOverPi, kToInteger);
    double k = shifted - kToInteger;
    float x = (float)fma(-k, kHalfPiLow, fma(-k, kHalfPiHigh, angle));
    sincos_of_rest(x, __double2loint(shifted), sine, cosine);
}

// Rare, so out of line: every kernel would carry it otherwise. Not static: nvcc hashes the
// folder of the source into the names of static functions.
inline __device__ __noinline__ float2 sincos_of_far(float angle)
{
    float2 both;
    sincos_of((double)angle, both.x, both.y);
    return both;
}

constexpr float kNearAngle = 1048576.0f; // 2^20

// Below 2^20 three float32 fused products reduce as well: k * kHalfPi1 and the difference to the
// angle are exact (both are multiples of 2^-23 and the result is below 2), the other two parts
// bring pi/2 to 70 bits. Eight instructions in place of double arithmetic and its conversions.
__device__ __forceinline__ void sincos_of(float angle, float &sine, float &cosine)
{
    constexpr float kTwoOverPi = 0.636619772f;
    constexpr float kHalfPi1 = 1.57079625129699707031f;
    constexpr float kHalfPi2 = 7.54978941586159635335e-8f;
    constexpr float kHalfPi3 = 5.39030252995776476554e-15f;
    constexpr float kToInteger = 12582912.0f; // 1.5 * 2^23
    if (!(angle < kNearAngle)) {
        float2 both = sincos_of_far(angle);
        sine = both.x;
        cosine = both.y;
        return;
    }
    float shifted = fmaf(angle, kTwoOverPi, kToInteger);
    float k = shifted - kToInteger;
    float x = fmaf(-k, kHalfPi3, fmaf(-k, kHalfPi2, fmaf(-k, kHalfPi1, angle)));
    sincos_of_rest(x, __float_as_int(shifted), sine, cosine);
}

// angle_precision f32: the product is rounded to float32, as models are trained. The intrinsic
// keeps the compiler from fusing it into what follows.
__device__ __forceinline__ void sincos_of_product(float position, float frequency, float &sine,
                                                  float &cosine)
{
    sincos_of(__fmul_rn(position, frequency), sine, cosine);
}

__device__ __forceinline__ void sincos_of_product(double position, double frequency, float &sine,
                                                  float &cosine)
{
    sincos_of(position * frequency, sine, cosine);
}
