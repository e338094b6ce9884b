// norm_gradient_only.cuh - gradients of norms whose rows each have a block of their own, which
// holds it in registers or in shared memory; for norm_gradient.cuh.
//
// Such a kernel has neither a ring nor sums over rows: code that runs once is waited for. What the
// columns' sums need of the rows is read again by a second kernel, unless there is one row. Rows
// that 16 bytes do not divide, or that begin anywhere, are read and written by packets that are
// shifted into place (device/shifted.cuh).
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

// The last rows come first: columns_kernel begins with those that L2 still has.
static __device__ __forceinline__ int64_t row_of_block(const norm_gradient_args &args)
{
    return args.first_row + (gridDim.x - 1 - blockIdx.x);
}

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
        : args(norm), row(row_of_block(norm))
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
        with_weight(args, args.weight, [&](auto *weight) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                load_gains<C>(args, weight, column(v), left(v), w[v]);
        });
    }
    // With one vector for each thread the sum is that of half of the threads with two: the halves
    // of a warp have the vectors of 16 of those, and a pair of warps has 32 of them in turn. What
    // they add last there, a pair adds here.
    __device__ __forceinline__ int column(int v) const
    {
        if constexpr (C::kIsPart)
            return (v * args.n_shares + share_of_part(args, C::kVec)) * C::kVec;
        const int thread = (int)threadIdx.x, threads = (int)blockDim.x;
        if constexpr (C::kVectors > 1)
            return (v * threads + thread) * C::kVec;
        const int of_pair = thread % 16 * 2 + thread / 32 % 2, half = thread / 16 % 2;
        return (half * threads / 2 + thread / 64 * 32 + of_pair) * C::kVec;
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

// The only vector of a lane, also for rare sums.
template <typename C>
struct lane_row {
    const norm_gradient_args &args;
    const int column;
    const float (&w)[C::kVec];
    int n = 0; // elements of it that are in the row
    uint4 x, g;

    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
        float of_x[C::kVec], of_g[C::kVec];
        unpack<typename C::T>(x, of_x);
        unpack<typename C::T>(g, of_g);
        f(0, column, n, of_x, of_g, w);
    }
};

// For columns_kernel.
static __device__ __forceinline__ void store_scale(const norm_gradient_args &args, int64_t row,
                                                   const row_factors &of)
{
    if (args.scales && threadIdx.x == 0 && blockIdx.y == 0)
        args.scales[row] = make_float4(of.mean, of.rest, of.s, 0.0f);
}

// A row for each block. What the columns' sums need of it is left for columns_kernel, unless it is
// the only row.
template <typename C>
static __global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    only_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    if constexpr (C::kIsPart) {
        if (gridDim.y > 1)
            exchange.begin();
    } else if constexpr (C::kWarps > 1)
        exchange.clear();
    wait_for_previous();
    const only_row<C> row(args);
    const T *residual = static_cast<const T *>(args.grad_residual);
    uint4 before[C::kVectors] = {};
    if (residual && C::kAligned)
        row.load(residual + row.row * args.grad_residual_pitch, args.grad_residual_end, before);
    const int lane = C::kIsPart ? (int)threadIdx.x : row.column(0) / C::kVec;
    const row_in_memory<C> again{args, row.row, lane, (int)blockDim.x, nullptr};
    const row_factors of = find_factors<C>(row, again, exchange, 0);
    store_scale(args, row.row, of);
    if (residual && !C::kAligned) // there are no registers for it before
        row.load(residual + row.row * args.grad_residual_pitch, args.grad_residual_end, before);
    T *to = static_cast<T *>(args.grad_x) + row.row * args.grad_x_pitch;
    row.for_each([&](int v, int column, int n, auto &x, auto &g, auto &w) {
        float made[C::kVec];
        unpack<T>(before[v], made);
        descend<C>(of, x, g, w, made);
        row.store(to, v, made);
        if (!args.scales)
            store_products<C>(args, column, n, x, g);
    });
}

