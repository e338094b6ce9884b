// norm_gradient_only.cuh - gradients of norms whose rows each have a block of their own, which
// holds it in registers; for norm_gradient.cuh.
//
// Such a kernel has neither a ring nor sums over rows: code that runs once is waited for. What the
// columns' sums need of the rows is read again by a second kernel, from L2, unless there is one
// row. Rows that 16 bytes do not divide, or that begin anywhere, are read and written by packets
// that are shifted into place (device/shifted.cuh).
#pragma once

#include "cuda/device/last_block.cuh"
#include "cuda/device/norm_gradient_sums.cuh"
#include "cuda/device/norm_row.cuh"
#include "cuda/dispatch.cuh"

// ------------------------------------------------------------------------------------ a row

// Vectors of a row at any address, on their way.
template <typename C>
struct shifted_row {
    using T = typename C::T;
    shifted_vector<(int)sizeof(T)> vector[C::kVectors];

    template <typename Row>
    __device__ __forceinline__ void start(const Row &row, const T *from, const char *end)
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            vector[v].start(from + row.column(v), min(row.left(v), C::kVec) * (int)sizeof(T), end);
    }
    __device__ __forceinline__ void finish(uint4 (&raw)[C::kVectors]) const
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            raw[v] = vector[v].finish();
    }
};

// The only row of a block, in registers. All of its loads begin at once, and those that the sums do
// not need last. What no thread of a warp has is passed over: an instruction that is executed once
// waits for its own code.
template <typename C>
struct only_row {
    using T = typename C::T;
    const norm_gradient_args &args;
    const int64_t row;
    uint4 x[C::kVectors], g[C::kVectors];
    float w[C::kVectors][C::kVec];

    __device__ __forceinline__ explicit only_row(const norm_gradient_args &norm)
        : args(norm), row(blockIdx.x)
    {
        const gradient_row<C> of(args, row);
        if constexpr (C::kAligned) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++) {
                x[v] = load_raw<C>(of.x + column(v), left(v));
                g[v] = load_raw<C>(of.g + column(v), left(v));
            }
        } else {
            shifted_row<C> of_x, of_g;
            of_x.start(*this, of.x, args.x_end);
            of_g.start(*this, of.g, args.grad_y_end);
            of_x.finish(x);
            of_g.finish(g);
        }
        with_weight(args, [&](auto *weight) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                load_gains<C>(args, weight, column(v), left(v), w[v]);
        });
    }
    __device__ __forceinline__ int column(int v) const
    {
        return (v * (int)blockDim.x + (int)threadIdx.x) * C::kVec;
    }
    // Elements of the row from a vector on; none or less behind its end.
    __device__ __forceinline__ int left(int v) const
    {
        if constexpr (C::kAligned)
            return column(v) < (int)args.hidden ? C::kVec : 0;
        return (int)args.hidden - column(v);
    }
    // The same vectors of another tensor's row.
    __device__ __forceinline__ void load(const T *from, const char *end,
                                         uint4 (&raw)[C::kVectors]) const
    {
        if constexpr (C::kAligned) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                raw[v] = load_raw<C>(from + column(v), left(v));
        } else {
            shifted_row<C> of;
            of.start(*this, from, end);
            of.finish(raw);
        }
    }
    // All lanes of a warp store together where vectors are shifted.
    __device__ __forceinline__ void store(T *to, int v, const float (&y)[C::kVec]) const
    {
        put_vector<T, C::kAligned>(to + column(v), blockDim.x, threadIdx.x, left(v), y);
    }
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            if (C::kAligned ? !left(v) : left(v) + lane * C::kVec <= 0)
                continue;
            float of_x[C::kVec], of_g[C::kVec];
            unpack<T>(x[v], of_x);
            unpack<T>(g[v], of_g);
            f(v, column(v), C::kAligned ? C::kVec : left(v), of_x, of_g, w[v]);
        }
    }
};

// A row for each block. What the columns' sums need of it is left for columns_kernel, unless it is
// the only row.
template <typename C>
static __global__ void __launch_bounds__(C::kBlock)
    only_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    if constexpr (C::kWarps > 1)
        exchange.clear();
    wait_for_previous();
    const only_row<C> row(args);
    const T *residual = static_cast<const T *>(args.grad_residual);
    uint4 before[C::kVectors] = {};
    if (residual && C::kAligned)
        row.load(residual + row.row * args.grad_residual_pitch, args.grad_residual_end, before);
    const row_in_memory<C> again{args, row.row, (int)threadIdx.x, (int)blockDim.x, nullptr};
    const row_factors of = find_factors<C>(row, again, exchange, 0);
    if (args.scales && threadIdx.x == 0)
        args.scales[row.row] = make_float4(of.mean, of.rest, of.s, 0.0f);
    if (residual && !C::kAligned) // there are no registers for it before
        row.load(residual + row.row * args.grad_residual_pitch, args.grad_residual_end, before);
    T *to = static_cast<T *>(args.grad_x) + row.row * args.grad_x_pitch;
    row.for_each([&](int v, int column, int n, auto &x, auto &g, auto &w) {
        float made[C::kVec];
        unpack<T>(before[v], made);
        descend<C>(of, x, g, w, made);
        row.store(to, v, made);
        if (args.scales)
            return;
        if (C::kCentres && args.sum_place[C::kSums - 1] >= 0)
            store_sums<C>(args, args.sum_place[C::kSums - 1], column, n, g);
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            x[i] *= g[i];
        if (args.sum_place[0] >= 0)
            store_sums<C>(args, args.sum_place[0], column, n, x);
    });
}

