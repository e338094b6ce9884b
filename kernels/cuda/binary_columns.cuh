// binary_columns.cuh - both gradients of a binary function in one pass, where every column of one
// operand has one element of the other: narrow columns of many rows, whose width lanes and packets
// need not divide.
//
// Rows follow each other in memory, so threads take packets of 16 bytes whatever the width. A block
// has as many threads at work as make whole rows of whole packets: from one step to the next a
// thread is at the same columns, so it sums each element of its packets by itself. A column's sums
// are many threads', which the block adds in shared memory; the last block adds those of all.
#pragma once

#include "cuda/binary_rows.cuh"

struct columns_args {
    const void *g, *x, *y; // x is the full operand
    void *grad_x, *grad_y;
    float *partial;    // [blocks][width]
    uint32_t *counter; // how many blocks are there
    int64_t n;         // elements of x
    uint32_t width;
    uint32_t n_threads; // at work
    uint32_t n_steps;   // of a thread
    divisor_of_index to_row;
    struct binary_signs sign;
};

constexpr int kColumnsThreads = 256;
constexpr int kColumnsAhead = 4; // packets of a thread whose loads are one wait

template <typename T, int kVec, int kKind>
__device__ __forceinline__ void sum_columns(const columns_args &args, const float (&y)[kVec],
                                            double (&sum)[kVec])
{
    using pack_of = packet<T, kVec>;
    const T *g = static_cast<const T *>(args.g), *x = static_cast<const T *>(args.x);
    T *to = static_cast<T *>(args.grad_x);
    const int64_t step = (int64_t)args.n_threads * kVec;
    int64_t at = (int64_t)blockIdx.x * args.n_steps * step + threadIdx.x * kVec;
    for (uint32_t i = 0; i < args.n_steps && at < args.n; i += kColumnsAhead) {
        uint4 raw_g[kColumnsAhead], raw_x[kColumnsAhead];
        int n[kColumnsAhead];
        float terms[kVec] = {};
#pragma unroll
        for (int s = 0; s < kColumnsAhead; s++) {
            const int64_t left = i + s < args.n_steps ? args.n - at - s * step : 0;
            n[s] = (int)max(min(left, (int64_t)kVec), (int64_t)0);
            raw_g[s] = raw_x[s] = make_uint4(0, 0, 0, 0);
            if (n[s] == 0)
                continue;
            raw_g[s] = load_elements<T, kVec>(g + at + s * step, n[s]);
            if (kKind != kBinaryLinear)
                raw_x[s] = load_elements<T, kVec>(x + at + s * step, n[s]);
        }
#pragma unroll
        for (int s = 0; s < kColumnsAhead; s++) {
            float of_g[kVec], of_x[kVec], full[kVec];
            if (n[s] == 0)
                continue;
            pack_of::widen(raw_g[s], of_g);
            pack_of::widen(raw_x[s], of_x);
#pragma unroll
            for (int j = 0; j < kVec; j++) {
                float term;
                both_terms<kKind>(kKind, of_g[j], of_x[j], y[j], args.sign, full[j], term);
                terms[j] += j < n[s] ? term : 0.0f;
            }
            store_elements<T, kVec>(to + at + s * step, full, n[s]);
        }
        at += kColumnsAhead * step;
#pragma unroll
        for (int j = 0; j < kVec; j++)
            sum[j] += (double)terms[j];
    }
}

// The sum of each column over n_rows rows of values: as many threads for a column as there are,
// then one. value(i) is what place i has.
template <typename F>
__device__ __forceinline__ double add_rows(const columns_args &args, uint32_t n_rows,
                                           double (&shared)[kColumnsThreads], const F &value)
{
    constexpr uint32_t kBatch = 16; // loads in flight: a loop would wait for each
    const uint32_t n_parts = kColumnsThreads / args.width;
    const uint32_t part = quotient(threadIdx.x, args.to_row);
    const uint32_t column = threadIdx.x - part * args.width;
    double sum = 0;
    for (uint32_t row = part; row < n_rows && part < n_parts; row += kBatch * n_parts) {
        float of_row[kBatch];
#pragma unroll
        for (uint32_t i = 0; i < kBatch; i++) {
            const uint32_t at = row + i * n_parts;
            of_row[i] = at < n_rows ? value(at * args.width + column) : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < kBatch; i++)
            sum += (double)of_row[i];
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < args.width)
        for (uint32_t i = 1; i < n_parts; i++)
            sum += shared[i * args.width + threadIdx.x];
    return sum;
}