// The same of rows of any width, at any address: a vector of a thread at a time. A row waits in
// shared memory, or is read again for each sum. Of a block of several rows, the columns' sums are
// added in memory: a thread has the same columns of each.
template <typename C>
static __global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    any_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    extern __shared__ uint4 memory[]; // the row, then sums
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    if constexpr (C::kIsPart)
        exchange.begin();
    wait_for_previous();
    const T *residual = static_cast<const T *>(args.grad_residual);
    float *all = args.partial + blockIdx.x * args.n_sums * args.sum_pitch;
    if (args.sums_in_shared)
        all = reinterpret_cast<float *>(memory + args.sums_behind);
    int64_t next = row_of_block(args);
    for (int turn = 0; turn == 0 || (!args.scales && next < args.n_rows); turn++) {
        const row_in_memory<C> row{
            args, next, C::kIsPart ? share_of_part(args, C::kVec) : (int)threadIdx.x,
            C::kIsPart ? args.n_shares : (int)blockDim.x, args.n_staged ? memory : nullptr};
        const row_in_memory<C> again{args, next, (int)threadIdx.x, (int)blockDim.x,
                                     C::kIsPart ? nullptr : row.staged};
        next += gridDim.x;
        const bool is_last = next >= args.n_rows;
        const bool comes_next = C::kAligned && args.n_staged && !args.scales && !is_last;
        if (C::kAligned && turn > 0) {
            wait_for_stage(1); // a thread reads what it has copied
        } else if (args.n_staged) {
            if (turn > 0)
                __syncthreads(); // nobody needs the row before
            row.fetch();
        }
        const row_factors of = find_factors<C>(row, again, exchange, turn % 2);
        store_scale(args, row.row, of);
        T *to = static_cast<T *>(args.grad_x) + row.row * args.grad_x_pitch;
        row.for_each([&](int, int64_t column, int n, auto &x, auto &g, auto &w) {
            float made[C::kVec] = {};
            if (residual)
                unpack<T>(load_any<C>(residual + row.row * args.grad_residual_pitch + column, n,
                                      args.grad_residual_end),
                          made);
            descend<C>(of, x, g, w, made);
            put_vector<T, C::kAligned>(to + column, blockDim.x, threadIdx.x,
                                       C::kAligned ? n : args.hidden - column, made);
            if (comes_next)
                row.fetch_vector(next, column);
            if (args.scales || n <= 0)
                return;
            if (args.sum_place[0] >= 0)
                put_down_vector<C>(args, all, args.sum_place[0], column, turn == 0, is_last,
                                   [&](int i, float before) { return fmaf(g[i], x[i], before); });
            if (C::kCentres && args.sum_place[C::kSums - 1] >= 0)
                put_down_vector<C>(args, all, args.sum_place[C::kSums - 1], column, turn == 0,
                                   is_last, [&](int i, float before) { return before + g[i]; });
        });
        end_stage();
    }
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

