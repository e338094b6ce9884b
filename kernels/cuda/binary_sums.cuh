// binary_sums.cuh - what the kernels of a gradient's sums share: the dims of one gradient, the way
// of a thread through its terms, how a block adds what its threads have summed, and how the partial
// sums of several blocks are added.
//
// An element of the gradient has n_steps terms, or packets of them; a thread takes every n-th step,
// n the number of step lanes of its block. Where threads would be too few, steps are cut into
// segments with partial sums of their own: out[i] = partial[0][i] + partial[1][i] + ... What a
// thread adds depends on the shape alone, and so do the bits.
#pragma once

#include "cuda/device/binary.cuh"
#include "cuda/device/last_block.cuh"
#include "cuda/device/packet.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

constexpr int kSumThreads = 256;      // at most, of a block,
constexpr int kMostSumThreads = 1024; // but of one that divides single elements

// A dim that a gradient keeps, or one that it is summed over.
struct sum_dim {
    int64_t size;
    struct divisor_of_index by; // size, where is_small
    int64_t g, x;               // elements of grad_output and of x to the next index
};

struct sum_offsets {
    int64_t g, x;
};

struct sum_args {
    const void *g;
    const void *x; // the operand whose gradient is not summed here
    const void *y; // the operand whose gradient is
    void *grad_x;
    void *grad_y;
    int32_t has_values; // bool: else x and y are any tensor, and one instead
    struct binary_ones one;
    int32_t kind;     // enum binary_kind
    int32_t is_small; // bool: every index is below 2^31
    int32_t n_kept_dims, n_dims;
    int64_t n; // elements of grad_output
    int64_t n_kept;
    int64_t n_steps;
    uint32_t n_runs;                        // of n_steps each: a segment is of one
    int64_t steps_per_segment;              // a multiple of step lanes
    uint32_t n_segments;                    // of all runs
    float *partial;                         // [groups of sums][segments][sums of a group]
    uint32_t *counter;                      // [groups of sums]: how many segments are there
    struct sum_dim dim[ROPED_MAX_RANK + 1]; // kept ones first, the outermost first of either
    struct sum_offsets of_run;              // elements to the next run
};

// ------------------------------------------------------------------------------------ places

// A block's place among those of a gradient: which sums, and which segment of their terms.
struct sum_block {
    int64_t group;
    uint32_t segment;
};

// Once, for calls of 2^30 elements or more: a division of 64 bits is a hundred instructions.
static __device__ __noinline__ int64_t large_quotient(int64_t n, int64_t by)
{
    return n / by;
}

__device__ __forceinline__ int64_t quotient_of(int64_t n, int64_t size, const divisor_of_index &by,
                                               bool is_small)
{
    return is_small ? (int64_t)quotient((uint32_t)n, by) : large_quotient(n, size);
}

// Adds the offsets of an index over n dims.
template <bool kIsSmall>
__device__ __forceinline__ sum_offsets add_offsets(const sum_dim *dim, int n, int64_t index,
                                                   sum_offsets at)
{
#pragma unroll 1
    for (int i = n - 1; i > 0; i--) {
        const int64_t outer = quotient_of(index, dim[i].size, dim[i].by, kIsSmall);
        const int64_t place = kIsSmall ? (uint32_t)index - (uint32_t)outer * (uint32_t)dim[i].size
                                       : index - outer * dim[i].size;
        index = outer;
        at.g += place * dim[i].g;
        at.x += place * dim[i].x;
    }
    if (n > 0) {
        at.g += index * dim[0].g;
        at.x += index * dim[0].x;
    }
    return at;
}

static __device__ __noinline__ sum_offsets add_large_offsets(const sum_dim *dim, int n,
                                                             int64_t index, sum_offsets at)
{
    return add_offsets<false>(dim, n, index, at);
}

__device__ __forceinline__ sum_offsets find(const sum_args &args, const sum_dim *dim, int n,
                                            int64_t index, sum_offsets at)
{
    return args.is_small ? add_offsets<true>(dim, n, index, at)
                         : add_large_offsets(dim, n, index, at);
}

__device__ __forceinline__ sum_offsets kept_offsets(const sum_args &args, int64_t kept)
{
    return find(args, args.dim, args.n_kept_dims, kept, {0, 0});
}

// The first step of a segment among those of its run, whose place is added to at.
__device__ __forceinline__ int64_t begin_segment(const sum_args &args, uint32_t segment,
                                                 sum_offsets &at)
{
    if (args.n_runs > 1) {
        const uint32_t part = segment / args.n_runs, run = segment - part * args.n_runs;
        at.g += run * args.of_run.g;
        at.x += run * args.of_run.x;
        segment = part;
    }
    return segment * args.steps_per_segment;
}

