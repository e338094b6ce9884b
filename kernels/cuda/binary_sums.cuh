// binary_sums.cuh - where partial sums of a gradient are kept, and the second stage that adds them:
// out[i] = partial[0][i] + partial[1][i] + ..., in an order that depends on the counts alone.
#pragma once

#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

// Blocks that a launch wants before it stops cutting sums into segments: 32 for each of an H200's
// 132 multiprocessors, so that the last blocks to finish are a small part of the work. A constant:
// with the device's own count the order of the sums, and so their bits, would depend on it.
constexpr int64_t kWantedBlocks = 132 * 32;

constexpr int kFinishThreads = 512;

struct finish_args {
    const float *partial; // [n_segments][n_sums]
    void *out;            // [n_sums], T
    int64_t n_sums;
    int64_t n_segments;
    int32_t lanes; // threads over sums, a power of two up to 32; the others over segments
};

template <typename T>
__global__ void __launch_bounds__(kFinishThreads)
    finish_sums_kernel(const __grid_constant__ struct finish_args args)
{
    let_next_start();
    wait_for_previous();
    __shared__ double shared[kFinishThreads];
    int lanes = args.lanes, step = kFinishThreads / lanes;
    int lane = threadIdx.x % lanes, row = threadIdx.x / lanes;
    int64_t i = (int64_t)blockIdx.x * lanes + lane;
    double sum = 0;
    if (i < args.n_sums)
#pragma unroll 8
        for (int64_t segment = row; segment < args.n_segments; segment += step)
            sum += (double)args.partial[segment * args.n_sums + i];
    shared[threadIdx.x] = sum;
    for (int half = step / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row < half)
            shared[threadIdx.x] += shared[threadIdx.x + half * lanes];
    }
    if (row == 0 && i < args.n_sums)
        static_cast<T *>(args.out)[i] = element<T>::from_float((float)shared[threadIdx.x]);
}

// ------------------------------------------------------------------------------------ host

static inline int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

// The smallest power of two that is not below n, at most most (a power of two).
static inline int power_of_two(int64_t n, int most)
{
    int power = 1;
    while (power < most && power < n)
        power *= 2;
    return power;
}

// How many steps each segment takes, where n_blocks blocks would take n_steps each: a multiple of
// unit, and no shorter than two of them.
static inline int64_t segment_steps(int64_t n_steps, int64_t n_blocks, int64_t unit)
{
    int64_t n_segments = kWantedBlocks / n_blocks;
    int64_t most = ceil_div(n_steps, 2 * unit);
    if (n_segments > most)
        n_segments = most;
    if (n_segments < 1)
        n_segments = 1;
    return ceil_div(ceil_div(n_steps, n_segments), unit) * unit;
}

template <typename T>
static enum roped_status finish_sums(const float *partial, void *out, int64_t n_sums,
                                     int64_t n_segments, struct roped_queue *queue,
                                     struct roped_error *err)
{
    struct finish_args args = {partial, out, n_sums, n_segments, power_of_two(n_sums, 32)};
    return start(queue, finish_sums_kernel<T>, dim3(kFinishThreads), ceil_div(n_sums, args.lanes),
                 dim3(), args, err);
}
