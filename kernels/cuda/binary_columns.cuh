// binary_columns.cuh - both gradients of a binary function in one pass, where every column of one
// operand has one element of the other: narrow columns of many rows, whose width lanes and packets
// need not divide. Beside each other there may be runs of columns that have one element together,
// and runs that have it together may lie apart. Rows may be around what is kept: each element of
// that has blocks of its own. So has each panel of a row that is too wide for a block.
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
    int64_t row;       // and of a row
    uint32_t n_panels; // of a row
    uint32_t width;    // columns of a panel, of which
    uint32_t run;      // so many have one element of y
    uint32_t inner;    // and so many runs side by side each another one,
    uint32_t repeats;  // which as many behind them have again, so many times
    uint32_t n_sums;   // elements of y
    divisor_of_index to_run, to_inner, to_repeats;
    uint32_t n_threads; // at work
    uint32_t n_steps;   // of a thread
    int64_t step;       // elements of x to the next one
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
    const uint32_t around = args.n_panels > 1 ? blockIdx.y / args.n_panels : blockIdx.y;
    const int64_t kept = around * args.n + (blockIdx.y - around * args.n_panels) * args.width;
    const T *g = static_cast<const T *>(args.g) + kept, *x = static_cast<const T *>(args.x) + kept;
    T *to = static_cast<T *>(args.grad_x) + kept;
    const int64_t step = args.step;
    const uint32_t first = threadIdx.x * kVec, row = quotient(first, args.to_row);
    int64_t at = (int64_t)blockIdx.x * args.n_steps * step + first + row * (args.row - args.width);
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
    const uint32_t n_runs = args.n_sums * args.repeats;
    uint32_t left = (at[0] + 1) * args.run - column; // of a run
#pragma unroll
    for (int j = 1; j < kVec; j++) {
        at[j] = at[j - 1];
        if (--left > 0)
            continue;
        left = args.run;
        at[j] = at[j] + 1 < n_runs ? at[j] + 1 : 0;
    }
#pragma unroll
    for (int j = 0; j < kVec && args.repeats > 1; j++) {
        const uint32_t runs = quotient(at[j], args.to_inner),
                       outer = quotient(runs, args.to_repeats);
        at[j] -= (runs - outer) * args.inner;
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
    if (args.run * args.repeats > 1)
        __syncthreads();
    T *to = static_cast<T *>(args.grad_y) + blockIdx.y * args.n_sums;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < args.n_sums; i += blockDim.x) {
        const uint32_t runs = i + quotient(i, args.to_inner) * (args.repeats - 1) * args.inner;
        double total = 0;
#pragma unroll 1
        for (uint32_t at = runs; at < runs + args.repeats * args.inner; at += args.inner)
#pragma unroll 1
            for (uint32_t of_run = 0; of_run < args.run; of_run++)
                total += (double)kept[at * args.run + of_run];
        to[i] = element<T>::from_float((float)total);
    }
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

// The dims of a call whose innermost ones are columns that threads know: what is kept around rows,
// and in a row, one in the other, what is kept, summed, kept and summed.
struct columns_shape {
    int64_t n_kept, n_rows, outer, repeats, inner, run;
    int64_t of_panel; // of outer

    int64_t width() const
    {
        return of_panel * repeats * inner * run;
    }
};

// Is the gradient of that form?
static inline bool name_columns(const struct binary_plan *plan, int32_t sum_side,
                                struct columns_shape *shape)
{
    const auto is_kept = [&](int i) { return (plan->dim[i].in & sum_side) != 0; };
    int i = plan->rank - 1;
    *shape = {1, 1, 1, 1, 1, 1, 1};
    if (i > 0 && !is_kept(i))
        shape->run = plan->dim[i--].size;
    if (i < 1 || !is_kept(i))
        return false;
    shape->inner = plan->dim[i--].size; // dims that are kept and summed take turns
    if (i > 1) {
        shape->repeats = plan->dim[i--].size;
        shape->outer = plan->dim[i--].size;
    }
    if (i < 0)
        return false;
    shape->n_rows = plan->dim[i--].size;
    if (i == 0)
        shape->n_kept = plan->dim[i--].size;
    return i < 0;
}

// Cuts a row into panels that a block's threads make whole rows of: all of it, or parts that begin
// where packets do. Returns the threads at work of a block, or 0.
static inline int64_t cut_columns(struct columns_shape *shape, int vec)
{
    const int64_t outer = shape->outer;
    shape->of_panel = 1;
    const int64_t of_one = shape->width(), most = (int64_t)kColumnsThreads * vec / of_one;
    for (int64_t of_panel = clamp(most, 0, outer); of_panel > 0; of_panel--) {
        shape->of_panel = of_panel;
        if (outer % of_panel != 0 ||
            (of_panel < outer && (shape->width() % vec != 0 || outer * of_one % vec != 0)))
            continue;
        const int64_t threads = threads_of_columns(shape->width(), vec);
        if (threads > 0)
            return threads;
    }
    return 0;
}

// Columns of a run, whose sums a thread adds.
static inline int64_t most_run(int64_t run, int vec)
{
    constexpr int64_t kMostOddRun = 36;
    return run % vec != 0 ? kMostOddRun : 2 * vec;
}