// How a thread goes from step to step where these are n_inner side by side, outer times.
struct walk_args {
    int64_t n_inner;
    struct divisor_of_index by; // n_inner, where is_small
    int64_t inner_advance;      // what the thread's next step adds to its place among these
    struct sum_offsets inner;   // elements to the next step,
    struct sum_offsets outer;   // and to the next n_inner of them
    struct sum_offsets advance; // what the thread's next step adds to its element,
    struct sum_offsets turn;    // and on top where n_inner have ended
};

struct sum_walk {
    sum_offsets at;
    int64_t inner;  // place among n_inner
    int32_t n_left; // steps: a call whose threads took 2^31 each would not fit any memory
};

__device__ __forceinline__ sum_walk walk_from(const sum_args &args, const walk_args &by,
                                              const sum_offsets &kept, int64_t step, int64_t end,
                                              uint32_t step_lanes)
{
    const int64_t outer = quotient_of(step, by.n_inner, by.by, args.is_small);
    sum_walk walk;
    walk.inner = step - outer * by.n_inner;
    walk.at.g = kept.g + outer * by.outer.g + walk.inner * by.inner.g;
    walk.at.x = kept.x + outer * by.outer.x + walk.inner * by.inner.x;
    walk.n_left = step < end ? (int32_t)(((uint32_t)(end - step) - 1) / step_lanes) + 1 : 0;
    return walk;
}

// kHasX: x has strides of its own.
template <bool kHasX>
__device__ __forceinline__ void advance(const walk_args &by, sum_walk &walk)
{
    walk.inner += by.inner_advance;
    walk.at.g += by.advance.g;
    if (kHasX)
        walk.at.x += by.advance.x;
    if (walk.inner >= by.n_inner) {
        walk.inner -= by.n_inner;
        walk.at.g += by.turn.g;
        if (kHasX)
            walk.at.x += by.turn.x;
    }
}

// ------------------------------------------------------------------------------------ values

// Stores elements low to high of a packet. Out of line: few packets are stored so.
template <typename T>
static __device__ __noinline__ void store_part(T *to, uint4 packed, int low, int high)
{
    alignas(16) T part[kVecOf<T>];
    memcpy(part, &packed, sizeof part);
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++)
        if (low <= i && i < high)
            to[i] = part[i];
}

// ------------------------------------------------------------------------------------ sums

// A place of a block where sums lie side by side, or the threads of each. Thread t is at step lane
// (t >> stride_bits) % 2^step_bits.
struct lane_args {
    int32_t stride_bits, step_bits;
};

// The sum of a kept lane over its step lanes; step lane 0 gets it. Of a row, whose lanes lie side
// by side, a warp adds the warps' sums: a thread would wait for each of them.
__device__ __forceinline__ double add_step_lanes(const lane_args &lanes, double sum, float *shared)
{
    const int stride = 1 << lanes.stride_bits, span = stride << lanes.step_bits;
    float part = (float)sum;
    for (int distance = min(span, 32) / 2; distance >= stride; distance /= 2)
        part += __shfl_xor_sync(0xFFFFFFFFu, part, distance);
    if (span <= 32 || lanes.step_bits == 0)
        return part;
    shared[threadIdx.x] = part;
    __syncthreads();
    if (stride == 1) {
        const int place = threadIdx.x & (span - 1), n = span / 32;
        if (place < 32) {
            part = place < n ? shared[threadIdx.x - place + 32 * place] : 0.0f;
            for (int distance = n / 2; distance > 0; distance /= 2)
                part += __shfl_xor_sync(0xFFFFFFFFu, part, distance);
        }
        return part;
    }
    double total = part;
    if ((threadIdx.x & (span - 1)) < stride)
        for (int i = max(stride, 32); i < span; i += max(stride, 32))
            total += (double)shared[threadIdx.x + i];
    return total;
}

