// binary_columns.cuh - both gradients of a binary function in one pass, where every column of one
// operand has one element of the other: narrow columns of many rows, whose width lanes and packets
// need not divide. Beside each other there may be runs of columns that have one element together,
// and rows may be around what is kept: each element of that has blocks of its own.
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
    float *partial;    // [kept][blocks][partial_width(width)]
    uint32_t *counter; // [kept]: how many blocks are there
    int64_t n;         // elements of x, of each that is kept
    uint32_t width;    // columns, of which
    uint32_t run;      // so many have one element of y
    uint32_t n_sums;   // elements of y: runs in a row
    divisor_of_index to_run;
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
    const int64_t kept = blockIdx.y * args.n;
    const T *g = static_cast<const T *>(args.g) + kept, *x = static_cast<const T *>(args.x) + kept;
    T *to = static_cast<T *>(args.grad_x) + kept;
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
    const T *of_y = static_cast<const T *>(args.y) + blockIdx.y * args.n_sums;
    const uint32_t first = threadIdx.x * kVec;
    const uint32_t column = first - quotient(first, args.to_row) * args.width;
    uint32_t at[kVec]; // of y
    at[0] = quotient(column, args.to_run);
    uint32_t left = (at[0] + 1) * args.run - column; // of a run
#pragma unroll
    for (int j = 1; j < kVec; j++) {
        at[j] = at[j - 1];
        if (--left > 0)
            continue;
        left = args.run;
        at[j] = at[j] + 1 < args.n_sums ? at[j] + 1 : 0;
    }
    let_next_start();
    wait_for_previous();
    kept_elements<T, kKind, kVec> y;
#pragma unroll
    for (int j = 0; j < kVec; j++)
        y.y[j] = args.has_values ? element<T>::to_float(of_y[at[j]]) : args.one.y;
    y.begin(kKind);
    double sum[kVec] = {};
    if (is_at_work)
        sum_columns<T, kVec, kKind>(args, y, sum);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        kept[threadIdx.x * kVec + j] = (float)sum[j];
    __syncthreads();
    // the block's rows, and then those of all blocks, past L1, which may have older lines
    const uint32_t n_partial = partial_width(args.width), n_blocks = gridDim.x;
    float *all = args.partial + (int64_t)blockIdx.y * n_blocks * n_partial;
    float *partial = all + blockIdx.x * n_partial;
    add_rows<8>(
        args.width, args.n_threads * kVec / args.width, shared,
        [&](uint32_t row, uint32_t at) { return kept[row * args.width + at]; },
        [&](uint32_t at, double total) { partial[at] = (float)total; });
    if (!comes_last(args.counter + blockIdx.y, n_blocks))
        return;
    add_partial(all, n_partial, n_blocks, kept);
    if (args.run > 1)
        __syncthreads();
    if (threadIdx.x >= args.n_sums)
        return;
    double total = kept[threadIdx.x * args.run];
#pragma unroll 1
    for (uint32_t i = 1; i < args.run; i++)
        total += (double)kept[threadIdx.x * args.run + i];
    static_cast<T *>(args.grad_y)[blockIdx.y * args.n_sums + threadIdx.x] =
        element<T>::from_float((float)total);
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

// The dims of a call whose innermost ones are columns that threads know: rows of width columns, in
// runs that have one element of y each, around them what is kept.
struct columns_shape {
    int64_t n_kept, n_rows, width, run;
};

// Is the gradient of that form?
static inline bool name_columns(const struct binary_plan *plan, int32_t sum_side,
                                struct columns_shape *shape)
{
    const auto is_kept = [&](int i) { return (plan->dim[i].in & sum_side) != 0; };
    int i = plan->rank - 1;
    *shape = {1, 1, 1, 1};
    if (i > 0 && !is_kept(i))
        shape->run = plan->dim[i--].size;
    if (i < 1 || !is_kept(i) || is_kept(i - 1))
        return false;
    shape->width = plan->dim[i--].size * shape->run;
    shape->n_rows = plan->dim[i--].size;
    if (i == 0 && is_kept(i))
        shape->n_kept = plan->dim[i--].size;
    return i < 0;
}

