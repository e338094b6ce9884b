// reduce.cuh - sums and largest values over the threads of a group, with the same bits in every
// thread; sums in a fixed order: a butterfly inside a warp, then a tree over the warps' results.
#pragma once

// Two sums that go the same way.
template <typename Acc>
struct two_sums {
    Acc first, second;

    __device__ __forceinline__ two_sums operator+(const two_sums &other) const
    {
        return {first + other.first, second + other.second};
    }
    __device__ __forceinline__ void operator+=(const two_sums &other)
    {
        *this = *this + other;
    }
};

// The value of the lane whose number differs by distance.
template <typename Acc>
__device__ __forceinline__ Acc exchange(Acc x, int distance)
{
    return __shfl_xor_sync(0xFFFFFFFFu, x, distance);
}
template <typename Acc>
__device__ __forceinline__ two_sums<Acc> exchange(const two_sums<Acc> &x, int distance)
{
    return {exchange(x.first, distance), exchange(x.second, distance)};
}

// What a thread does while it waits for the others' values: one part of n after each exchange.
struct wait_idly {
    __device__ __forceinline__ void operator()(int, int) const
    {
    }
};

template <int kThreads>
constexpr int kExchanges = 1 + kExchanges<kThreads / 2>;
template <>
constexpr int kExchanges<1> = 0;

