// activation.cuh - activations of floats, to 1e-6 of the result wherever it is normal. What goes
// into an exponent is two floats, a value and what float32 loses of it; the hardware's exp2 and
// reciprocal do the rest.
#pragma once

#include "ops/act_and_mul.h"

#include <float.h>

__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

constexpr float kLeastExponent = -200.0f; // where e is 0
constexpr float kOfExponential = 0x1p-32f;

// e^(z + rest) / kOfExponential, z from the least to 0: normal also where e^z times a number is
// still something in float32, and e^z by itself is not. The power of two is a multiple of 2^-12,
// what is left of z a factor close to 1, and all sums but that one are exact.
__device__ __forceinline__ float exponential_of(float z, float rest = -0.0f)
{
    float t = fmaf(z, 0x1.715476p+0f, 3072.0f), power = t - 3072.0f;
    float lost = fmaf(power, 0x1.05c610p-29f, fmaf(power, -0x1.62e430p-1f, z)) + rest;
    float e = exp2_of(t - 3040.0f);
    return fmaf(e, lost, e);
}

// 1 / (1 + e^z)
__device__ __forceinline__ float reciprocal_beside(float e)
{
    return reciprocal_of(fmaf(e, kOfExponential, 1.0f));
}

// The larger; NaN stays.
__device__ __forceinline__ float at_least(float least, float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
#else
    return x < least ? least : x;
#endif
}

// The smaller; NaN stays.
__device__ __forceinline__ float at_most(float most, float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
    return y;
#else
    return x > most ? most : x;
#endif
}

// x from -most to most; NaN stays.
__device__ __forceinline__ float clamped(float most, float x)
{
    return at_most(most, at_least(-most, x));
}

// |x|, most at most; NaN stays.
__device__ __forceinline__ float size_up_to(float most, float x)
{
    return at_most(most, fabsf(x));
}

// The larger of x and -|x| * e^-|x| is x where that is above 0, the other one below.
__device__ __forceinline__ float silu(float x)
{
    float z = fmaxf(-fabsf(x), kLeastExponent), e = exponential_of(z);
    return at_least(z * e * kOfExponential, x) * reciprocal_beside(e);
}

__device__ __forceinline__ float sigmoid(float x)
{
    float e = exponential_of(at_least(kLeastExponent, -fabsf(x)));
    return (x < 0.0f ? e * kOfExponential : 1.0f) * reciprocal_beside(e);
}

// x for x above 0, and -0 else, so that a difference from it has the sign of x. NaN stays.
__device__ __forceinline__ float part_above_zero(float x)
{
    return at_least(-0.0f, x);
}

// Phi(-a) = e^(-a^2 / 2) * erfcx(a / sqrt(2)) / 2, and that is t times a polynomial of a * t for
// t = 1 / (1 + 0.35 a), to 4e-8 for a up to 14.5: the constant is the one that this degree fits
// best. Near 0, where a * t is small, no term takes another's digits.
__device__ __forceinline__ float erfcx_divisor(float a)
{
    return reciprocal_of(fmaf(0.35f, a, 1.0f));
}

// erfcx(a / sqrt(2)) / 2 / t; x is a * t.
__device__ __forceinline__ float erfcx_polynomial(float x)
{
    float w = fmaf(-0x1.b8a270p-18f, x, 0x1.e19942p-15f);
    w = fmaf(w, x, -0x1.edc8a6p-14f);
    w = fmaf(w, x, -0x1.628a8ap-14f);
    w = fmaf(w, x, -0x1.f8d9dcp-11f);
    w = fmaf(w, x, 0x1.2066dcp-8f);
    w = fmaf(w, x, 0x1.05f6c6p-5f);
    w = fmaf(w, x, -0x1.caa1aep-3f);
    return fmaf(w, x, 0x1.fffffep-2f);
}

// A float beside this one is a multiple of 2^-10: t = kNoPower - unit * v / log(2) is rounded to
// the power of two that is closest to e^-(unit * v).
constexpr float kNoPower = 12288.0f;

// e^-(unit * v) / kOfExponential for v = a * b + rest, from 0 on. log(2) / unit is high + high *
// more, and high so short that its product with a power is exact. So what is left of v, a factor
// close to 1, takes two more sums; as in exponential_of only the last ones are rounded.
__device__ __forceinline__ float falling_exponential(float t, float a, float b, float rest,
                                                     float unit, float high, float more)
{
    float power = fmaf(-t, high, kNoPower * high);
    float lost = fmaf(power, more, fmaf(-a, b, power)) - rest;
    float e = exp2_of(t - (kNoPower - 32.0f));
    return fmaf(e * unit, lost, e);
}

