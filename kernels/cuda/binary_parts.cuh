// binary_parts.cuh - sums whose parts blocks have left in memory, by a launch of their own: where
// each block has parts of many sums, and others parts of some of these, none is the last one.
#pragma once

#include "cuda/binary_sums.cuh"

struct parts_args {
    const float *partial; // [parts][n]
    void *out;
    int64_t n, n_parts;
    int32_t part_bits; // of the threads of a block that share a sum
};

// Adds the parts of sums that lie side by side.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    add_parts_kernel(const __grid_constant__ struct parts_args args)
{
    constexpr int kBatch = 8; // loads in flight
    __shared__ double shared[kSumThreads];
    let_next_start();
    const int n_sums = kSumThreads >> args.part_bits, lane = threadIdx.x & (n_sums - 1);
    const int64_t at = (int64_t)blockIdx.x * n_sums + lane, step = (int64_t)1 << args.part_bits;
    double sum = 0;
    wait_for_previous();
    for (int64_t part = threadIdx.x / n_sums; part < args.n_parts && at < args.n;
         part += kBatch * step) {
        float of_part[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; i++) {
            const int64_t from = part + i * step;
            of_part[i] = from < args.n_parts ? args.partial[from * args.n + at] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kBatch; i++)
            sum += (double)of_part[i];
    }
    if (step > 1) {
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= n_sums)
            return;
        for (int i = 1; i < step; i++)
            sum += shared[i * n_sums + lane];
    }
    if (at < args.n)
        static_cast<T *>(args.out)[at] = element<T>::from_float((float)sum);
}

template <typename T>
static enum roped_status start_parts(const float *partial, void *out, int64_t n, int64_t n_parts,
                                     struct roped_queue *queue, struct roped_error *err)
{
    const int part_lanes = power_of_two(blocks_of(n_parts, 4), 32);
    const struct parts_args args = {partial, out, n, n_parts, bits_of(part_lanes)};
    return start(queue, add_parts_kernel<T>, dim3(kSumThreads),
                 blocks_of(n, kSumThreads / part_lanes), dim3(), args, err);
}