// Are rows so many that every block takes several packets for each thread? The more columns, the
// longer the last block adds what others have left; and float32, of which a packet has four, gains
// nothing where more than a quarter of a block idles. Rows that other elements are kept around are
// a sweep's where packets divide them. So are runs of more than a sector of memory, whose sums one
// thread would add (10000x2x128 takes 1.72, 40000x3x40 1.25), but for short odd ones, and few
// packets in whole runs (8000x16x8 of float32 1.14) or odd ones of more than two.
template <typename T>
static bool is_of_columns(const struct binary_plan *plan, int32_t sum_side,
                          struct columns_shape *shape)
{
    constexpr int kVec = kVecOf<T>;
    constexpr int64_t kLeast = kMultiprocessors * kColumnsThreads * kColumnsAhead;
    constexpr int64_t kMostKept = 4096, kMostOddRun = 36;
    if (!name_columns(plan, sum_side, shape))
        return false;
    const int64_t width = shape->width, n = shape->n_rows * width;
    const bool is_wide = width > kColumnsThreads / 2, is_plain = shape->n_kept * shape->run == 1;
    const int64_t threads = width <= kColumnsThreads ? threads_of_columns(width, kVec) : 0;
    if (sizeof(T) == 4 && is_wide && 4 * threads < 3 * kColumnsThreads)
        return false;
    const bool is_odd = shape->run % kVec != 0;
    const int64_t least = shape->run >= (is_odd ? 2 : 1) * kVec ? 3 * kLeast
                          : is_wide && is_plain                 ? 4 * kLeast
                                                                : kLeast / 2;
    if (threads == 0 || plan->n / kVec < least)
        return false;
    if (shape->run == 1 ? width % (is_plain ? 8 * kVec : kVec) == 0
                        : shape->run > (is_odd ? kMostOddRun : 2 * kVec))
        return false;
    return shape->n_kept == 1 ||
           (n % kVec == 0 && n >= threads * kVec * kColumnsAhead && shape->n_kept <= kMostKept);
}

template <typename T>
static enum roped_status launch_columns(const struct columns_shape *shape,
                                        const struct sum_args &sum, struct roped_queue *queue,
                                        struct roped_error *err)
{
    const int64_t most_blocks = clamp(2 * kMultiprocessors / shape->n_kept, 1, INT_MAX);
    columns_args args = {};
    args.g = sum.g;
    args.x = sum.x;
    args.y = sum.y;
    args.grad_x = sum.grad_x;
    args.grad_y = sum.grad_y;
    args.n = shape->n_rows * shape->width;
    args.width = (uint32_t)shape->width;
    args.run = (uint32_t)shape->run;
    args.n_sums = args.width / args.run;
    args.to_run = index_divisor(args.run);
    args.n_threads = (uint32_t)threads_of_columns(args.width, kVecOf<T>);
    args.to_row = index_divisor(args.width);
    args.has_values = sum.has_values;
    args.one = sum.one;
    const int64_t steps = blocks_of(blocks_of(args.n, kVecOf<T>), args.n_threads);
    args.n_steps = (uint32_t)clamp(blocks_of(steps, most_blocks), kColumnsAhead, INT_MAX);
    const int64_t n_blocks = blocks_of(steps, args.n_steps);
    const int64_t n_partial = shape->n_kept * n_blocks * partial_width(args.width);
    enum roped_status status = roped_cuda_scratch(queue, n_partial * (int64_t)sizeof(float),
                                                  shape->n_kept, &args.partial, &args.counter, err);
    if (status)
        return status;
    kernel_fn<columns_args> *kernel = sum.kind == kBinaryMul     ? columns_kernel<T, kBinaryMul>
                                      : sum.kind == kBinaryOverY ? columns_kernel<T, kBinaryOverY>
                                                                 : columns_kernel<T, kBinaryOverX>;
    return start(queue, kernel, dim3((unsigned)blocks_of(args.n_threads, 32) * 32), n_blocks,
                 dim3(1, (unsigned)shape->n_kept), args, err);
}