// Vectors of some rows of a segment, at a column; the first one where there are no more.
template <typename C>
__device__ __forceinline__ void load_columns(const norm_gradient_args &args, int64_t begin, int row,
                                             int n_rows, int column, uint4 (&x)[kRowBatch],
                                             uint4 (&g)[kRowBatch], uint4 (&scale)[kRowBatch])
{
    constexpr int kSize = (int)sizeof(typename C::T);
    const int n = min((int)args.hidden - column, C::kVec);
    shifted_vector<kSize> of_x[kRowBatch], of_g[kRowBatch];
#pragma unroll
    for (int i = 0; i < kRowBatch; i++) {
        const int64_t at = begin + (row + i * kRowLanes < n_rows ? row + i * kRowLanes : row);
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
// block's segment. kCuts: there are several, of which this launch has those from first_segment on.
// A call of few rows would wait for their instructions.
template <typename C, bool kCuts>
static __global__ void __launch_bounds__(kColumnLanes *kRowLanes, 2)
    columns_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    constexpr int kWarps = kColumnLanes * kRowLanes / 32, kOfBlock = kColumnLanes * C::kVec;
    constexpr int kOfSegment = C::kSums * kOfBlock;
    __shared__ float shared[C::kSums][kWarps][kOfBlock];
    let_next_start();
    const int lane = threadIdx.x % kColumnLanes, first = threadIdx.x / kColumnLanes;
    const int column = ((int)blockIdx.x * kColumnLanes + lane) * C::kVec;
    const int segment = kCuts ? args.first_segment + (int)blockIdx.y : 0;
    const int64_t begin = kCuts ? segment * args.rows_of_segment : 0;
    const int n_rows = (int)(kCuts ? min(args.n_rows - begin, args.rows_of_segment) : args.n_rows);
    float sums[C::kSums][C::kVec] = {};
    wait_for_previous();
    for (int row = first; row < n_rows; row += kRowLanes * kRowBatch) {
        uint4 x[kRowBatch], g[kRowBatch], scale[kRowBatch];
        load_columns<C>(args, begin, row, n_rows, column, x, g, scale);
#pragma unroll
        for (int i = 0; i < kRowBatch; i++)
            if (row + i * kRowLanes < n_rows)
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
        float *partial =
            args.partial + (int64_t)blockIdx.x * args.n_partial * kOfSegment + threadIdx.x;
        if (has_sum)
            partial[segment * kOfSegment] = (float)sum;
        if (!comes_last(args.counter + blockIdx.x, args.n_partial))
            return;
        if (has_sum)
            sum = add_segments(partial, args.n_partial, kOfSegment);
    }
    if (has_sum)
        store_as(args.sum_dtype, args.sum_to[args.sum_place[s]], result, (float)sum);
}

// The same of few rows, by single elements, bit for bit: a lane has a column, and a warp four of
// every kRowLanes rows, whose sums it adds as lanes that have a vector each exchange them. Nothing
// is shifted, and all loads begin at once.
template <typename C>
static __global__ void __launch_bounds__(kColumnLanes *kRowLanes, 1)
    element_columns_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    constexpr int kEach = 4, kWarps = kRowLanes / kEach;
    __shared__ float shared[C::kSums][kWarps][32];
    let_next_start();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int n_warps = (int)blockDim.x / 32, n_rows = (int)args.n_rows;
    const int column = (int)blockIdx.x * 32 + lane;
    const bool is_there = column < (int)args.hidden;
    float sums[C::kSums][kEach] = {};
    wait_for_previous();
    for (int first = warp * kEach; first < n_rows; first += kRowLanes) {
        T x[kEach] = {}, g[kEach] = {};
        uint4 scale[kEach];
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            const int row = min(first + i, n_rows - 1);
            const gradient_row<C> of(args, row);
            if (is_there) {
                x[i] = load_one(of.x + column);
                g[i] = load_one(of.g + column);
            }
            scale[i] = load_16(args.scales + row);
        }
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            const float of_g = element<T>::to_float(g[i]);
            const float normal =
                rounded<C>(normal_of<C>(element<T>::to_float(x[i]), __uint_as_float(scale[i].x),
                                        __uint_as_float(scale[i].y), __uint_as_float(scale[i].z)));
            if (first + i < n_rows) {
                sums[0][i] = fmaf(of_g, normal, sums[0][i]);
                if constexpr (C::kCentres)
                    sums[1][i] += of_g;
            }
        }
    }
#pragma unroll
    for (int s = 0; s < C::kSums; s++)
        shared[s][warp][lane] = (sums[s][0] + sums[s][2]) + (sums[s][1] + sums[s][3]);
    __syncthreads();
    for (int s = warp; s < C::kSums; s += n_warps) {
        double sum = 0.0;
        for (int i = 0; i < n_warps; i++)
            sum += (double)shared[s][i][lane];
        if (is_there && args.sum_place[s] >= 0)
            store_as(args.sum_dtype, args.sum_to[args.sum_place[s]], column, (float)sum);
    }
}

// ------------------------------------------------------------------------------------ launch

// Are columns added up by single elements (element_columns_kernel)? Of few rows, and few elements.
template <typename T>
static bool has_element_columns(const struct norm_gradient_args &args)
{
    return args.n_rows > 0 && args.n_rows <= 2 * kRowLanes &&
           args.n_rows * args.hidden <= 1 << 17 && (sizeof(T) == 2 || args.hidden <= 4096);
}

// Rows of a launch: as many as the room for what is left of them, 16 bytes, has.
constexpr int64_t kMostRows = (ROPED_CUDA_SCRATCH_BYTES - (4 << 20)) / (int64_t)sizeof(float4);

