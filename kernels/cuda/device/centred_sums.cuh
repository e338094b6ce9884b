// centred_sums.cuh - what the warps of a row know of it once each has centred its own part
// (norm_centred.cuh), and how that becomes the row's sums about one mean.
#pragma once

#include "cuda/device/reduce.cuh"

// Over so many lanes, a power of two.
template <typename Acc>
__device__ __forceinline__ Acc sum_over(Acc x, int lanes)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        if (distance < lanes)
            x += exchange(x, distance);
    return x;
}

// Of two shares in each lane of a warp: that of the first in the lower half, of the second in the
// upper one.
template <typename Acc>
__device__ __forceinline__ Acc sum_of_shares(const Acc &first, const Acc &second)
{
    const bool is_upper = threadIdx.x & 16;
    const Acc mine = is_upper ? second : first, other = is_upper ? first : second;
    return sum_over(mine + exchange(other, 16), 16);
}

// What a warp knows of its part of a row.
template <typename Acc>
struct warp_sums {
    two_sums<Acc> about; // mean
    float mean;
    float n; // elements
};

// The same about another mean.
template <typename Acc>
__device__ __forceinline__ two_sums<Acc> sums_beside(const warp_sums<Acc> &warp, float mean)
{
    const Acc off = (Acc)warp.mean - (Acc)mean, far = (Acc)warp.n * off;
    return {far + warp.about.first,
            fma(off, fma((Acc)2, warp.about.first, far), warp.about.second)};
}

// About the mean of the first warp, with the same bits in every thread: from what each warp knows,
// by so many lanes, a power of two.
template <typename Acc, typename F>
__device__ __forceinline__ two_sums<Acc> sums_of_warps(int n_warps, int lanes, const F &of_warp,
                                                       float &mean)
{
    const int other = threadIdx.x & (lanes - 1);
    mean = of_warp(0).mean;
    two_sums<Acc> sums = {};
    if (other < n_warps)
        sums = sums_beside(of_warp(other), mean);
    return sum_over(sums, lanes);
}

__device__ __forceinline__ int lanes_of_warps(int n_warps)
{
    return n_warps == 1 ? 1 : 2 << (31 - __clz(n_warps - 1));
}