// Threads of a power of two up to a warp; every lane of the warp takes part.
template <int kThreads, typename Acc, typename F = wait_idly>
__device__ __forceinline__ Acc sum_in_warp(Acc x, const F &meanwhile = {})
{
    int i = 0;
#pragma unroll
    for (int distance = kThreads / 2; distance > 0; distance /= 2) {
        Acc other = exchange(x, distance);
        meanwhile(i++, kExchanges<kThreads>);
        x += other;
    }
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
template <int kThreads, typename Acc, typename F = wait_idly>
__device__ __forceinline__ Acc sum_in_group(Acc x, Acc *shared, const F &meanwhile = {})
{
    if constexpr (kThreads <= 32) {
        return sum_in_warp<kThreads>(x, meanwhile);
    } else {
        x = sum_in_warp<32>(x, meanwhile);
        if (threadIdx.x % 32 == 0)
            shared[threadIdx.x / 32] = x;
        __syncthreads();
        return sum_tree<kThreads / 32>(shared);
    }
}

// The same sum, bit for bit, of twice as many threads, by half of them: a thread has what thread
// threadIdx.x would, and the one so many warps behind it. Lanes of the upper half of a warp take
// over the second of both.
template <int kThreads, typename Acc, typename F = wait_idly>
__device__ __forceinline__ Acc sum_in_group(const Acc (&x)[1], Acc *shared, int,
                                            const F &meanwhile = {})
{
    return sum_in_group<kThreads>(x[0], shared, meanwhile);
}
template <int kThreads, typename Acc, typename F = wait_idly>
__device__ __forceinline__ Acc sum_in_group(const Acc (&x)[2], Acc *shared, int n_warps,
                                            const F &meanwhile = {})
{
    if constexpr (kThreads < 32) // as many lanes further on
        return sum_in_warp<kThreads>(x[0] + x[1], meanwhile);
    bool is_upper = threadIdx.x & 16;
    Acc mine = is_upper ? x[1] : x[0];
    mine += __shfl_xor_sync(0xFFFFFFFFu, is_upper ? x[0] : x[1], 16);
    mine = sum_in_warp<16>(mine, meanwhile);
    if (threadIdx.x % 16 == 0)
        shared[threadIdx.x / 32 + (is_upper ? n_warps : 0)] = mine;
    __syncthreads();
    return sum_tree<kThreads / 16>(shared);
}

// The same of four times as many, by a quarter of them: lanes of each quarter of a warp take over
// one of the four.
template <int kThreads, typename Acc, typename F = wait_idly>
__device__ __forceinline__ Acc sum_in_group(const Acc (&x)[4], Acc *shared, int n_warps,
                                            const F &meanwhile = {})
{
    const bool is_upper = threadIdx.x & 16, is_odd = threadIdx.x & 8;
    Acc low = is_upper ? x[2] : x[0], high = is_upper ? x[3] : x[1];
    low += __shfl_xor_sync(0xFFFFFFFFu, is_upper ? x[0] : x[2], 16);
    high += __shfl_xor_sync(0xFFFFFFFFu, is_upper ? x[1] : x[3], 16);
    Acc mine = is_odd ? high : low;
    mine += __shfl_xor_sync(0xFFFFFFFFu, is_odd ? low : high, 8);
    mine = sum_in_warp<8>(mine, meanwhile);
    if (threadIdx.x % 8 == 0)
        shared[threadIdx.x / 32 + ((threadIdx.x & 31) / 8) * n_warps] = mine;
    __syncthreads();
    return sum_tree<kThreads / 8>(shared);
}

// The tree of a number of warps known at run time only, in a warp, leaves first: zeros, of which
// the others are, change no sum of squares.
template <typename Acc>
__device__ __forceinline__ Acc sum_leaves(const Acc *shared, int n)
{
    const int leaf = threadIdx.x % 32;
    Acc x = leaf < n ? shared[leaf] : Acc{};
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
        x += exchange(x, distance);
    return x;
}

// The same sum, bit for bit, for a number of threads known at run time only: a power of two from 4
// to 32, or any number of warps. shared as above.
template <typename Acc>
__device__ __forceinline__ Acc sum_in_group(Acc x, Acc *shared, int threads)
{
    if (threads < 32) {
        for (int distance = threads / 2; distance > 0; distance /= 2)
            x += exchange(x, distance);
        return x;
    }
    x = sum_in_warp<32>(x);
    if (threads == 32)
        return x;
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    return sum_leaves(shared, threads / 32);
}

// The same of half of those threads, as above.
template <typename Acc>
__device__ __forceinline__ Acc sum_in_group(const Acc (&x)[2], Acc *shared, int threads)
{
    const bool is_upper = threadIdx.x & 16;
    const int n_warps = threads / 32;
    Acc sum = (is_upper ? x[1] : x[0]) + exchange(is_upper ? x[0] : x[1], 16);
    sum = sum_in_warp<16>(sum);
    if (threadIdx.x % 16 == 0)
        shared[threadIdx.x / 32 + (is_upper ? n_warps : 0)] = sum;
    __syncthreads();
    return sum_leaves(shared, 2 * n_warps);
}

// Before a sum, or a largest, whose n places in shared memory are those of a block of C::kThreads,
// or of twice as many: zeros for the warps that are not there.
template <typename C, typename Acc, int n>
__device__ __forceinline__ void clear_missing(Acc (&shared)[n])
{
    if constexpr (C::kAnyWarps) {
        constexpr unsigned kShares = n / (C::kThreads / 32);
        const unsigned n_warps = blockDim.x / 32, warp = threadIdx.x / 32;
#pragma unroll
        for (unsigned i = kShares; i < 2 * kShares; i++) // there are more than half of the warps
            if (threadIdx.x % 32 == 0 && warp + i * n_warps < n)
                shared[warp + i * n_warps] = Acc{};
    }
}

template <int n>
__device__ __forceinline__ float largest_tree(const float *x)
{
    if constexpr (n == 1)
        return x[0];
    else
        return fmaxf(largest_tree<n / 2>(x), largest_tree<n / 2>(x + n / 2));
}

// The largest of values that are not negative, and not NaN: then their bits have their order.
template <int kThreads>
__device__ __forceinline__ float largest_in_warp(float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (kThreads == 32) {
        return __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(x)));
    } else
#endif
    {
#pragma unroll
        for (int distance = kThreads / 2; distance > 0; distance /= 2)
            x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
        return x;
    }
}

// Groups and shared as for the sum.
template <int kThreads>
__device__ __forceinline__ float largest_in_group(float x, float *shared)
{
    if constexpr (kThreads <= 32) {
        return largest_in_warp<kThreads>(x);
    } else {
        x = largest_in_warp<32>(x);
        if (threadIdx.x % 32 == 0)
            shared[threadIdx.x / 32] = x;
        __syncthreads();
        return largest_tree<kThreads / 32>(shared);
    }
}

// The same for a number of threads known at run time only: a power of two up to a warp, or any
// number of warps.
__device__ __forceinline__ float largest_in_group(float x, float *shared, int threads)
{
    if (threads < 32) {
        for (int distance = threads / 2; distance > 0; distance /= 2)
            x = fmaxf(x, exchange(x, distance));
        return x;
    }
    x = largest_in_warp<32>(x);
    if (threads == 32)
        return x;
    int lane = threadIdx.x % 32;
    if (lane == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    return largest_in_warp<32>(lane < threads / 32 ? shared[lane] : 0.0f);
}