// What the threads of kept lanes have summed, to where it belongs. A group is so many of them side
// by side as a block has.
template <typename T, int kThreads = kSumThreads>
__device__ __forceinline__ void finish_lanes(const sum_args &args, const lane_args &lanes,
                                             const sum_block &block, int64_t kept, double sum)
{
    __shared__ float shared[kThreads];
    constexpr int kBatch = 8; // loads in flight: a loop would wait for each
    const int step_lanes = 1 << lanes.step_bits, n = blockDim.x >> lanes.step_bits;
    const int step_lane = (threadIdx.x >> lanes.stride_bits) & (step_lanes - 1);
#pragma unroll 1
    for (bool has_all = args.n_segments == 1;; has_all = true) {
        sum = add_step_lanes(lanes, sum, shared);
        if (has_all)
            break;
        const int lane = (int)(kept - block.group * n);
        float *partial = args.partial + block.group * args.n_segments * n + lane;
        if (step_lane == 0)
            partial[(int64_t)block.segment * n] = (float)sum;
        if (!comes_last(args.counter + block.group, args.n_segments))
            return;
        sum = 0;
        for (uint32_t i = step_lane; i < args.n_segments; i += kBatch * step_lanes) {
            float part[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; j++) {
                const uint32_t at = i + j * step_lanes;
                part[j] = at < args.n_segments ? __ldcg(partial + (int64_t)at * n) : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < kBatch; j++)
                sum += (double)part[j];
        }
    }
    if (step_lane == 0 && kept < args.n_kept)
        static_cast<T *>(args.grad_y)[kept] = element<T>::from_float((float)sum);
}

// The sum of each of n_columns over n_rows rows of values, by all threads: as many for a column as
// there are, then one. value(row, column) is what there is, store(column, sum) takes the result.
// kBatch: loads in flight: a loop would wait for each.
template <uint32_t kBatch, typename Value, typename Store>
__device__ __forceinline__ void add_rows(uint32_t n_columns, uint32_t n_rows,
                                         double (&shared)[kSumThreads], const Value &value,
                                         const Store &store)
{
    const uint32_t n_parts = max(blockDim.x / n_columns, 1u);
    const uint32_t part = n_parts > 1 ? threadIdx.x / n_columns : 0;
    for (uint32_t column = threadIdx.x - part * n_columns; column < n_columns;
         column += blockDim.x) {
        double sum = 0;
        for (uint32_t row = part; row < n_rows && part < n_parts; row += kBatch * n_parts) {
            float of_row[kBatch];
#pragma unroll
            for (uint32_t i = 0; i < kBatch; i++) {
                const uint32_t at = row + i * n_parts;
                const float one = value(min(at, n_rows - 1), column);
                of_row[i] = at < n_rows ? one : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < kBatch; i++)
                sum += (double)of_row[i];
        }
        if (n_parts > 1) {
            shared[threadIdx.x] = sum;
            __syncthreads();
            for (uint32_t i = 1; i < n_parts && part == 0; i++)
                sum += shared[i * n_columns + column];
        }
        if (part == 0)
            store(column, sum);
    }
}