// How columns are cut. Where a thread would take more than two batches of rows, there is room for
// more blocks: each takes a segment of the rows, and the last one adds what they have. Columns that
// fill the device without that are cut so that no part of it waits for the last blocks.
static inline void cut_columns(struct norm_gradient_args *args, int64_t n_blocks)
{
    constexpr int64_t kBatch = kRowLanes * kRowBatch;
    const int64_t n_rows = args->n_rows, batches = blocks_of(n_rows, kBatch);
    const int64_t most = 8 * kMultiprocessors / n_blocks, least = blocks_of(n_rows, kMostRows);
    int64_t n = batches <= 2 || most <= 1 ? 1 : batches < most ? batches : most;
    n = n < least ? least : n;
    args->rows_of_segment = batches ? blocks_of(batches, n) * kBatch : kBatch;
    args->n_partial = n_rows ? (int32_t)blocks_of(n_rows, args->rows_of_segment) : 1;
}

// A block of so many threads for each row, which adds nothing to sums unless it is the only one.
static inline enum roped_status start_rows(kernel_fn<struct norm_gradient_args> *kernel,
                                           const struct norm_gradient_args &args, int64_t n_rows,
                                           int64_t threads, int64_t shared_bytes,
                                           struct roped_queue *queue, struct roped_error *err)
{
    return n_rows <= 0
               ? ROPED_OK
               : start(queue, kernel, dim3((unsigned)threads), n_rows,
                       dim3(1, (unsigned)args.n_parts), args, err, shared_bytes, args.n_parts > 1);
}

// The same, and what adds up the columns: of as many segments at once as there is room for.
template <typename C>
static enum roped_status start_apart(kernel_fn<struct norm_gradient_args> *kernel,
                                     struct norm_gradient_args args, int64_t threads,
                                     int64_t shared_bytes, struct roped_queue *queue,
                                     struct roped_error *err)
{
    using Columns =
        gradient_config<typename C::T, C::kCentres, C::kRounds, C::kAligned, 32, 1, true>;
    if (!args.n_sums || args.n_rows == 1)
        return start_rows(kernel, args, args.n_rows, threads, shared_bytes, queue, err);
    const int64_t n_blocks = blocks_of(args.sum_pitch, kColumnLanes * C::kVec);
    cut_columns(&args, n_blocks);
    const bool is_cut = args.n_partial > 1;
    const int64_t of_launch = kMostRows / args.rows_of_segment, n_segments = args.n_partial;
    const int64_t n_scales = args.n_rows < kMostRows ? args.n_rows : kMostRows;
    const int64_t n_sums = is_cut * n_segments * n_blocks * kColumnLanes * C::kVec * C::kSums;
    float *room;
    enum roped_status status = roped_cuda_scratch(queue, (4 * n_scales + n_sums) * 4,
                                                  is_cut * n_blocks, &room, &args.counter, err);
    args.partial = room + 4 * n_scales;
    for (int64_t i = 0; !status && i < n_segments; i += of_launch) {
        const int64_t n = n_segments - i < of_launch ? n_segments - i : of_launch;
        args.first_segment = (int32_t)i;
        args.first_row = i * args.rows_of_segment;
        args.scales = reinterpret_cast<float4 *>(room) - args.first_row;
        const int64_t left = args.n_rows - args.first_row, whole = n * args.rows_of_segment;
        status = start_rows(kernel, args, left < whole ? left : whole, threads, shared_bytes, queue,
                            err);
        if (!status && !is_cut && has_element_columns<typename C::T>(args)) {
            using E = gradient_config<typename C::T, C::kCentres, C::kRounds, false, 32, 1, true>;
            const int64_t warps = blocks_of(args.n_rows < kRowLanes ? args.n_rows : kRowLanes, 4);
            status = start(queue, element_columns_kernel<E>, dim3(32 * (unsigned)warps),
                           blocks_of(args.hidden, 32), dim3(1), args, err);
        } else if (!status)
            status = start(
                queue, is_cut ? columns_kernel<Columns, true> : columns_kernel<Columns, false>,
                dim3(kColumnLanes * kRowLanes), n_blocks, dim3(1, (unsigned)n), args, err);
    }
    return status;
}

template <typename C>
static enum roped_status start_only(const struct norm_gradient_args &args, int64_t threads,
                                    struct roped_queue *queue, struct roped_error *err)
{
    return start_apart<C>(only_norm_gradient_kernel<C>, args, threads, 0, queue, err);
}