// Of gelu: a = |x|, and Phi(-a) = p * e * kOfExponential.
struct gelu_parts {
    float a, e, p;
};

__device__ __forceinline__ gelu_parts parts_of_gelu(float x)
{
    float a = size_up_to(20.0f, x), t = fmaf(a * a, -0x1.715476p-1f, kNoPower);
    float e = falling_exponential(t, a, a, 0.0f, 0.5f, 1.375f, 0x1.0d28b4p-7f);
    float divisor = erfcx_divisor(a);
    return {a, e, divisor * erfcx_polynomial(a * divisor)};
}

// x * Phi(x) is what x has above 0 less a * Phi(-a), which is 0 from a = 20 on.
__device__ __forceinline__ float times_phi(const gelu_parts &of, float x)
{
    return fmaf(-(of.a * of.p * of.e), kOfExponential, part_above_zero(x));
}

__device__ __forceinline__ float gelu(float x)
{
    return times_phi(parts_of_gelu(x), x);
}

// Of gelu_tanh, x * (1 + tanh(u)) / 2 = x * sigmoid(2 u): a = |x|, sum = m + a^2, of which 2 |u| is
// d * a * sum, and e^-(2 |u|) = e * kOfExponential. m is so short that m - sum is exact. What it is
// off, 1e-6, d makes up for where a is 8.7, by 1e-8 of itself; in between 2e-7 of e is left.
struct gelu_tanh_parts {
    float a, sum, e;
};

constexpr float kGeluTanhEnd = 13.5f;            // 2 u is beyond 190 there
constexpr float kGeluTanhUnit = 0x1.2444f2p-4f;  // d
constexpr float kGeluTanhFirst = 0x1.988454p+0f; // d * m

__device__ __forceinline__ gelu_tanh_parts parts_of_gelu_tanh(float x)
{
    constexpr float m = 0x1.65d26p+4f;
    float a = size_up_to(kGeluTanhEnd, x), sum = fmaf(a, a, m), rest = a * fmaf(a, a, m - sum);
    float t = fmaf(a * sum, -0x1.a5a7dp-4f, kNoPower);
    return {a, sum, falling_exponential(t, a, sum, rest, kGeluTanhUnit, 9.75f, -0x1.e2bba6p-9f)};
}

// What x has above 0 less a * sigmoid(-2 |u|).
__device__ __forceinline__ float gelu_tanh(float x)
{
    const gelu_tanh_parts of = parts_of_gelu_tanh(x);
    float tail = of.e * reciprocal_beside(of.e);
    return fmaf(-(of.a * tail), kOfExponential, part_above_zero(x));
}

// Of quick_gelu, x * sigmoid(alpha * x), alpha from 1e-20 to 1e20, so that nothing here overflows:
// a = |x|, v = alpha * a, and e^-v = e * kOfExponential.
struct quick_gelu_parts {
    float a, v, e;
};

__device__ __forceinline__ quick_gelu_parts parts_of_quick_gelu(float alpha, float x)
{
    const float most = -kLeastExponent * reciprocal_of(alpha);
    float a = size_up_to(most, x), v = alpha * a, t = fmaf(v, -0x1.715476p+0f, kNoPower);
    return {a, v, falling_exponential(t, a, alpha, 0.0f, 1.0f, 0.6875f, 0x1.0d28b4p-7f)};
}

// What x has above 0 less a * sigmoid(-v).
__device__ __forceinline__ float quick_gelu(float x, float alpha)
{
    const quick_gelu_parts of = parts_of_quick_gelu(alpha, x);
    float tail = of.e * reciprocal_beside(of.e);
    return fmaf(-(of.a * tail), kOfExponential, part_above_zero(x));
}

// NaN stays. What most models have comes first: the others are found by a table of jumps, which is
// a load that a call of one row waits for.
template <int n>
__device__ __forceinline__ void activate(int activation, float alpha, float (&x)[n])
{
    if (activation == ACT_SILU) {
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = silu(x[i]);
        return;
    }
    switch (activation) {
    case ACT_GELU:
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = gelu(x[i]);
        break;
    case ACT_GELU_TANH:
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = gelu_tanh(x[i]);
        break;
    case ACT_RELU:
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = x[i] < 0.0f ? 0.0f : x[i];
        break;
    case ACT_RELU2:
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = x[i] < 0.0f ? 0.0f : x[i] * x[i];
        break;
    case ACT_SIGMOID:
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = sigmoid(x[i]);
        break;
    default: // quick_gelu, swiglu_oai
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = quick_gelu(x[i], alpha);
        break;
    }
}

