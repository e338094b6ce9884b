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

// m * sigmoid(z) for z = -|z| where that is low, |z| else; m has its sign. NaN where m is.
__device__ __forceinline__ float times_sigmoid(float m, bool is_low, float z, float rest)
{
    float e = exponential_of(z, rest);
    float low = fmaxf(m, -FLT_MAX) * e * kOfExponential;
    return (is_low ? low : m) * reciprocal_beside(e);
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

// x * sigmoid(alpha * x)
__device__ __forceinline__ float quick_gelu(float x, float alpha)
{
    float z = alpha * x, rest = fmaf(alpha, x, -z), low = -fabsf(z);
    rest = low > kLeastExponent ? rest : 0.0f;
    return times_sigmoid(x, z < 0.0f, fmaxf(low, kLeastExponent), z < 0.0f ? rest : -rest);
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

// x * Phi(x) is what x has above 0 less a * Phi(-a), which is 0 from a = 20 on.
__device__ __forceinline__ float gelu(float x)
{
    float a = fminf(fabsf(x), 20.0f), square = a * a, part = a * erfcx_divisor(a);
    float e = exponential_of(-0.5f * square, -0.5f * fmaf(a, a, -square));
    float tail = part * erfcx_polynomial(part) * e;
    return fmaf(-tail, kOfExponential, part_above_zero(x));
}

constexpr float kGeluTanhEnd = 13.5f; // 2 u is beyond 190 there

// x * (1 + tanh(u)) / 2 = x * sigmoid(2 u) is what x has above 0 less a * sigmoid(-2 |u|), and 2 u
// = d * a * (m + a^2). As in exponential_of, what a product and the sum lose in float32 is left of
// it.
__device__ __forceinline__ float gelu_tanh(float x)
{
    constexpr float m = 0x1.65d26p+4f,
                    m_rest = -0x1.226128p-20f; // m_rest by itself: m - sum is exact
    constexpr float d = 0x1.2444f2p-4f, d_of_2 = 0x1.a5a7d0p-4f; // d_of_2: d / log(2)
    constexpr float of_power = 0x1.36d9d6p+3f, of_power_rest = -0x1.25115cp-22f; // log(2) / d
    float a = fminf(fabsf(x), kGeluTanhEnd), sum = fmaf(a, a, m), z = a * sum;
    float rest = fmaf(a, fmaf(a, a, m - sum) + m_rest, fmaf(a, sum, -z));
    float t = fmaf(z, -d_of_2, 3072.0f), power = 3072.0f - t;
    float lost = fmaf(power, of_power_rest, fmaf(power, of_power, -z)) - rest;
    float e = exp2_of(t - 3040.0f);
    e = fmaf(e * d, lost, e);
    return fmaf(-(a * e * reciprocal_beside(e)), kOfExponential, part_above_zero(x));
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

// An activation and its slope have the same exponential. e^z is a square here: nothing leaves
// float32's normal range until the last product, without a choice between scales. That doubles what
// the hardware's exp2 is off, and 1e-6 still holds.

// x from -most to most; NaN stays.
__device__ __forceinline__ float clamped(float most, float x)
{
    return -at_least(-most, -at_least(-most, x));
}

// The root of e^(2 (u + rest)), u from -100 to 0.
__device__ __forceinline__ float root_of_exponential(float u, float rest)
{
    float t = __fmul_rn(u, 0x1.715476p+0f);
    float lost = fmaf(t, 0x1.05c610p-29f, fmaf(t, -0x1.62e430p-1f, u)) + rest;
    float e = exp2_of(t);
    return fmaf(e, lost, e);
}

// sigmoid(z) = own^2 * r, sigmoid(-z) = other^2 * r; z + rest, and rest is finite.
struct sigmoid_factors {
    float own, other, r;
};

__device__ __forceinline__ sigmoid_factors factors_of_sigmoid(float z, float rest)
{
    bool is_low = z < 0.0f;
    float half = is_low ? 0.5f * rest : -0.5f * rest;
    float e = root_of_exponential(fmaxf(-0.5f * fabsf(z), kLeastExponent / 2), half);
    return {is_low ? e : 1.0f, is_low ? 1.0f : e, reciprocal_of(fmaf(e, e, 1.0f))};
}

// x becomes x * sigmoid(z) for z a function of x, and slope is that of it; w is x times the slope
// of z, and finite.
__device__ __forceinline__ void differentiate_sigmoid(float z, float rest, float w, float &x,
                                                      float &slope)
{
    const sigmoid_factors of = factors_of_sigmoid(z, rest);
    float p = of.own * of.r, t = fmaf(w, of.other * (of.other * of.r), 1.0f);
    slope = t * of.own * p;
    x = at_least(-FLT_MAX, x) * of.own * p;
}

__device__ __forceinline__ void differentiate_quick_gelu(float alpha, float &x, float &slope)
{
    float z = alpha * x, rest = fmaf(alpha, x, -z);
    rest = -fabsf(z) > kLeastExponent ? rest : 0.0f;
    differentiate_sigmoid(z, rest, clamped(-kLeastExponent, z), x, slope);
}

// 2 u of gelu_tanh as x * (c + d * x^2): a value and what it loses.
struct value_and_rest {
    float value, rest;
};

__device__ __forceinline__ value_and_rest gelu_tanh_exponent(float x)
{
    constexpr float c = 0x1.988454p+0f, c_rest = -0x1.857936p-25f;
    constexpr float d = 0x1.2444f2p-4f, d_rest = 0x1.49b16ap-29f;
    float square = x * x, square_rest = fmaf(x, x, -square);
    float sum = fmaf(d, square, c), of_square = sum - c;
    float rest = (c - (sum - of_square)) + fmaf(d, square, -of_square);
    rest += fmaf(d, square_rest, fmaf(d_rest, square, c_rest));
    float z = x * sum;
    return {z, fmaf(x, sum, -z) + x * rest};
}

__device__ __forceinline__ void differentiate_gelu_tanh(float &x, float &slope)
{
    float near = clamped(kGeluTanhEnd, x);
    value_and_rest z = gelu_tanh_exponent(near);
    float w = near * fmaf(3 * 0x1.2444f2p-4f, near * near, 0x1.988454p+0f);
    differentiate_sigmoid(z.value, z.rest, w, x, slope);
}

// x * Phi(x), and Phi(x) + x * e^(-x^2 / 2) / sqrt(2 pi)
__device__ __forceinline__ void differentiate_gelu(float &x, float &slope)
{
    float a = -at_least(-20.0f, -fabsf(x)), square = a * a;
    float e = root_of_exponential(-0.25f * square, -0.25f * fmaf(a, a, -square));
    float t = erfcx_divisor(a), p = t * erfcx_polynomial(a * t), to = clamped(FLT_MAX, x) * p * e;
    float of_slope = fmaf(-0x1.988454p-2f, a, p) * e;
    slope = x < 0.0f ? of_slope * e : fmaf(-of_slope, e, 1.0f);
    x = x < 0.0f ? to * e : fmaf(-to, e, x);
}

// x through the activation, and its slope before that; NaN stays.
template <int kActivation>
__device__ __forceinline__ void differentiate_one(float alpha, float &x, float &slope)
{
    if constexpr (kActivation == ACT_SILU) {
        differentiate_sigmoid(x, 0.0f, clamped(-kLeastExponent, x), x, slope);
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
        const sigmoid_factors of = factors_of_sigmoid(x, 0.0f);
        float p = of.own * of.r;
        slope = isnan(x) ? x : p * of.own * (of.other * (of.other * of.r));
        x = isnan(x) ? x : p * of.own;
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
