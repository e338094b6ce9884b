// binary_sums.cuh - how the threads of a gradient's sums are laid out, how a block adds what its
// threads have summed, and how the partial sums of several blocks are added.
//
// A block's threads are lanes (over the innermost dim, a packet each) x step lanes x kept lanes. An
// element of the gradient has n_steps terms, or packets of them; a thread takes every n-th step, n
// the number of step lanes. Where threads would be too few, steps are cut into segments
// (blockIdx.y) with partial sums of their own: out[i] = partial[0][i] + partial[1][i] + ... What a
// thread adds depends on the shape alone, and so do the bits.
#pragma once

#include "cuda/device/binary.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

constexpr int kSumThreads = 256;

struct sum_args {
    const void *g;
    const void *x;     // the operand whose gradient is not summed here
    const void *y;     // the operand whose gradient is
    void *grad_y;      // T, or
    float *partial;    // [blocks x][segments][sums of a block]
    uint32_t *counter; // [blocks x]: how many segments are there
    struct binary_signs sign;
    int32_t kind; // enum binary_kind

    int32_t y_is_packed;          // bool: 16 bytes of y and grad_y in one access
    int32_t lane_bits, step_bits; // lanes and step lanes are powers of two
    int64_t n_across;             // how many times the lanes of columns cover the innermost dim
    int64_t width;                // elements of the innermost dim
    int64_t n_kept;               // elements of the kept dims further out
    int64_t n_inner;              // steps side by side: parts of a row, or summed rows
    int64_t n_steps;
    int64_t steps_per_segment; // a multiple of step lanes
};

// ------------------------------------------------------------------------------------ places

struct sum_place {
    int lane, step_lane;
    int64_t column;    // of the thread's packet in the innermost dim, at step 0
    int64_t kept;      // index over the kept dims further out
    int64_t sum;       // element of the gradient, the first of columns
    int64_t step, end; // the first step, and that behind the segment
    bool is_inside;
};

template <int kVec, bool kIsColumns>
__device__ __forceinline__ sum_place place_of(const sum_args &args)
{
    sum_place place;
    int thread = threadIdx.x;
    place.lane = thread & ((1 << args.lane_bits) - 1);
    place.step_lane = (thread >> args.lane_bits) & ((1 << args.step_bits) - 1);
    place.column = place.lane * kVec;
    place.kept = ((int64_t)blockIdx.x * kSumThreads + thread) >> (args.lane_bits + args.step_bits);
    if constexpr (kIsColumns) {
        int64_t across = place.kept;
        place.kept = args.n_across == 1               ? across
                     : args.n_kept == 1               ? 0
                     : (across | args.n_across) >> 32 ? across / args.n_across
                                                      : (uint32_t)across / (uint32_t)args.n_across;
        across -= place.kept * args.n_across;
        place.column += across * (kVec << args.lane_bits);
    }
    place.is_inside = place.kept < args.n_kept && (!kIsColumns || place.column < args.width);
    place.sum = kIsColumns ? place.kept * args.width + place.column : place.kept;
    int64_t begin = blockIdx.y * args.steps_per_segment;
    place.end = min(begin + args.steps_per_segment, args.n_steps);
    place.step = begin + place.step_lane;
    return place;
}

// ------------------------------------------------------------------------------------ values

