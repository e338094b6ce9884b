// binary_sweep.cuh - both gradients of a binary function in one pass, where one operand is full and
// the other broadcast, and up to four dims are left.
//
// The collapsed shape is of one of two forms, by its innermost dim:
//
//     columns   [outer sum, kept, rows, columns]   a step is a row of the columns
//     rows      [kept, outer sum, kept, row]       a step is a part of a row, a packet per lane
//
// A block's threads are lanes (over the innermost dim) x step lanes x kept lanes. The steps of a
// kept element are n_inner of them side by side (rows; parts of a row), outer sum times. A thread
// takes every n-th, n the number of step lanes: it reads a packet of grad_output and of the full
// operand, writes the full gradient and adds the terms of the other in registers. Where blocks
// would be too few, steps are cut into segments (blockIdx.y) with partial sums of their own.
#pragma once

#include "cuda/binary_sums.cuh"
#include "cuda/device/binary.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"

constexpr int kSweepThreads = 256;
constexpr int kSweepUnroll = 4; // steps per iteration: eight loads of 16 bytes in flight

struct sweep_args {
    const void *g;
    const void *full; // operand whose gradient is written element by element
    const void *sum;  // operand whose gradient is summed
    void *grad_full;
    void *grad_sum; // T, or
    float *partial; // [segments][n_sums]
    struct sweep_signs sign;

    int32_t lane_bits, step_bits; // lanes and step lanes are powers of two
    uint32_t n_blocks_across;     // columns: blocks over the innermost dim
    int64_t width;                // elements of the innermost dim
    int64_t n_kept;               // elements of the kept dims further out
    int64_t n_kept_inner;         // rows: kept = outer kept * n_kept_inner + inner kept
    int64_t kept_stride;          // elements of grad_output to the next kept one,
    int64_t kept_outer_stride;    // and more where inner kept ends
    int64_t n_sums;

    int64_t n_steps;
    int64_t steps_per_segment;          // a multiple of step lanes * kSweepUnroll
    int64_t n_inner;                    // steps of a run
    int64_t inner_stride, outer_stride; // elements to the next step, the next run
    int64_t run;                        // elements of a run
    int64_t advance;                    // what the thread's next step adds to its element,
    int64_t advance_run;                // and to its place in the run;
    int64_t wrap;                       // what the element gains on top where the run has ended
};

// ------------------------------------------------------------------------------------ places

struct sweep_place {
    int lane, step_lane;
    int64_t column; // of the thread's packet in the innermost dim, at the first step of a run
    int64_t first;  // element of grad_output at step 0
    int64_t sum;    // element of the summed gradient, the first of columns
    bool is_inside;
};

template <int kVec, bool kIsColumns>
__device__ __forceinline__ sweep_place place_of(const sweep_args &args)
{
    sweep_place place;
    int thread = threadIdx.x;
    uint32_t kept_block = blockIdx.x;
    place.lane = thread & ((1 << args.lane_bits) - 1);
    place.step_lane = (thread >> args.lane_bits) & ((1 << args.step_bits) - 1);
    place.column = place.lane * kVec;
    if constexpr (kIsColumns) {
        kept_block = blockIdx.x / args.n_blocks_across;
        uint32_t across = blockIdx.x - kept_block * args.n_blocks_across;
        place.column += (int64_t)across * (kVec << args.lane_bits);
    }
    int64_t kept =
        ((int64_t)kept_block * kSweepThreads + thread) >> (args.lane_bits + args.step_bits);
    place.is_inside = kept < args.n_kept && (!kIsColumns || place.column < args.width);
    place.first = kept * args.kept_stride + place.column;
    place.sum = kept;
    if constexpr (kIsColumns)
        place.sum = kept * args.width + place.column;
    else if (args.n_kept_inner < args.n_kept)
        place.first += kept / args.n_kept_inner * args.kept_outer_stride;
    return place;
}

// A thread's way through its steps.
struct sweep_walk {
    int64_t at;     // element of grad_output
    int64_t in_run; // of which from the start of the run
    int32_t n_left; // steps: a call whose threads took 2^31 each would not fit any memory
};

