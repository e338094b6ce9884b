// activation.cuh - activations of one float, to 1e-6 of the result wherever it is normal. Far below
// 0 a result is p * 2^k until the last multiplication, and exponents carry what float32 loses.
#pragma once

#include "ops/act_and_mul.h"

constexpr float kLeastExponent = -170.0f; // any float times e^-170 is 0

// e^z = p * up * down; up and down are powers of two.
struct exponential {
    float p, up, down;
};

// Of z + rest, z at most 0; z below the least or NaN counts as that.
__device__ __forceinline__ exponential exponential_of(float z, float rest)
{
    z = z > kLeastExponent ? z : kLeastExponent;
    float k = rintf(z * 0x1.715476p+0f);
    float r = fmaf(k, -0x1.62e430p-1f, z);
    r = fmaf(k, 0x1.05c610p-29f, r) + rest;
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    int whole = (int)k, half = whole >> 1;
    return {p, __int_as_float((half + 127) << 23), __int_as_float((whole - half + 127) << 23)};
}

// m / (1 + e^-(z + rest)); m and z have one sign, or m is 1.
__device__ __forceinline__ float times_sigmoid(float m, float z, float rest)
{
    float a = z < 0.0f ? z : -z;
    exponential e = exponential_of(a, z < 0.0f ? rest : -rest);
    float over = m / (1.0f + e.p * e.up * e.down);
    if (!(z < 0.0f))
        return over;
    return a > kLeastExponent ? over * e.p * e.up * e.down : m < 0.0f ? -0.0f : 0.0f;
}

// The same for a z that float32 does not hold.
__device__ __forceinline__ float times_sigmoid_of(float m, double z)
{
    double b = z < -400.0 ? -400.0 : z > 400.0 ? 400.0 : z;
    float high = (float)b;
    return times_sigmoid(m, high, (float)(b - (double)high));
}

// x * Phi(x): Phi(-a) = e^(-a^2 / 2) * erfcx(a / sqrt(2)) / 2.
__device__ __forceinline__ float gelu(float x)
{
    float a = fabsf(x);
    double square = -0.5 * (double)a * (double)a;
    double exponent = square < -400.0 ? -400.0 : square;
    float high = (float)exponent;
    exponential e = exponential_of(high, (float)(exponent - (double)high));
    float tail = 0.5f * erfcxf(a * 0x1.6a09e6p-1f) * e.p; // over 2^k
    if (!(x < 0.0f))
        return x * (1.0f - tail * e.up * e.down);
    return high > kLeastExponent ? x * tail * e.up * e.down : -0.0f;
}

// x * (1 + tanh(u)) / 2 = x * sigmoid(2 u)
__device__ __forceinline__ float gelu_tanh(float x)
{
    double wide = (double)x, twice = 1.5957691216057308 * wide;
    return times_sigmoid_of(x, twice + twice * (0.044715 * (wide * wide)));
}

__device__ __forceinline__ float activate(int activation, float alpha, float x)
{
    if (isnan(x))
        return x;
    switch (activation) {
    case ACT_SILU:
        return times_sigmoid(x, x, 0.0f);
    case ACT_GELU:
        return gelu(x);
    case ACT_GELU_TANH:
        return gelu_tanh(x);
    case ACT_RELU:
        return x < 0.0f ? 0.0f : x;
    case ACT_RELU2:
        return x < 0.0f ? 0.0f : x * x;
    case ACT_SIGMOID:
        return times_sigmoid(1.0f, x, 0.0f);
    default: // quick_gelu, swiglu_oai
        return times_sigmoid_of(x, (double)alpha * (double)x);
    }
}
