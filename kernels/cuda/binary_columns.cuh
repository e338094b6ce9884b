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
    float *partial;    // [blocks][partial_width(width)]
    uint32_t *counter; // how many blocks are there
    int64_t n;         // elements of x
    uint32_t width;
    uint32_t n_threads; // at work
    uint32_t n_steps;   // of a thread
    divisor_of_index to_row;
    int32_t has_values;
    struct binary_ones one;
};

// Rows of partial sums are whole packets.
__host__ __device__ constexpr uint32_t partial_width(uint32_t width)
{
    return (width + 3) / 4 * 4;
}

constexpr int kColumnsThreads = 256;
constexpr int kColumnsAhead = 4; // packets of a thread whose loads are one wait

template <typename T, int kVec, int kKind>
__device__ __forceinline__ void
sum_columns(const columns_args &args, const kept_elements<T, kKind, kVec> &y, double (&sum)[kVec])
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
            raw_x[s] = load_elements<T, kVec>(x + at + s * step, n[s]);
        }
#pragma unroll
        for (int s = 0; s < kColumnsAhead; s++) {
            float of_x[kVec], full[kVec], term[kVec];
            if (n[s] == 0)
                continue;
            pack_of::widen(raw_x[s], of_x);
#pragma unroll
            for (int j = 0; j < kVec; j++)
                of_x[j] = args.has_values ? of_x[j] : args.one.x;
            packet_terms<T, kKind>(kKind, raw_g[s], raw_x[s], false, of_x, y, full, term);
#pragma unroll
            for (int j = 0; j < kVec; j++)
                terms[j] += j < n[s] ? term[j] : 0.0f;
            store_elements<T, kVec>(to + at + s * step, full, n[s]);
        }
        at += kColumnsAhead * step;
#pragma unroll
        for (int j = 0; j < kVec; j++)
            sum[j] += (double)terms[j];
    }
}

template <typename T, int kKind>
__global__ void __launch_bounds__(kColumnsThreads, 2)
    columns_kernel(const __grid_constant__ struct columns_args args)
{
    constexpr int kVec = kVecOf<T>;
    __shared__ alignas(16) float kept[kColumnsThreads * kVec];
    __shared__ double shared[kColumnsThreads];
    const bool is_at_work = threadIdx.x < args.n_threads;
    uint32_t column[kVec];
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        const uint32_t element = threadIdx.x * kVec + j;
        column[j] = element - quotient(element, args.to_row) * args.width;
    }
    let_next_start();
    wait_for_previous();
    kept_elements<T, kKind, kVec> y;
#pragma unroll
    for (int j = 0; j < kVec; j++)
        y.y[j] = args.has_values ? element<T>::to_float(static_cast<const T *>(args.y)[column[j]])
                                 : args.one.y;
    y.begin(kKind);
    double sum[kVec] = {};
    if (is_at_work)
        sum_columns<T, kVec, kKind>(args, y, sum);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        kept[threadIdx.x * kVec + j] = (float)sum[j];
    __syncthreads();
    // the block's rows, and then those of all blocks, past L1, which may have older lines
    const uint32_t n_partial = partial_width(args.width);
    float *partial = args.partial + blockIdx.x * n_partial;
    add_rows<8>(
        args.width, args.n_threads * kVec / args.width, shared,
        [&](uint32_t row, uint32_t at) { return kept[row * args.width + at]; },
        [&](uint32_t at, double total) { partial[at] = (float)total; });
    if (!comes_last(args.counter, gridDim.x))
        return;
    add_partial(args.partial, n_partial, gridDim.x, kept);
    if (threadIdx.x < args.width)
        static_cast<T *>(args.grad_y)[threadIdx.x] = element<T>::from_float(kept[threadIdx.x]);
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
// keep but columns? The more columns, the longer the last block adds what others have left; and
// float32, of which a packet has four, gains nothing where more than a quarter of a block idles.
template <typename T>
static bool is_of_columns(const struct binary_plan *plan, int32_t sum_side)
{
    constexpr int64_t kLeast = kMultiprocessors * kColumnsThreads * kColumnsAhead;
    if (plan->rank != 2 || !keeps_columns(plan, sum_side) || plan->dim[0].in & sum_side)
        return false;
    const int64_t width = plan->dim[1].size;
    const bool is_wide = width > kColumnsThreads / 2, fills_lanes = width % (8 * kVecOf<T>) == 0;
    const int64_t threads = width <= kColumnsThreads ? threads_of_columns(width, kVecOf<T>) : 0;
    if (sizeof(T) == 4 && is_wide && 4 * threads < 3 * kColumnsThreads)
        return false;
    return threads > 0 && !fills_lanes &&
           plan->n / kVecOf<T> >= (is_wide ? 4 * kLeast : kLeast / 2);
}

template <typename T>
static enum roped_status launch_columns(const struct binary_plan *plan, const struct sum_args &sum,
                                        struct roped_queue *queue, struct roped_error *err)
{
    constexpr int64_t kMostBlocks = 2 * kMultiprocessors;
    columns_args args = {};
    args.g = sum.g;
    args.x = sum.x;
    args.y = sum.y;
    args.grad_x = sum.grad_x;
    args.grad_y = sum.grad_y;
    args.n = plan->n;
    args.width = (uint32_t)plan->dim[1].size;
    args.n_threads = (uint32_t)threads_of_columns(args.width, kVecOf<T>);
    args.to_row = index_divisor(args.width);
    args.has_values = sum.has_values;
    args.one = sum.one;
    const int64_t steps = blocks_of(blocks_of(plan->n, kVecOf<T>), args.n_threads);
    args.n_steps = (uint32_t)clamp(blocks_of(steps, kMostBlocks), kColumnsAhead, INT_MAX);
    const int64_t n_blocks = blocks_of(steps, args.n_steps);
    enum roped_status status =
        roped_cuda_scratch(queue, n_blocks * partial_width(args.width) * (int64_t)sizeof(float), 1,
                           &args.partial, &args.counter, err);
    if (status)
        return status;
    kernel_fn<columns_args> *kernel = sum.kind == kBinaryMul     ? columns_kernel<T, kBinaryMul>
                                      : sum.kind == kBinaryOverY ? columns_kernel<T, kBinaryOverY>
                                                                 : columns_kernel<T, kBinaryOverX>;
    return start(queue, kernel, dim3((unsigned)blocks_of(args.n_threads, 32) * 32), n_blocks,
                 dim3(), args, err);
}