__device__ __forceinline__ sweep_walk walk_of(const sweep_args &args, const sweep_place &place)
{
    sweep_walk walk;
    int64_t begin = blockIdx.y * args.steps_per_segment;
    int64_t end = min(begin + args.steps_per_segment, args.n_steps);
    int64_t step = begin + place.step_lane;
    int64_t outer = args.n_inner < args.n_steps ? step / args.n_inner : 0;
    walk.in_run = (step - outer * args.n_inner) * args.inner_stride;
    walk.at = place.first + outer * args.outer_stride + walk.in_run;
    walk.n_left = 0;
    if (place.is_inside && step < end)
        walk.n_left = (int32_t)((end - step - 1) >> args.step_bits) + 1;
    return walk;
}

__device__ __forceinline__ void advance(const sweep_args &args, sweep_walk &walk)
{
    walk.at += args.advance;
    walk.in_run += args.advance_run;
    if (walk.in_run >= args.run) {
        walk.in_run -= args.run;
        walk.at += args.wrap;
    }
}

// ------------------------------------------------------------------------------------ terms

// The summed operand's values: one for each column of the packet, or one for the row.
template <typename T, int kVec, int kKind, int kSums>
__device__ __forceinline__ void load_sum_operand(const sweep_args &args, const sweep_place &place,
                                                 float (&y)[kSums])
{
    const T *from = static_cast<const T *>(args.sum) + place.sum;
    if (kKind == kSweepLinear || !place.is_inside)
        return;
    if constexpr (kSums == kVec)
        packet<T, kVec>::widen(packet<T, kVec>::load(from), y);
    else
        y[0] = element<T>::to_float(*from);
}

// Adds what one iteration summed: columns each to its own, all of a row to one.
template <int kVec, int kSums>
__device__ __forceinline__ void add_iteration(float (&term)[kVec], double (&sum)[kSums])
{
    static_assert(kSums == kVec || kSums == 1, "columns or a row");
    if constexpr (kSums < kVec) {
#pragma unroll
        for (int half = kVec / 2; half > 0; half /= 2)
#pragma unroll
            for (int j = 0; j < half; j++)
                term[j] += term[j + half];
    }
#pragma unroll
    for (int j = 0; j < kSums; j++)
        sum[j] += (double)term[j];
}

template <typename T, int kVec, int kKind, bool kIsColumns, int kSums>
__device__ __forceinline__ void sweep_steps(const sweep_args &args, const sweep_place &place,
                                            sweep_walk walk, double (&sum)[kSums])
{
    using pack_of = packet<T, kVec>;
    const T *g = static_cast<const T *>(args.g), *x = static_cast<const T *>(args.full);
    T *out = static_cast<T *>(args.grad_full);
    float y[kSums] = {};
    load_sum_operand<T, kVec, kKind>(args, place, y);
    for (; walk.n_left > 0; walk.n_left -= kSweepUnroll) {
        typename pack_of::raw raw_g[kSweepUnroll], raw_x[kSweepUnroll];
        int64_t at[kSweepUnroll]; // negative: no step
        float terms[kVec] = {};
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            bool has_work = i < walk.n_left;
            if constexpr (!kIsColumns) // the last part of a row may be shorter
                has_work = has_work && walk.in_run + place.column < args.width;
            at[i] = has_work ? walk.at : -1;
            if (has_work) {
                raw_g[i] = pack_of::load(g + walk.at);
                if constexpr (kKind != kSweepLinear)
                    raw_x[i] = pack_of::load(x + walk.at);
            }
            advance(args, walk);
        }
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            float of_g[kVec], of_x[kVec] = {}, of_full[kVec];
            if (at[i] < 0)
                continue;
            pack_of::widen(raw_g[i], of_g);
            if constexpr (kKind != kSweepLinear)
                pack_of::widen(raw_x[i], of_x);
#pragma unroll
            for (int j = 0; j < kVec; j++) {
                float of_y = y[kSums == kVec ? j : 0];
                of_full[j] = full_term<kKind>(of_g[j], of_x[j], of_y, args.sign);
                terms[j] += sum_term<kKind>(of_g[j], of_x[j], of_y, args.sign);
            }
            pack_of::store(out + at[i], of_full);
        }
        add_iteration(terms, sum);
    }
}

// ------------------------------------------------------------------------------------ sums

