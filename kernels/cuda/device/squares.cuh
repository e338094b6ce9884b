// squares.cuh - a thread's share of a sum of squares, and the root that a norm divides by.
#pragma once

#include <float.h>

// Below this mean square plus eps a sum of float32 squares may have lost bits to underflow.
constexpr float kTiny = 1e-30f;

// Four sums, so that an addition does not wait for the one before it.
template <typename Acc>
struct square_sums {
    Acc part[4] = {};

    // Explicitly fused: every kernel adds a row's squares with the same roundings.
    template <int n>
    __device__ __forceinline__ void add(const float (&x)[n])
    {
#pragma unroll
        for (int i = 0; i < n; i++)
            part[i % 4] = fma((Acc)x[i], (Acc)x[i], part[i % 4]);
    }
    __device__ __forceinline__ Acc total() const
    {
        return (part[0] + part[1]) + (part[2] + part[3]);
    }
};

// Is a sum of float32 squares good enough: no overflow (or NaN), no underflow that matters.
__device__ __forceinline__ bool is_good(float sum, float mean)
{
    return sum <= FLT_MAX && mean >= kTiny;
}

// 1 / sqrt(mean) within one unit in the last place, of a mean of good sums: the chip's estimate and
// one step of Newton's method, a third of the instructions of __frsqrt_rn.
__device__ __forceinline__ float inverse_root(float mean)
{
    float root;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(mean));
    return fmaf(0.5f * root, fmaf(-mean * root, root, 1.0f), root);
}