// The sum of each of n_columns (a multiple of four) over n_rows rows that blocks have left in
// memory, to the first of sums; by the last block, of hundreds of rows. A thread has four columns,
// and asks for eight rows at once. sums has room for four of each thread. Out of line: it comes
// once, when a kernel has nothing else in registers.
static __device__ __noinline__ void add_partial(const float *partial, uint32_t n_columns,
                                                uint32_t n_rows, float *sums)
{
    constexpr uint32_t kBatch = 8;
    const uint32_t n_quads = n_columns / 4;
    const uint32_t n_parts = min(max(blockDim.x / n_quads, 1u), (n_rows + kBatch - 1) / kBatch);
    const uint32_t part = n_parts > 1 ? threadIdx.x / n_quads : 0;
#pragma unroll 1
    for (uint32_t quad = threadIdx.x - part * n_quads; quad < n_quads && part < n_parts;
         quad += blockDim.x) {
        double sum[4] = {};
#pragma unroll 1
        for (uint32_t row = part; row < n_rows; row += kBatch * n_parts) {
            float4 of_row[kBatch];
#pragma unroll
            for (uint32_t i = 0; i < kBatch; i++) { // past L1, which may have older lines
                const uint32_t at = min(row + i * n_parts, n_rows - 1) * n_columns + 4 * quad;
                of_row[i] = __ldcg(reinterpret_cast<const float4 *>(partial + at));
            }
#pragma unroll
            for (uint32_t i = 0; i < kBatch; i++) {
                const float of[4] = {of_row[i].x, of_row[i].y, of_row[i].z, of_row[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[j] += (double)(row + i * n_parts < n_rows ? of[j] : 0.0f);
            }
        }
        reinterpret_cast<float4 *>(sums)[part * n_quads + quad] =
            make_float4((float)sum[0], (float)sum[1], (float)sum[2], (float)sum[3]);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t column = threadIdx.x; column < n_columns && n_parts > 1; column += blockDim.x) {
        double sum = sums[column];
#pragma unroll 4
        for (uint32_t i = 1; i < n_parts; i++)
            sum += (double)sums[i * n_columns + column];
        sums[column] = (float)sum; // nobody else reads it
    }
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

// Blocks of so many threads that multiprocessors hold at once, by the registers of a thread.
static inline int64_t blocks_at_once(int n_threads, int registers)
{
    constexpr int64_t kRegisters = 64 << 10; // of a multiprocessor
    return kMultiprocessors * (kRegisters / (registers * blocks_of(n_threads, 32) * 32));
}

constexpr double kFewWaves = 4; // of more the last one is a small part

// Lays out a call of few waves of blocks. A wave is what multiprocessors hold at once. A call of
// one and a half waves leaves half of them idle in the second one, which takes as long as the
// first: it waits for memory anew. So where there are more than one wave, and at most four, threads
// take more steps, up to three times as many, until one wave has all blocks. A wave may be exceeded
// by one block in sixteen: these read while others finish.
//
// lay_out(steps) lays the call out for threads of so many steps, and returns its waves. Steps are
// fewest, or a multiple of unit above it. Returns the waves of what is laid out at the end.
template <typename LayOut>
static inline double lay_out_in_a_wave(int64_t fewest, int64_t unit, const LayOut &lay_out)
{
    constexpr double kOneWave = 1 + 1.0 / 16;
    const double waves = lay_out(fewest);
    if (waves <= kOneWave || waves > kFewWaves)
        return waves;
    for (int64_t steps = blocks_of(fewest + 1, unit) * unit; steps <= 3 * fewest; steps += unit) {
        const double fewer = lay_out(steps);
        if (fewer <= kOneWave)
            return fewer;
    }
    return lay_out(fewest);
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

// Threads of a block where a call has so many of them: few, so that every multiprocessor has a
// block, but as many as a sum wants.
static inline int threads_of_block(int64_t n_threads, int64_t wanted, int most = kSumThreads)
{
    const int64_t few = clamp(n_threads / kMultiprocessors, 64, kSumThreads);
    return power_of_two(few > wanted ? few : wanted, most);
}

// Threads over which a row of so many packets is spread, if its n_steps are the row or several: 8
// or more, 128 bytes, or so many.
static inline int64_t spread_of_row(int64_t n_steps, int64_t packets, int64_t steps,
                                    int most = kSumThreads, int least = 8)
{
    return clamp(blocks_of(n_steps, steps), power_of_two(packets, least), most);
}

// Cuts steps into segments where each of the step lanes would take many more than it should; it
// takes a multiple of unit in each.
static inline void cut_steps(struct sum_args *args, int64_t step_lanes, int64_t steps,
                             int64_t of_cut, int64_t steps_of_cut = kStepsOfCut, int64_t unit = 1)
{
    int64_t taken = blocks_of(args->n_steps, step_lanes), n_segments = 1;
    if (taken > clamp(2 * steps, steps_of_cut, taken))
        n_segments = blocks_of(taken, clamp(steps, of_cut, taken));
    args->steps_per_segment = blocks_of(blocks_of(taken, n_segments), unit) * unit * step_lanes;
    args->n_segments = (uint32_t)blocks_of(args->n_steps, args->steps_per_segment) * args->n_runs;
}

static inline void lay_out_walk(struct walk_args *walk, int64_t step_lanes)
{
    int64_t outer = step_lanes / walk->n_inner, inner = step_lanes % walk->n_inner;
    walk->by = index_divisor(walk->n_inner);
    walk->inner_advance = inner;
    walk->advance = {outer * walk->outer.g + inner * walk->inner.g,
                     outer * walk->outer.x + inner * walk->inner.x};
    walk->turn = {walk->outer.g - walk->n_inner * walk->inner.g,
                  walk->outer.x - walk->n_inner * walk->inner.x};
}

// The tensors of a kernel that knows its shape itself, and what stands for values where there are
// none.
template <typename Args>
static void name_operands(const struct sum_args &sum, Args *args)
{
    args->g = sum.g;
    args->x = sum.x;
    args->y = sum.y;
    args->grad_x = sum.grad_x;
    args->grad_y = sum.grad_y;
    args->has_values = sum.has_values;
    args->one = sum.one;
}

// Has the gradient an element for each of the innermost dim?
static inline bool keeps_columns(const struct binary_plan *plan, int32_t sum_side)
{
    return plan->rank == 0 || plan->dim[plan->rank - 1].in & sum_side;
}

// Size of the i-th dim from the innermost, 1 beyond the outermost.
static inline int64_t inner_dim(const struct binary_plan *plan, int i)
{
    return i < plan->rank ? plan->dim[plan->rank - 1 - i].size : 1;
}

static inline int kind_of(int function, int32_t sum_side)
{
    if (function != BINARY_DIV)
        return kBinaryMul;
    return sum_side == BINARY_IN_B ? kBinaryOverY : kBinaryOverX;
}

// The tensors of a call, as seen by the gradient of one side; grad_x where x is not broadcast.
static inline void name_tensors(const struct roped_call *call, int32_t sum_side,
                                struct sum_args *args)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool sums_a = sum_side == BINARY_IN_A;
    float sign_b = plan->function == BINARY_SUB ? -1.0f : 1.0f;
    args->g = call->in[BINARY_GRAD_OUTPUT].data;
    args->has_values = binary_needs_values(plan->function);
    args->x = args->has_values ? call->in[sums_a ? BINARY_B : BINARY_A].data : args->g;
    args->y = args->has_values ? call->in[sums_a ? BINARY_A : BINARY_B].data : args->g;
    args->grad_x = call->out[sums_a ? BINARY_GRAD_B : BINARY_GRAD_A].data;
    args->grad_y = call->out[sums_a ? BINARY_GRAD_A : BINARY_GRAD_B].data;
    args->one.x = sums_a ? 1.0f : sign_b;
    args->one.y = sums_a ? sign_b : 1.0f;
    args->kind = kind_of(plan->function, sum_side);
    args->n = plan->n;
    args->is_small = plan->n < 1 << 30;
}

static inline bool is_broadcast(const struct binary_plan *plan, int32_t side)
{
    for (int i = 0; i < plan->rank; i++)
        if (!(plan->dim[i].in & side))
            return true;
    return false;
}

// The dims of a gradient, but for the n_inner innermost ones, which the kernel knows otherwise.
static inline void name_dims(const struct binary_plan *plan, int32_t sum_side, int n_inner,
                             struct sum_args *args)
{
    int64_t g = 1, x = 1;
    struct sum_dim summed[ROPED_MAX_RANK], kept[ROPED_MAX_RANK];
    int n_kept = 0, n_summed = 0;
    args->n_kept = args->n_steps = args->n_runs = 1;
    for (int i = plan->rank - 1; i >= 0; i--) {
        const int64_t size = plan->dim[i].size;
        const bool in_x = plan->dim[i].in & ~sum_side, is_kept = plan->dim[i].in & sum_side;
        const struct sum_dim dim = {size, index_divisor(size), g, in_x ? x : 0};
        g *= size;
        x *= in_x ? size : 1;
        if (i >= plan->rank - n_inner)
            continue;
        (is_kept ? kept[n_kept++] : summed[n_summed++]) = dim;
        (is_kept ? args->n_kept : args->n_steps) *= size;
    }
    args->n_kept_dims = n_kept;
    args->n_dims = n_kept + n_summed;
    for (int i = 0; i < n_kept; i++)
        args->dim[n_kept - 1 - i] = kept[i];
    for (int i = 0; i < n_summed; i++)
        args->dim[args->n_dims - 1 - i] = summed[i];
}

// Sums of a launch: so many groups, of which each is a block's or that of several segments.
struct sum_groups {
    int64_t n, n_sums;
};

// Finds room for the partial sums of one gradient, or of both in one launch.
static inline enum roped_status find_partial(int n, struct sum_args *const *sums,
                                             const struct sum_groups *groups,
                                             struct roped_queue *queue, struct roped_error *err)
{
    int64_t n_partial = 0, n_counters = 0, of_side[2] = {0, 0}; // whole packets
    float *partial;
    uint32_t *counters;
    for (int i = 0; i < n; i++) {
        if (sums[i]->n_segments == 1)
            continue;
        of_side[i] = blocks_of(groups[i].n * sums[i]->n_segments * groups[i].n_sums, 4) * 4;
        n_partial += of_side[i];
        n_counters += groups[i].n;
    }
    if (n_counters == 0)
        return ROPED_OK;
    enum roped_status status = roped_cuda_scratch(queue, n_partial * (int64_t)sizeof(float),
                                                  n_counters, &partial, &counters, err);
    for (int i = 0; i < n && !status; i++) {
        sums[i]->partial = partial;
        sums[i]->counter = counters;
        if (sums[i]->n_segments == 1)
            continue;
        partial += of_side[i];
        counters += groups[i].n;
    }
    return status;
}