// Sums of columns over the step lanes, by a tree: across warps in shared memory, inside them by
// exchanges. Step lane 0 gets them.
template <int kVec>
__device__ __forceinline__ void add_step_lanes(const sweep_args &args, double (&sum)[kVec])
{
    __shared__ double shared[kVec][kSweepThreads];
    int lanes = 1 << args.lane_bits, across = lanes << args.step_bits;
    int distance = across / 2, place = threadIdx.x & (across - 1);
    if (distance >= 32) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            shared[j][threadIdx.x] = sum[j];
    }
    for (; distance >= lanes && distance >= 32; distance /= 2) {
        __syncthreads();
        if (place < distance) {
#pragma unroll
            for (int j = 0; j < kVec; j++)
                shared[j][threadIdx.x] = sum[j] += shared[j][threadIdx.x + distance];
        }
    }
    for (; distance >= lanes; distance /= 2) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            sum[j] += __shfl_xor_sync(0xFFFFFFFFu, sum[j], distance);
    }
}

// The sum of a row over all threads of its kept lane: the first of them gets it.
__device__ __forceinline__ double add_row_lanes(const sweep_args &args, double sum)
{
    __shared__ double shared[kSweepThreads / 32];
    int across = 1 << (args.lane_bits + args.step_bits), warp = threadIdx.x / 32;
    for (int distance = min(across, 32) / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    if (across <= 32)
        return sum;
    if (threadIdx.x % 32 == 0)
        shared[warp] = sum;
    __syncthreads();
    if ((threadIdx.x & (across - 1)) == 0)
        for (int i = 1; i < across / 32; i++)
            sum += shared[warp + i];
    return sum;
}

template <typename T, int kVec>
__device__ __forceinline__ void write_sums(const sweep_args &args, const sweep_place &place,
                                           const double (&sum)[kVec])
{
    float value[kVec];
#pragma unroll
    for (int j = 0; j < kVec; j++)
        value[j] = (float)sum[j];
    if (!args.partial) {
        packet<T, kVec>::store(static_cast<T *>(args.grad_sum) + place.sum, value);
        return;
    }
    float *to = args.partial + blockIdx.y * args.n_sums + place.sum;
#pragma unroll
    for (int j = 0; j < kVec; j++)
        to[j] = value[j];
}

template <typename T, int kVec, int kKind, bool kIsColumns>
__global__ void __launch_bounds__(kSweepThreads)
    sweep_kernel(const __grid_constant__ struct sweep_args args)
{
    let_next_start();
    sweep_place place = place_of<kVec, kIsColumns>(args);
    sweep_walk walk = walk_of(args, place);
    finish_before_wait(static_cast<const T *>(args.g) + walk.at, walk.n_left);
    wait_for_previous();
    if constexpr (kIsColumns) {
        double sum[kVec] = {};
        sweep_steps<T, kVec, kKind, kIsColumns>(args, place, walk, sum);
        if (args.step_bits > 0)
            add_step_lanes<kVec>(args, sum);
        if (place.step_lane == 0 && place.is_inside)
            write_sums<T, kVec>(args, place, sum);
    } else {
        double sum[1] = {};
        sweep_steps<T, kVec, kKind, kIsColumns>(args, place, walk, sum);
        sum[0] = add_row_lanes(args, sum[0]);
        if (place.lane == 0 && place.step_lane == 0 && place.is_inside)
            write_sums<T, 1>(args, place, sum);
    }
}

// ------------------------------------------------------------------------------------ host

// Size of the i-th dim from the innermost, 1 beyond the outermost.
static inline int64_t inner_dim(const struct binary_plan *plan, int i)
{
    return i < plan->rank ? plan->dim[plan->rank - 1 - i].size : 1;
}

static inline bool sums_columns(const struct binary_plan *plan, int32_t sum_side)
{
    return plan->dim[plan->rank - 1].in & sum_side;
}

// How the threads and blocks of a sweep are laid out.
struct sweep_layout {
    int lanes, step_lanes;   // powers of two; what is left of a block are kept lanes
    int64_t n_blocks_across; // over the innermost dim
};

// As many step lanes as there are steps; where kept elements alone make blocks enough, four steps
// for each: those of one iteration.
static inline int choose_step_lanes(int64_t n_steps, int64_t n_kept_threads, int most)
{
    bool is_much = n_kept_threads >= kWantedBlocks * kSweepThreads;
    return power_of_two(is_much ? ceil_div(n_steps, kSweepUnroll) : n_steps, most);
}

// [outer sum, kept, rows, columns]. A block covers up to 32 packets of the columns (512 bytes of
// each row) and as many rows as it has threads left: few partial sums for many blocks. f32 16384 x
// 4096 beside a b of 4096: 4,096 blocks of 128 rows read 2 x 268 MB, write 268 MB and 2 MB of
// partial sums. Where that would be less than two blocks per multiprocessor, 8 packets: 128 bytes.
static inline struct sweep_layout lay_out_columns(struct sweep_args *args,
                                                  const struct binary_plan *plan, int vec)
{
    struct sweep_layout layout;
    int64_t columns = inner_dim(plan, 0), rows = inner_dim(plan, 1);
    args->width = columns;
    args->n_kept = args->n_kept_inner = inner_dim(plan, 2);
    args->kept_stride = rows * columns;
    args->n_sums = args->n_kept * columns;
    args->n_inner = rows;
    args->n_steps = rows * inner_dim(plan, 3);
    args->inner_stride = columns;
    args->outer_stride = args->n_kept * args->kept_stride;
    int64_t n_packets = ceil_div(columns, vec);
    int64_t n_blocks = ceil_div(n_packets, 32) * args->n_kept * ceil_div(args->n_steps, 64);
    layout.lanes = power_of_two(n_packets, n_blocks < kWantedBlocks / 16 ? 8 : 32);
    layout.n_blocks_across = ceil_div(columns, (int64_t)layout.lanes * vec);
    layout.step_lanes =
        choose_step_lanes(args->n_steps, args->n_sums / vec, kSweepThreads / layout.lanes);
    return layout;
}

// Lanes along a row of so many packets: four packets for each lane, as an iteration takes them,
// unless outer steps bring as many; but 128 bytes side by side where the row has them.
static inline int choose_row_lanes(int64_t packets, int64_t outer)
{
    int64_t wanted = outer >= kSweepUnroll ? packets : ceil_div(packets, kSweepUnroll);
    return power_of_two(wanted < 8 ? (packets < 8 ? packets : 8) : wanted, 32);
}

// [kept, outer sum, kept, row]. A warp lies along a row, or a part of one where rows are short.
// Rows share a block where there are more than enough of them; else its warps share a row. f32
// 16384 rows of 4096: 4,096 blocks of 4 rows, 2 warps each, read 2 x 268 MB and write 268 MB; a
// scalar b is one row: 4,096 blocks of 8 warps, 16 KB of partial sums.
static inline struct sweep_layout lay_out_rows(struct sweep_args *args,
                                               const struct binary_plan *plan, int vec)
{
    struct sweep_layout layout;
    int64_t width = inner_dim(plan, 0), outer = inner_dim(plan, 2);
    layout.lanes = choose_row_lanes(ceil_div(width, vec), outer);
    layout.n_blocks_across = 1;
    args->width = width;
    args->n_kept_inner = inner_dim(plan, 1);
    args->n_kept = args->n_kept_inner * inner_dim(plan, 3);
    args->kept_stride = width;
    args->n_sums = args->n_kept;
    args->inner_stride = (int64_t)layout.lanes * vec;
    args->n_inner = ceil_div(width, args->inner_stride);
    args->n_steps = args->n_inner * outer;
    args->outer_stride = args->n_kept_inner * width;
    args->kept_outer_stride = (outer - 1) * args->outer_stride;
    int most = kSweepThreads / layout.lanes;
    int kept_lanes = power_of_two(ceil_div(args->n_kept, kWantedBlocks), most);
    layout.step_lanes =
        choose_step_lanes(args->n_steps, args->n_kept * layout.lanes, most / kept_lanes);
    return layout;
}

static inline int bits_of(int power)
{
    int bits = 0;
    while (1 << bits < power)
        bits++;
    return bits;
}

// Cuts the steps into segments; grid->y is their number, grid->x the result.
static inline int64_t cut_segments(struct sweep_args *args, const struct sweep_layout *layout,
                                   dim3 *grid)
{
    int64_t kept_lanes = kSweepThreads / (layout->lanes * layout->step_lanes);
    int64_t n_blocks = layout->n_blocks_across * ceil_div(args->n_kept, kept_lanes);
    int64_t runs = layout->step_lanes / args->n_inner, steps = layout->step_lanes % args->n_inner;
    args->lane_bits = bits_of(layout->lanes);
    args->step_bits = bits_of(layout->step_lanes);
    args->n_blocks_across = (uint32_t)layout->n_blocks_across;
    args->steps_per_segment =
        segment_steps(args->n_steps, n_blocks, (int64_t)layout->step_lanes * kSweepUnroll);
    args->run = args->n_inner * args->inner_stride;
    args->advance_run = steps * args->inner_stride;
    args->advance = runs * args->outer_stride + args->advance_run;
    args->wrap = args->outer_stride - args->run;
    grid->y = (unsigned)ceil_div(args->n_steps, args->steps_per_segment);
    return n_blocks;
}

template <typename T, int kVec, bool kIsColumns>
static kernel_fn<sweep_args> *sweep_kernel_of(int function, bool sums_divisor)
{
    if (function == BINARY_MUL)
        return sweep_kernel<T, kVec, kSweepMul, kIsColumns>;
    if (function == BINARY_DIV && sums_divisor)
        return sweep_kernel<T, kVec, kSweepOverSum, kIsColumns>;
    if (function == BINARY_DIV)
        return sweep_kernel<T, kVec, kSweepOverFull, kIsColumns>;
    return sweep_kernel<T, kVec, kSweepLinear, kIsColumns>;
}

template <typename T, int kVec>
static enum roped_status start_sweep(struct sweep_args *args, const struct binary_plan *plan,
                                     int32_t sum_side, struct roped_queue *queue,
                                     struct roped_error *err)
{
    bool is_columns = sums_columns(plan, sum_side), sums_divisor = sum_side == BINARY_IN_B;
    struct sweep_layout layout =
        is_columns ? lay_out_columns(args, plan, kVec) : lay_out_rows(args, plan, kVec);
    dim3 grid;
    int64_t n_blocks = cut_segments(args, &layout, &grid), n_segments = grid.y;
    kernel_fn<sweep_args> *kernel =
        is_columns ? sweep_kernel_of<T, kVec, true>(plan->function, sums_divisor)
                   : sweep_kernel_of<T, kVec, false>(plan->function, sums_divisor);
    enum roped_status status = ROPED_OK;
    if (n_segments > 1)
        status = roped_cuda_scratch(queue, n_segments * args->n_sums * (int64_t)sizeof(float),
                                    &args->partial, err);
    if (!status)
        status = start(queue, kernel, dim3(kSweepThreads), n_blocks, grid, *args, err);
    if (!status && n_segments > 1)
        status =
            finish_sums<T>(args->partial, args->grad_sum, args->n_sums, n_segments, queue, err);
    return status;
}

template <typename T>
static enum roped_status launch_sweep(const struct roped_call *call, int32_t sum_side,
                                      struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool sums_a = sum_side == BINARY_IN_A, has_values = binary_needs_values(plan->function);
    float sign_b = plan->function == BINARY_SUB ? -1.0f : 1.0f;
    struct sweep_args args = {};
    args.g = call->in[BINARY_GRAD_OUTPUT].data;
    args.full = has_values ? call->in[sums_a ? BINARY_B : BINARY_A].data : NULL;
    args.sum = has_values ? call->in[sums_a ? BINARY_A : BINARY_B].data : NULL;
    args.grad_full = call->out[sums_a ? BINARY_GRAD_B : BINARY_GRAD_A].data;
    args.grad_sum = call->out[sums_a ? BINARY_GRAD_A : BINARY_GRAD_B].data;
    args.sign.full = sums_a ? sign_b : 1.0f;
    args.sign.sum = sums_a ? 1.0f : sign_b;
    bool has_packets = inner_dim(plan, 0) % kVecOf<T> == 0 && is_aligned(args.g, 16) &&
                       is_aligned(args.full, 16) && is_aligned(args.grad_full, 16);
    if (sums_columns(plan, sum_side))
        has_packets = has_packets && is_aligned(args.sum, 16) && is_aligned(args.grad_sum, 16);
    return has_packets ? start_sweep<T, kVecOf<T>>(&args, plan, sum_side, queue, err)
                       : start_sweep<T, 1>(&args, plan, sum_side, queue, err);
}