// Do columns whose runs lie apart begin anywhere in a packet, or are there runs? Others are a
// sweep's. Sums of the last block are a thread's each: the more it adds of them, the longer a call
// should be.
template <typename T>
static bool is_of_runs_apart(const struct binary_plan *plan, struct columns_shape *shape)
{
    constexpr int64_t kLeast = 3 * kMultiprocessors * kColumnsThreads * kColumnsAhead;
    constexpr int64_t kFewTerms = 32, kMostGroups = 4096;
    constexpr int kVec = kVecOf<T>;
    if (shape->run == 1 ? shape->inner % kVec == 0 : shape->run > most_run(shape->run, kVec))
        return false;
    const int64_t threads = cut_columns(shape, kVec), width = shape->width();
    const int64_t n_groups = shape->n_kept * (shape->outer / shape->of_panel);
    const int64_t rows_of_step = threads * kVec / width;
    return 2 * threads >= kColumnsThreads && n_groups <= kMostGroups &&
           plan->n / kVec >= kLeast * blocks_of(shape->repeats * shape->run, kFewTerms) &&
           (n_groups == 1 || shape->n_rows >= rows_of_step * kColumnsAhead) &&
           (shape->n_kept == 1 || plan->n / shape->n_kept % kVec == 0);
}

// Are rows so many that every block takes several packets for each thread? The more columns, the
// longer the last block adds what others have left; and float32, of which a packet has four, gains
// nothing where more than a quarter of a block idles. Rows that other elements are kept around are
// a sweep's where packets divide them. So are runs of more than a sector of memory, whose sums one
// thread would add (10000x2x128 takes 1.72, 40000x3x40 1.25), but for short odd ones, and few
// packets in whole runs (8000x16x8 of float32 1.14, 900x700x8 of bfloat16 1.20) or odd ones of
// more than two.
template <typename T>
static bool is_of_columns(const struct binary_plan *plan, int32_t sum_side,
                          const struct sum_args &sum, struct columns_shape *shape)
{
    constexpr int kVec = kVecOf<T>;
    constexpr int64_t kLeast = kMultiprocessors * kColumnsThreads * kColumnsAhead;
    constexpr int64_t kMostKept = 4096;
    if (!name_columns(plan, sum_side, shape) || !are_aligned({sum.g, sum.x, sum.grad_x}))
        return false;
    const bool is_odd = shape->run % kVec != 0;
    const bool is_cut = is_odd || (shape->run == kVec && plan->n / kVec >= 6 * kLeast);
    if (shape->repeats == 1 && is_cut && shape->run > 1 && shape->width() > kColumnsThreads)
        std::swap(shape->outer, shape->inner); // too wide for a block: panels of runs
    if (shape->repeats > 1 || shape->outer > 1)
        return is_of_runs_apart<T>(plan, shape);
    const int64_t width = shape->width(), n = shape->n_rows * width;
    const bool is_wide = width > kColumnsThreads / 2, is_plain = shape->n_kept * shape->run == 1;
    const int64_t threads = width <= kColumnsThreads ? threads_of_columns(width, kVec) : 0;
    if (sizeof(T) == 4 && is_wide && 4 * threads < 3 * kColumnsThreads)
        return false;
    const int64_t least = shape->run >= (is_odd ? 2 : 1) * kVec ? 3 * kLeast
                          : is_wide && is_plain                 ? 4 * kLeast
                                                                : kLeast / 2;
    if (threads == 0 || plan->n / kVec < least)
        return false;
    if (shape->run == 1 ? width % (is_plain ? 8 * kVec : kVec) == 0
                        : shape->run > most_run(shape->run, kVec))
        return false;
    return shape->n_kept == 1 ||
           (n % kVec == 0 && n >= threads * kVec * kColumnsAhead && shape->n_kept <= kMostKept);
}

template <typename T>
static enum roped_status launch_columns(const struct columns_shape *shape,
                                        const struct sum_args &sum, struct roped_queue *queue,
                                        struct roped_error *err)
{
    const int64_t n_panels = shape->outer / shape->of_panel, n_groups = shape->n_kept * n_panels;
    const int64_t most_blocks = clamp(2 * kMultiprocessors / n_groups, 1, INT_MAX);
    columns_args args = {};
    name_operands(sum, &args);
    args.width = (uint32_t)shape->width();
    args.row = n_panels * args.width;
    args.n = shape->n_rows * args.row;
    args.n_panels = (uint32_t)n_panels;
    args.run = (uint32_t)shape->run;
    args.inner = (uint32_t)shape->inner;
    args.repeats = (uint32_t)shape->repeats;
    args.n_sums = (uint32_t)(shape->of_panel * shape->inner);
    args.to_run = index_divisor(args.run);
    args.to_inner = index_divisor(args.inner);
    args.to_repeats = index_divisor(args.repeats);
    args.n_threads = (uint32_t)threads_of_columns(args.width, kVecOf<T>);
    args.to_row = index_divisor(args.width);
    const int64_t rows_of_step = (int64_t)args.n_threads * kVecOf<T> / args.width;
    const int64_t steps = blocks_of(shape->n_rows, rows_of_step);
    args.step = rows_of_step * args.row;
    args.n_steps = (uint32_t)clamp(blocks_of(steps, most_blocks), kColumnsAhead, INT_MAX);
    const int64_t n_blocks = blocks_of(steps, args.n_steps);
    const int64_t n_partial = n_groups * n_blocks * partial_width(args.width);
    enum roped_status status = roped_cuda_scratch(queue, n_partial * (int64_t)sizeof(float),
                                                  n_groups, &args.partial, &args.counter, err);
    if (status)
        return status;
    kernel_fn<columns_args> *kernel = sum.kind == kBinaryMul     ? columns_kernel<T, kBinaryMul>
                                      : sum.kind == kBinaryOverY ? columns_kernel<T, kBinaryOverY>
                                                                 : columns_kernel<T, kBinaryOverX>;
    return start(queue, kernel, dim3((unsigned)blocks_of(args.n_threads, 32) * 32), n_blocks,
                 dim3(1, (unsigned)n_groups), args, err);
}