// ------------------------------------------------------------------------------------ slopes

// An activation and its slope have the same exponential.

// x becomes x * sigmoid(z), z of x's sign and e^-|z| = e * kOfExponential, and slope is that of it:
// below 0 it is s * (1 - w * (1 - s)) for s = sigmoid(-|z|), and above 0 what that leaves of 1. a
// is |x|, w that times the slope of z.
__device__ __forceinline__ void differentiate_beside(float a, float e, float w, float &x,
                                                     float &slope)
{
    float r = reciprocal_beside(e), tail = e * r, of_slope = tail * fmaf(-w, r, 1.0f);
    slope = x < 0.0f ? of_slope * kOfExponential : fmaf(-of_slope, kOfExponential, 1.0f);
    x = fmaf(-(a * tail), kOfExponential, part_above_zero(x));
}

__device__ __forceinline__ void differentiate_silu(float &x, float &slope)
{
    float a = size_up_to(-kLeastExponent, x);
    differentiate_beside(a, exponential_of(-a), a, x, slope);
}

__device__ __forceinline__ void differentiate_gelu_tanh(float &x, float &slope)
{
    const gelu_tanh_parts of = parts_of_gelu_tanh(x);
    float w = of.a * fmaf(3 * kGeluTanhUnit, of.sum, -2 * kGeluTanhFirst);
    differentiate_beside(of.a, of.e, w, x, slope);
}

// x * Phi(x), and Phi(x) + x * e^(-x^2 / 2) / sqrt(2 pi)
__device__ __forceinline__ void differentiate_gelu(float &x, float &slope)
{
    const gelu_parts of = parts_of_gelu(x);
    float of_slope = fmaf(-0x1.988454p-2f, of.a, of.p) * of.e;
    slope = x < 0.0f ? of_slope * kOfExponential : fmaf(-of_slope, kOfExponential, 1.0f);
    x = times_phi(of, x);
}

__device__ __forceinline__ void differentiate_quick_gelu(float alpha, float &x, float &slope)
{
    const quick_gelu_parts of = parts_of_quick_gelu(alpha, x);
    differentiate_beside(of.a, of.e, of.v, x, slope);
}

// x through the activation, and its slope before that; NaN stays.
template <int kActivation>
__device__ __forceinline__ void differentiate_one(float alpha, float &x, float &slope)
{
    if constexpr (kActivation == ACT_SILU) {
        differentiate_silu(x, slope);
    } else if constexpr (kActivation == ACT_GELU) {
        differentiate_gelu(x, slope);
    } else if constexpr (kActivation == ACT_GELU_TANH) {
        differentiate_gelu_tanh(x, slope);
    } else if constexpr (kActivation == ACT_RELU || kActivation == ACT_RELU2) {
        constexpr bool kSquares = kActivation == ACT_RELU2;
        float above = kSquares ? 2.0f * x : 1.0f, below = isnan(x) ? x : 0.0f;
        slope = x > 0.0f ? above : below;
        x = x < 0.0f ? 0.0f : x;
        x = kSquares ? x * x : x;
    } else if constexpr (kActivation == ACT_SIGMOID) {
        float e = exponential_of(at_least(kLeastExponent, -fabsf(x))), r = reciprocal_beside(e);
        float tail = e * r * kOfExponential;
        slope = tail * r;
        x = x < 0.0f ? tail : r;
    } else {
        differentiate_quick_gelu(alpha, x, slope);
    }
}

template <int kActivation, int n>
__device__ __forceinline__ void differentiate_all(float alpha, float (&x)[n], float (&slope)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        differentiate_one<kActivation>(alpha, x[i], slope[i]);
}

template <int n>
__device__ __forceinline__ void differentiate(int activation, float alpha, float (&x)[n],
                                              float (&slope)[n])
{
    switch (activation) {
    case ACT_SILU:
        return differentiate_all<ACT_SILU>(alpha, x, slope);
    case ACT_GELU:
        return differentiate_all<ACT_GELU>(alpha, x, slope);
    case ACT_GELU_TANH:
        return differentiate_all<ACT_GELU_TANH>(alpha, x, slope);
    case ACT_RELU:
        return differentiate_all<ACT_RELU>(alpha, x, slope);
    case ACT_RELU2:
        return differentiate_all<ACT_RELU2>(alpha, x, slope);
    case ACT_SIGMOID:
        return differentiate_all<ACT_SIGMOID>(alpha, x, slope);
    default:
        return differentiate_all<ACT_QUICK_GELU>(alpha, x, slope);
    }
}