// ------------------------------------------------------------------------------------ columns

constexpr int kColumnLanes = 8, kRowLanes = 64, kRowBatch = 2;

// What the rows add to the sums of a vector of columns: x and grad_y from both, and a row's mean,
// rest and s.
template <typename C>
__device__ __forceinline__ void add_to_columns(const uint4 &x, const uint4 &g, const uint4 &scale,
                                               float (&sums)[C::kSums][C::kVec])
{
    using T = typename C::T;
    float of_x[C::kVec], of_g[C::kVec];
    unpack<T>(x, of_x);
    unpack<T>(g, of_g);
#pragma unroll
    for (int j = 0; j < C::kVec; j++) {
        const float normal = rounded<C>(normal_of<C>(
            of_x[j], __uint_as_float(scale.x), __uint_as_float(scale.y), __uint_as_float(scale.z)));
        sums[0][j] = fmaf(of_g[j], normal, sums[0][j]);
        if constexpr (C::kCentres)
            sums[1][j] += of_g[j];
    }
}

// Vectors of some rows, at a column; the first one where there are no more.
template <typename C>
__device__ __forceinline__ void load_columns(const norm_gradient_args &args, int row, int end,
                                             int column, uint4 (&x)[kRowBatch],
                                             uint4 (&g)[kRowBatch], uint4 (&scale)[kRowBatch])
{
    constexpr int kSize = (int)sizeof(typename C::T);
    const int n = min((int)args.hidden - column, C::kVec);
    shifted_vector<kSize> of_x[kRowBatch], of_g[kRowBatch];
#pragma unroll
    for (int i = 0; i < kRowBatch; i++) {
        const int at = row + i * kRowLanes < end ? row + i * kRowLanes : row;
        const gradient_row<C> of(args, at);
        if constexpr (C::kAligned) {
            x[i] = load_raw<C>(of.x + column, n);
            g[i] = load_raw<C>(of.g + column, n);
        } else {
            of_x[i].start(of.x + column, n * kSize, args.x_end);
            of_g[i].start(of.g + column, n * kSize, args.grad_y_end);
        }
        scale[i] = load_16(args.scales + at);
    }
    if constexpr (!C::kAligned)
#pragma unroll
        for (int i = 0; i < kRowBatch; i++) {
            x[i] = of_x[i].finish();
            g[i] = of_g[i].finish();
        }
}

// The sum of a thread's column over segments, of which the last block has all.
static __device__ __forceinline__ float add_segments(const float *partial, int n, int apart)
{
    constexpr int kBatch = 8; // loads in flight: a loop would wait for each
    double sum = 0.0;
    for (int first = 0; first < n; first += kBatch) {
        float part[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; i++)
            part[i] = __ldcg(partial + min(first + i, n - 1) * apart);
#pragma unroll
        for (int i = 0; i < kBatch; i++)
            sum += first + i < n ? (double)part[i] : 0.0;
    }
    return (float)sum;
}

// The columns' sums of rows that are read again: less than to write what each row has of them, and
// to read that. Threads are kColumnLanes x kRowLanes; one takes every kRowLanes-th row of its
// block's segment, which is blockIdx.y. kCuts: there may be several, whose instructions a call of
// few rows would wait for.
template <typename C, bool kCuts>
static __global__ void __launch_bounds__(kColumnLanes *kRowLanes)
    columns_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    constexpr int kWarps = kColumnLanes * kRowLanes / 32, kOfBlock = kColumnLanes * C::kVec;
    constexpr int kOfSegment = C::kSums * kOfBlock;
    __shared__ float shared[C::kSums][kWarps][kOfBlock];
    let_next_start();
    const int lane = threadIdx.x % kColumnLanes, first = threadIdx.x / kColumnLanes;
    const int column = ((int)blockIdx.x * kColumnLanes + lane) * C::kVec;
    const int begin = kCuts ? (int)blockIdx.y * args.rows_of_segment : 0;
    const int end = kCuts ? min((int)args.n_rows, begin + args.rows_of_segment) : (int)args.n_rows;
    float sums[C::kSums][C::kVec] = {};
    wait_for_previous();
    for (int row = begin + first; row < end; row += kRowLanes * kRowBatch) {
        uint4 x[kRowBatch], g[kRowBatch], scale[kRowBatch];
        load_columns<C>(args, row, end, column, x, g, scale);
#pragma unroll
        for (int i = 0; i < kRowBatch; i++)
            if (row + i * kRowLanes < end)
                add_to_columns<C>(x[i], g[i], scale[i], sums);
    }