// y: one value for each column of the packet, or one for the row.
template <typename T, int kSums>
__device__ __forceinline__ void load_y(const sum_args &args, const sum_place &place,
                                       float (&y)[kSums])
{
    const T *from = static_cast<const T *>(args.y) + place.sum;
    if (args.kind == kBinaryLinear || !place.is_inside)
        return;
    if constexpr (kSums > 1) {
        if (args.y_is_packed) {
            packet<T, kSums>::widen(packet<T, kSums>::load(from), y);
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < kSums; j++)
        y[j] = element<T>::to_float(from[j]);
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

// ------------------------------------------------------------------------------------ sums

// Sums of columns over the step lanes, by a tree: across warps in shared memory, inside them by
// exchanges. Step lane 0 gets them.
template <int kVec>
__device__ __forceinline__ void add_step_lanes(const sum_args &args, double (&sum)[kVec],
                                               double (&shared)[kVec][kSumThreads])
{
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
__device__ __forceinline__ double add_row_lanes(const sum_args &args, double sum)
{
    __shared__ double shared[kSumThreads / 32];
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

template <typename T, int kSums>
__device__ __forceinline__ void write_sums(const sum_args &args, const sum_place &place,
                                           const double (&sum)[kSums])
{
    T *to = static_cast<T *>(args.grad_y) + place.sum;
    float value[kSums];
#pragma unroll
    for (int j = 0; j < kSums; j++)
        value[j] = (float)sum[j];
    if constexpr (kSums > 1) {
        if (args.y_is_packed) {
            packet<T, kSums>::store(to, value);
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < kSums; j++)
        to[j] = element<T>::from_float(value[j]);
}

// ------------------------------------------------------------------------------------ segments

// A block of a segment has one kept lane, whose partial sums it leaves side by side. Is it the last
// block of those that have the same sums? The others' are visible then, and the counter is 0 again.
template <int kSums, bool kIsColumns>
__device__ __forceinline__ bool comes_last(const sum_args &args, const sum_place &place,
                                           const double (&sum)[kSums], bool is_first)
{
    __shared__ bool is_last;
    int n = kIsColumns ? kSums << args.lane_bits : 1;
    float *to = args.partial + ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * n;
    if (is_first) {
#pragma unroll
        for (int j = 0; j < kSums; j++)
            to[place.lane * kSums + j] = (float)sum[j];
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicInc(args.counter + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    return is_last;
}

// A packet of partial sums, or zeros where there is none. Past L1, which may have lines from before
// they were written.
template <int kSums>
__device__ __forceinline__ void load_partial(const float *from, bool is_one, float (&x)[kSums])
{
    constexpr int kEach = kSums > 1 ? 4 : 1;
#pragma unroll
    for (int j = 0; j < kSums; j += kEach) {
        if constexpr (kSums > 1) {
            float4 four = make_float4(0, 0, 0, 0);
            if (is_one)
                four = __ldcg(reinterpret_cast<const float4 *>(from + j));
            x[j] = four.x, x[j + 1] = four.y, x[j + 2] = four.z, x[j + 3] = four.w;
        } else {
            x[j] = is_one ? __ldcg(from) : 0.0f;
        }
    }
}

// Adds the partial sums of all segments, a packet of them per thread; the first of the threads of
// each packet get the results.
template <int kSums, bool kIsColumns>
__device__ __forceinline__ void add_segments(const sum_args &args, double (&sum)[kSums],
                                             double (&shared)[kSums][kSumThreads])
{
    int lanes = kIsColumns ? 1 << args.lane_bits : 1, step = kSumThreads / lanes;
    int lane = threadIdx.x & (lanes - 1), first = threadIdx.x / lanes, n_segments = gridDim.y;
    constexpr int kBatch = kSums > 1 ? 4 : 8; // loads in flight: a loop would wait for each
    const float *from = args.partial + (int64_t)blockIdx.x * gridDim.y * (lanes * kSums);
    __threadfence();
#pragma unroll
    for (int j = 0; j < kSums; j++)
        sum[j] = 0;
    for (int segment = first; segment < n_segments; segment += kBatch * step) {
        float part[kBatch][kSums];
#pragma unroll
        for (int i = 0; i < kBatch; i++) {
            int at = segment + i * step;
            load_partial(from + (at * lanes + lane) * kSums, at < n_segments, part[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; i++)
#pragma unroll
            for (int j = 0; j < kSums; j++)
                sum[j] += (double)part[i][j];
    }
#pragma unroll
    for (int j = 0; j < kSums; j++)
        shared[j][threadIdx.x] = sum[j];
    for (int half = step / 2; half > 0; half /= 2) {
        __syncthreads();
        if (first < half) {
#pragma unroll
            for (int j = 0; j < kSums; j++)
                shared[j][threadIdx.x] = sum[j] += shared[j][threadIdx.x + half * lanes];
        }
    }
}

// What a block's threads have summed, to where it belongs.
template <typename T, bool kIsColumns, int kSums>
__device__ __forceinline__ void finish_block(const sum_args &args, const sum_place &place,
                                             double (&sum)[kSums])
{
    __shared__ double shared[kSums][kSumThreads];
    bool is_first = place.step_lane == 0;
    if constexpr (kIsColumns) {
        if (args.step_bits > 0)
            add_step_lanes<kSums>(args, sum, shared);
    } else {
        sum[0] = add_row_lanes(args, sum[0]);
        is_first = is_first && place.lane == 0;
    }
    if (args.partial) {
        if (!comes_last<kSums, kIsColumns>(args, place, sum, is_first))
            return;
        add_segments<kSums, kIsColumns>(args, sum, shared);
    }
    if (is_first && place.is_inside)
        write_sums<T>(args, place, sum);
}

// ------------------------------------------------------------------------------------ layout

// A step each of so many threads keeps the memory busy: 32 KiB in flight for a multiprocessor.
constexpr int64_t kFillingThreads = kMultiprocessors * 1024;
// Beyond them a thread takes more steps, which cost less than more threads: two iterations.
constexpr int64_t kFewSteps = 8;
// Beyond so many blocks of these, which make the last ones to finish a small part of the work,
// more steps again.
constexpr int64_t kMostBlocks = kMultiprocessors * 32;
// Segments cost as much as this many steps more of every thread.
constexpr int64_t kStepsOfCut = 12;

static inline int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static inline int64_t clamp(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

// The smallest power of two that is not below n, at most most (a power of two).
static inline int power_of_two(int64_t n, int most)
{
    int power = 1;
    while (power < most && power < n)
        power *= 2;
    return power;
}

static inline int bits_of(int power)
{
    int bits = 0;
    while (1 << bits < power)
        bits++;
    return bits;
}

// Steps that a thread should take of a call of so many packets: two, whose loads are one wait, to
// kFewSteps, or more.
static inline int64_t steps_of_thread(int64_t n_packets)
{
    int64_t few = clamp(n_packets / kFillingThreads, 2, kFewSteps);
    return clamp(n_packets / (kMostBlocks * kSumThreads), few, n_packets);
}

// Lanes, step lanes and segments of sums that have been described by width, n_kept, n_inner (rows:
// not yet) and runs: how many times n_inner steps. Returns the number of blocks over kept elements,
// grid.y is that of segments.
//
// The steps that a thread should take say over how many threads the terms of a sum are spread.
// Columns have lanes for 128 bytes, or fewer where so many would idle and a warp has few rows; rows
// have up to 32. Step lanes are what the spread leaves, kept lanes what these leave of a block.
// Where a thread would take many more steps than it should although all of a block is step lanes,
// steps are cut into segments: of kFewSteps or more, but rows of a small call of one iteration.
template <int kVec>
static int64_t lay_out(struct sum_args *args, bool is_columns, int64_t runs, dim3 *grid)
{
    int64_t packets = ceil_div(args->width, kVec), n_sums = args->n_kept, n_terms = runs;
    n_sums *= is_columns ? packets : 1; // packets of sums, and of terms for each
    n_terms *= is_columns ? args->n_inner : packets;
    int64_t steps = steps_of_thread(n_sums * n_terms);
    int64_t of_cut = is_columns ? kFewSteps : clamp(2 * steps, 4, kFewSteps);
    int64_t spread = ceil_div(n_terms, steps);
    int narrow = power_of_two(packets, kVec > 1 ? 8 : 32);
    int lanes = is_columns ? narrow : power_of_two(spread, power_of_two(packets, 32));
    lanes = lanes < narrow ? narrow : lanes;
    while (is_columns && spread <= 4 && ceil_div(packets, lanes) * lanes > packets + packets / 8)
        lanes /= 2;
    if (!is_columns)
        args->n_inner = ceil_div(packets, lanes);
    args->n_steps = args->n_inner * runs;
    int step_lanes = power_of_two(ceil_div(args->n_steps, steps), kSumThreads / lanes);
    int64_t taken = ceil_div(args->n_steps, step_lanes), n_segments = 1;
    if (taken > clamp(2 * steps, kStepsOfCut, taken))
        n_segments = ceil_div(taken, clamp(steps, of_cut, taken));
    args->steps_per_segment = ceil_div(taken, n_segments) * step_lanes;
    args->lane_bits = bits_of(lanes);
    args->step_bits = bits_of(step_lanes);
    args->n_across = is_columns ? ceil_div(packets, lanes) : 1;
    grid->y = (unsigned)ceil_div(args->n_steps, args->steps_per_segment);
    return ceil_div(args->n_across * args->n_kept, kSumThreads / (lanes * step_lanes));
}

// Has the gradient an element for each of the innermost dim?
static inline bool keeps_columns(const struct binary_plan *plan, int32_t sum_side)
{
    return plan->rank == 0 || plan->dim[plan->rank - 1].in & sum_side;
}

static inline int kind_of(int function, int32_t sum_side)
{
    if (function == BINARY_MUL)
        return kBinaryMul;
    if (function == BINARY_DIV)
        return sum_side == BINARY_IN_B ? kBinaryOverY : kBinaryOverX;
    return kBinaryLinear;
}

// The tensors of a call, as seen by the gradient of one side.
static inline void name_tensors(const struct roped_call *call, int32_t sum_side,
                                struct sum_args *args)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool sums_a = sum_side == BINARY_IN_A;
    float sign_b = plan->function == BINARY_SUB ? -1.0f : 1.0f;
    args->g = call->in[BINARY_GRAD_OUTPUT].data;
    if (binary_needs_values(plan->function)) {
        args->x = call->in[sums_a ? BINARY_B : BINARY_A].data;
        args->y = call->in[sums_a ? BINARY_A : BINARY_B].data;
    }
    args->grad_y = call->out[sums_a ? BINARY_GRAD_A : BINARY_GRAD_B].data;
    args->sign.x = sums_a ? sign_b : 1.0f;
    args->sign.y = sums_a ? 1.0f : sign_b;
    args->kind = kind_of(plan->function, sum_side);
    args->y_is_packed = is_aligned(args->y, 16) && is_aligned(args->grad_y, 16);
}

// Launches a kernel whose Args have the sums.
template <int kVec, typename Args>
static enum roped_status start_sums(struct roped_queue *queue, kernel_fn<Args> *kernel,
                                    struct sum_args *sum, const Args &args, int64_t n_blocks,
                                    dim3 grid, bool is_columns, struct roped_error *err)
{
    if (grid.y > 1) {
        int64_t n_partial = n_blocks * grid.y * (is_columns ? kVec << sum->lane_bits : 1);
        enum roped_status status = roped_cuda_scratch(queue, n_partial * (int64_t)sizeof(float),
                                                      n_blocks, &sum->partial, &sum->counter, err);
        if (status)
            return status;
    }
    return start(queue, kernel, dim3(kSumThreads), n_blocks, grid, args, err);
}
