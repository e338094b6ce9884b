// reduce.cuh - sums and largest values over the threads of a group, with the same bits in every
// thread; sums in a fixed order: a butterfly inside a warp, then a tree over the warps' results.
#pragma once

// Threads of a power of two up to a warp; every lane of the warp takes part.
template <int kThreads, typename Acc>
__device__ __forceinline__ Acc sum_in_warp(Acc x)
{
#pragma unroll
    for (int distance = kThreads / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}

template <int n, typename Acc>
__device__ __forceinline__ Acc sum_tree(const Acc *x)
{
    if constexpr (n == 1)
        return x[0];
    else
        return sum_tree<n / 2>(x) + sum_tree<n / 2>(x + n / 2);
}

// Groups of up to a warp, or the whole block of kThreads. shared: kThreads / 32 values that no
// thread reads any more; one barrier.
template <int kThreads, typename Acc>
__device__ __forceinline__ Acc sum_in_group(Acc x, Acc *shared)
{
    if constexpr (kThreads <= 32) {
        return sum_in_warp<kThreads>(x);
    } else {
        x = sum_in_warp<32>(x);
        if (threadIdx.x % 32 == 0)
            shared[threadIdx.x / 32] = x;
        __syncthreads();
        return sum_tree<kThreads / 32>(shared);
    }
}

// The same sum, bit for bit, for a number of threads (a power of two, 4 to 1,024) known at run
// time only. shared as above.
template <typename Acc>
__device__ __forceinline__ Acc sum_in_group(Acc x, Acc *shared, int threads)
{
    for (int distance = min(threads, 32) / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    if (threads <= 32)
        return x;
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    int n_warps = threads / 32;
    x = shared[threadIdx.x % n_warps];
    for (int distance = 1; distance < n_warps; distance *= 2) // the tree, leaves first
        x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}

// The largest value, which NaN does not take part in. threads and shared as above.
__device__ __forceinline__ float largest_in_group(float x, float *shared, int threads)
{
    for (int distance = min(threads, 32) / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
    if (threads <= 32)
        return x;
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    int n_warps = threads / 32;
    x = shared[threadIdx.x % n_warps];
    for (int distance = 1; distance < n_warps; distance *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
    return x;
}