#pragma unroll
    for (int s = 0; s < C::kSums; s++)
#pragma unroll
        for (int j = 0; j < C::kVec; j++) {
#pragma unroll
            for (int distance = 16; distance >= kColumnLanes; distance /= 2)
                sums[s][j] += exchange(sums[s][j], distance);
            if (threadIdx.x % 32 < kColumnLanes)
                shared[s][threadIdx.x / 32][lane * C::kVec + j] = sums[s][j];
        }
    __syncthreads();
    const int s = threadIdx.x / kOfBlock, at = threadIdx.x % kOfBlock;
    const int result = blockIdx.x * kOfBlock + at;
    const bool has_sum =
        s < C::kSums && args.sum_place[s % C::kSums] >= 0 && result < (int)args.hidden;
    if (!kCuts && !has_sum)
        return;
    double sum = 0.0;
    if (has_sum)
#pragma unroll
        for (int i = 0; i < kWarps; i++)
            sum += (double)shared[s][i][at];
    if constexpr (kCuts) {
        float *partial = args.partial + blockIdx.x * gridDim.y * kOfSegment + threadIdx.x;
        if (has_sum)
            partial[blockIdx.y * kOfSegment] = (float)sum;
        if (!comes_last(args.counter + blockIdx.x, gridDim.y))
            return;
        if (has_sum)
            sum = add_segments(partial, gridDim.y, kOfSegment);
    }
    if (has_sum)
        store_as(args.sum_dtype, args.sum_to[args.sum_place[s]], result, (float)sum);
}

// ------------------------------------------------------------------------------------ launch

// The columns' sums. Where a thread would take more than two batches of rows, there is room for
// more blocks: each takes a segment of the rows, and the last one adds what they have.
template <typename C>
static enum roped_status start_columns(struct norm_gradient_args args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    constexpr int64_t kBatch = kRowLanes * kRowBatch;
    const int64_t n_blocks = blocks_of(args.sum_pitch, kColumnLanes * C::kVec);
    const int64_t most = 2 * kMultiprocessors / n_blocks;
    const int64_t batches = args.n_rows ? blocks_of(args.n_rows, kBatch) : 1;
    const int64_t n = batches <= 2 || most <= 1 ? 1 : batches < most ? batches : most;
    const int64_t of_segment = blocks_of(batches, n);
    args.rows_of_segment = (int32_t)(of_segment * kBatch);
    const int64_t segments = blocks_of(batches, of_segment);
    return start(queue, segments > 1 ? columns_kernel<C, true> : columns_kernel<C, false>,
                 dim3(kColumnLanes * kRowLanes), n_blocks, dim3(1, (unsigned)segments), args, err);
}

// A block of so many threads for each row, which adds nothing to sums unless it is the only one,
// and what adds up the columns.
template <typename C>
static enum roped_status start_apart(kernel_fn<struct norm_gradient_args> *kernel,
                                     struct norm_gradient_args args, int64_t threads,
                                     int64_t shared_bytes, struct roped_queue *queue,
                                     struct roped_error *err)
{
    using Columns =
        gradient_config<typename C::T, C::kCentres, C::kRounds, C::kAligned, 32, 1, true>;
    const bool reads_again = args.n_sums && args.n_rows != 1;
    enum roped_status status = ROPED_OK;
    struct norm_gradient_args of_rows = args;
    if (reads_again) {
        // room for the segments' sums: at most 2 kMultiprocessors blocks have any
        const int64_t scales = args.n_rows * (int64_t)sizeof *args.scales;
        const int64_t sums = 2 * kMultiprocessors * kColumnLanes * C::kVec * C::kSums * 4;
        float *room;
        status = roped_cuda_scratch(queue, scales + sums, 2 * kMultiprocessors, &room,
                                    &args.counter, err);
        args.scales = of_rows.scales = reinterpret_cast<float4 *>(room);
        args.partial = room + args.n_rows * 4;
        of_rows.sum_place[0] = of_rows.sum_place[1] = -1;
    }
    if (!status && args.n_rows > 0)
        status = start(queue, kernel, dim3((unsigned)threads), args.n_rows, dim3(1), of_rows, err,
                       shared_bytes);
    return status || !reads_again ? status : start_columns<Columns>(args, queue, err);
}

template <typename C>
static enum roped_status start_only(const struct norm_gradient_args &args, int64_t threads,
                                    struct roped_queue *queue, struct roped_error *err)
{
    return start_apart<C>(only_norm_gradient_kernel<C>, args, threads, 0, queue, err);
}
