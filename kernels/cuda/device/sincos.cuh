// sincos.cuh - cos and sin of a rotary angle, accurate to float32 at every position.
#pragma once

// The usual fast sine reduces a float32 angle in float32 and is off by the angle's own rounding
// times its size: 1e-3 at position 8,192. Here the angle (below 2^24) is reduced in double: k
// whole quarter turns from one fused product, pi/2 in two parts so that the rest keeps 50 bits.
// Four double operations and two conversions per pair: on Hopper a few percent of the time that
// the pair's bytes take. The rest, at most pi/4, goes through float32 polynomials with errors
// below one unit in the last place.
__device__ __forceinline__ void sincos_of(double angle, float &sine, float &cosine)
{
    constexpr double kTwoOverPi = 0.63661977236758134308;
    constexpr double kHalfPiHigh = 1.57079632679489655800e+00;
    constexpr double kHalfPiLow = 6.12323399573676603587e-17;
    constexpr double kToInteger = 6755399441055744.0; // 1.5 * 2^52: the sum's low bits are k
    double shifted = fma(angle, kTwoOverPi, kToInteger);
    double k = shifted - kToInteger;
    int quadrant = __double2loint(shifted);
    float x = (float)fma(-k, kHalfPiLow, fma(-k, kHalfPiHigh, angle));
    float z = x * x;
    float sin_x =
        fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f), x * z, x);
    float cos_x =
        fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f),
             z * z, fmaf(-0.5f, z, 1.0f));
    float swap_sin = quadrant & 1 ? cos_x : sin_x;
    float swap_cos = quadrant & 1 ? sin_x : cos_x;
    sine = quadrant & 2 ? -swap_sin : swap_sin;
    cosine = (quadrant + 1) & 2 ? -swap_cos : swap_cos;
}

// angle_precision f32: the product is rounded to float32, as models are trained. The intrinsic
// keeps the compiler from fusing it into what follows.
__device__ __forceinline__ void sincos_of_product(float position, float frequency, float &sine,
                                                  float &cosine)
{
    sincos_of((double)__fmul_rn(position, frequency), sine, cosine);
}

__device__ __forceinline__ void sincos_of_product(double position, double frequency, float &sine,
                                                  float &cosine)
{
    sincos_of(position * frequency, sine, cosine);
}