template <typename T, int kKind>
__global__ void __launch_bounds__(kColumnsThreads, 2)
    columns_kernel(const __grid_constant__ struct columns_args args)
{
    constexpr int kVec = kVecOf<T>;
    __shared__ float kept[kColumnsThreads * kVec];
    __shared__ double shared[kColumnsThreads];
    __shared__ bool is_last;
    const bool is_at_work = threadIdx.x < args.n_threads;
    uint32_t column[kVec];
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        const uint32_t element = threadIdx.x * kVec + j;
        column[j] = element - quotient(element, args.to_row) * args.width;
    }
    let_next_start();
    wait_for_previous();
    float y[kVec] = {};
    if (kKind != kBinaryLinear) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            y[j] = element<T>::to_float(static_cast<const T *>(args.y)[column[j]]);
    }
    double sum[kVec] = {};
    if (is_at_work)
        sum_columns<T, kVec, kKind>(args, y, sum);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        kept[threadIdx.x * kVec + j] = (float)sum[j];
    __syncthreads();
    double total = add_rows(args, args.n_threads * kVec / args.width, shared,
                            [&](uint32_t i) { return kept[i]; });
    const bool is_mine = threadIdx.x < args.width;
    if (gridDim.x > 1) {
        if (is_mine) {
            args.partial[blockIdx.x * args.width + threadIdx.x] = (float)total;
            __threadfence();
        }
        __syncthreads();
        if (threadIdx.x == 0)
            is_last = atomicInc(args.counter, gridDim.x - 1) == gridDim.x - 1;
        __syncthreads();
        if (!is_last)
            return;
        __threadfence();
        total = add_rows(args, gridDim.x, shared, // past L1, see load_partial
                         [&](uint32_t i) { return __ldcg(args.partial + i); });
    }
    if (is_mine)
        static_cast<T *>(args.grad_y)[threadIdx.x] = element<T>::from_float((float)total);
}

// ------------------------------------------------------------------------------------ host

// Threads at work of a block: those of whole rows, or 0 where it has not so many.
static inline int64_t threads_of_columns(int64_t width, int vec)
{
    int64_t threads = width; // of vec rows
    while (threads % 2 == 0 && threads / 2 * vec % width == 0)
        threads /= 2;
    return kColumnsThreads / threads * threads;
}

// Are rows so many that every block takes several packets for each thread, and is there nothing to
// keep but columns?
template <typename T>
static bool is_of_columns(const struct binary_plan *plan, int32_t sum_side)
{
    constexpr int64_t kLeast = kMultiprocessors * kColumnsThreads * kColumnsAhead;
    if (plan->rank != 2 || !keeps_columns(plan, sum_side) || plan->dim[0].in & sum_side)
        return false;
    const int64_t width = plan->dim[1].size;
    return width <= kColumnsThreads / 2 && threads_of_columns(width, kVecOf<T>) > 0 &&
           (width % (8 * kVecOf<T>) != 0 || width < 8 * kVecOf<T>)&&plan->n / kVecOf<T> >=
               kLeast / 2;
}

template <typename T>
static enum roped_status launch_columns(const struct binary_plan *plan, const struct sum_args &sum,
                                        void *grad_x, struct roped_queue *queue,
                                        struct roped_error *err)
{
    constexpr int64_t kMostBlocks = 2 * kMultiprocessors;
    columns_args args = {};
    args.g = sum.g;
    args.x = sum.x;
    args.y = sum.y;
    args.grad_x = grad_x;
    args.grad_y = sum.grad_y;
    args.n = plan->n;
    args.width = (uint32_t)plan->dim[1].size;
    args.n_threads = (uint32_t)threads_of_columns(args.width, kVecOf<T>);
    args.to_row = index_divisor(args.width);
    args.sign = sum.sign;
    const int64_t steps = blocks_of(blocks_of(plan->n, kVecOf<T>), args.n_threads);
    args.n_steps = (uint32_t)clamp(blocks_of(steps, kMostBlocks), kColumnsAhead, INT_MAX);
    const int64_t n_blocks = blocks_of(steps, args.n_steps);
    enum roped_status status =
        roped_cuda_scratch(queue, n_blocks * args.width * (int64_t)sizeof(float), 1, &args.partial,
                           &args.counter, err);
    if (status)
        return status;
    kernel_fn<columns_args> *kernel = sum.kind == kBinaryMul     ? columns_kernel<T, kBinaryMul>
                                      : sum.kind == kBinaryOverY ? columns_kernel<T, kBinaryOverY>
                                      : sum.kind == kBinaryOverX ? columns_kernel<T, kBinaryOverX>
                                                                 : columns_kernel<T, kBinaryLinear>;
    return start(queue, kernel, dim3(kColumnsThreads), n_blocks, dim3(), args, err);
}
