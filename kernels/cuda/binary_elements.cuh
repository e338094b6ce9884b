// binary_elements.cuh - sums of a gradient's terms, single elements at a time, whatever the
// broadcasting: small calls, in which a thread has an element or a few and waits once, and calls
// whose dims or addresses have no packets of 16 bytes.
//
// Threads beside each other are kept lanes where the gradient has elements for the innermost dim,
// step lanes else, so that they read what lies side by side. Both gradients of a call in which both
// operands are broadcast are two parts of one grid.
#pragma once

#include "cuda/binary_sums.cuh"

#include <algorithm>

struct element_side {
    struct sum_args sum;
    struct lane_args lanes;
    int32_t writes_x; // bool: x is not broadcast
    int64_t n_blocks; // groups times segments
};

struct elements_args {
    struct element_side side[2];
};

constexpr int kElementSteps = 4; // of an iteration

// The element of each step of an iteration, or -1 in g.
__device__ __forceinline__ void find_steps(const sum_args &args, const sum_offsets &kept,
                                           int64_t step, int64_t end, int step_lanes,
                                           sum_offsets (&at)[kElementSteps])
{
#pragma unroll
    for (int i = 0; i < kElementSteps; i++, step += step_lanes) {
        at[i].g = -1;
        if (step < end)
            at[i] =
                find(args, args.dim + args.n_kept_dims, args.n_dims - args.n_kept_dims, step, kept);
    }
}

template <typename T, int kKind>
__device__ __forceinline__ double add_elements(const element_side &side, int64_t kept, int64_t step,
                                               int64_t end, int step_lanes)
{
    const sum_args &args = side.sum;
    const T *g = static_cast<const T *>(args.g);
    T *grad_x = static_cast<T *>(args.grad_x);
    const sum_offsets first = kept_offsets(args, kept);
    double sum = 0;
    do {
        sum_offsets at[kElementSteps];
        T of_g[kElementSteps] = {}, of_x[kElementSteps] = {}, of_y = {};
        float term, of_full, terms = 0;
        find_steps(args, first, step, end, step_lanes, at);
#pragma unroll
        for (int i = 0; i < kElementSteps; i++)
            finish_before_wait(g + at[i].g);
        wait_for_previous();
        if (kept < args.n_kept)
            of_y = static_cast<const T *>(args.y)[kept];
#pragma unroll
        for (int i = 0; i < kElementSteps; i++) {
            if (at[i].g < 0)
                continue;
            of_g[i] = g[at[i].g];
            of_x[i] = static_cast<const T *>(args.x)[at[i].x];
        }
        const float y = args.has_values ? element<T>::to_float(of_y) : args.one.y;
#pragma unroll
        for (int i = 0; i < kElementSteps; i++) {
            if (at[i].g < 0)
                continue;
            both_terms<T, kKind>(args.kind, element<T>::to_float(of_g[i]),
                                 args.has_values ? element<T>::to_float(of_x[i]) : args.one.x, y,
                                 of_full, term);
            terms += term;
            if (side.writes_x)
                grad_x[at[i].g] = element<T>::from_float(of_full);
        }
        sum += (double)terms;
        step += kElementSteps * step_lanes;
    } while (step < end);
    return sum;
}

template <typename T, int kKind>
__global__ void __launch_bounds__(kMostSumThreads)
    elements_kernel(const __grid_constant__ struct elements_args args)
{
    let_next_start();
    int64_t block = blockIdx.x;
    const bool is_second = block >= args.side[0].n_blocks;
    const element_side &side = args.side[is_second];
    block -= is_second ? args.side[0].n_blocks : 0;
    const uint32_t n_segments = side.sum.n_segments;
    const int64_t group = n_segments > 1 ? (uint32_t)block / n_segments : block;
    const uint32_t segment = (uint32_t)(block - group * n_segments);
    const int stride = 1 << side.lanes.stride_bits, step_lanes = 1 << side.lanes.step_bits;
    const int step_lane = (threadIdx.x >> side.lanes.stride_bits) & (step_lanes - 1);
    const int lane =
        (threadIdx.x & (stride - 1)) +
        (threadIdx.x >> (side.lanes.stride_bits + side.lanes.step_bits) << side.lanes.stride_bits);
    const int64_t kept = group * (blockDim.x >> side.lanes.step_bits) + lane;
    const int64_t begin = segment * side.sum.steps_per_segment;
    int64_t end = min(begin + side.sum.steps_per_segment, side.sum.n_steps);
    end = kept < side.sum.n_kept ? end : 0;
    double sum = add_elements<T, kKind>(side, kept, begin + step_lane, end, step_lanes);
    finish_lanes<T, kMostSumThreads>(side.sum, side.lanes, {group, segment}, kept, sum);
}

// ------------------------------------------------------------------------------------ host

// Of a call that takes single ones: with them every thread has one to wait for, and little to do.
constexpr int64_t kMostElements = kMultiprocessors * 1024;

// Threads of a block for rows of so many terms. A thread divides a packet's elements one after the
// other, and the last one of an odd row is another wait for memory: so many threads are worth what
// it takes to add what they have.
static inline int most_threads(const struct binary_plan *plan, int64_t n_steps)
{
    const bool is_long = n_steps > kElementSteps * kSumThreads;
    const bool is_odd = inner_dim(plan, 0) % 4 != 0 && n_steps <= kElementSteps * kMostSumThreads;
    return (plan->function == BINARY_DIV || is_odd) && is_long ? kMostSumThreads : kSumThreads;
}

// Does a call of few elements add them in single ones, all of a sum in a block and in one iteration
// of each thread?
static inline bool is_of_elements(const struct binary_plan *plan, int32_t sum_side)
{
    struct sum_args args;
    name_dims(plan, sum_side, 0, &args);
    const int64_t step_lanes =
        keeps_columns(plan, sum_side) ? 32 : most_threads(plan, args.n_steps);
    return plan->n <= kMostElements && args.n_steps <= kElementSteps * step_lanes;
}

// Threads of one side, of so many steps each, and its blocks. Kept lanes beside each other are 8 or
// more. There are no more segments than make the blocks of a large call: what they leave would find
// no room.
static inline void lay_out_elements(struct element_side *side, bool is_columns, int64_t steps,
                                    int n_threads)
{
    struct sum_args *sum = &side->sum;
    const int most = is_columns ? n_threads / power_of_two(sum->n_kept, 8) : n_threads;
    const int step_lanes = power_of_two(blocks_of(sum->n_steps, steps), most);
    const int64_t groups = blocks_of(sum->n_kept, n_threads / step_lanes);
    const int64_t taken = blocks_of(sum->n_steps, step_lanes);
    const int64_t of_segment = taken / clamp(kMostBlocks / groups, 1, kMostBlocks);
    cut_steps(sum, step_lanes, clamp(of_segment, steps, taken), kFewSteps);
    side->lanes.step_bits = bits_of(step_lanes);
    side->lanes.stride_bits = is_columns ? bits_of(n_threads / step_lanes) : 0;
    side->n_blocks = groups * sum->n_segments;
}

// So many steps of each thread, or more, that all blocks find room at once: step lanes are a power
// of two, so ten terms have sixteen of them.
static inline int64_t filling_steps(const struct binary_plan *plan, int32_t sides, int64_t steps)
{
    for (; 2 * steps <= kElementSteps; steps *= 2) {
        int64_t n_threads = 0;
        for (int32_t of = BINARY_IN_A; of <= BINARY_IN_B; of++) {
            struct sum_args args;
            if (!(sides & of))
                continue;
            name_dims(plan, of, 0, &args);
            n_threads +=
                args.n_kept * power_of_two(blocks_of(args.n_steps, steps), kMostSumThreads);
        }
        if (n_threads <= kFillingThreads)
            break;
    }
    return steps;
}

// Columns of some dozens of terms in calls of half as many elements as fill the device or more:
// with one or two terms each, threads wait longer for the sum over them than four loads take.
constexpr int64_t kStepsOfShort = 4;

static inline bool is_of_short_columns(const struct binary_plan *plan, int32_t sum_side)
{
    constexpr int64_t kFewest = 1 << 16, kShortest = 16, kLongest = 64;
    struct sum_args args;
    name_dims(plan, sum_side, 0, &args);
    return keeps_columns(plan, sum_side) && plan->n >= kFewest && plan->n <= kMostElements &&
           args.n_steps >= kShortest && args.n_steps <= kLongest;
}

template <typename T>
static enum roped_status start_elements(struct elements_args *args, int n_sides, bool is_div,
                                        int n_threads, struct roped_queue *queue,
                                        struct roped_error *err)
{
    int64_t n_blocks = 0;
    struct sum_args *sums[2];
    struct sum_groups groups[2];
    for (int i = 0; i < n_sides; i++) {
        struct element_side *side = &args->side[i];
        n_blocks += side->n_blocks;
        sums[i] = &side->sum;
        groups[i] = {side->n_blocks / side->sum.n_segments, n_threads >> side->lanes.step_bits};
    }
    enum roped_status status = find_partial(n_sides, sums, groups, queue, err);
    if (status)
        return status;
    return start(queue, is_div ? elements_kernel<T, kBinaryOver> : elements_kernel<T, kBinaryMul>,
                 dim3((unsigned)n_threads), n_blocks, dim3(), *args, err);
}

// The gradients of one side and of the other one where sides has both, else of one and with it, as
// far as writes_x, that of the operand which is not broadcast.
template <typename T>
static enum roped_status launch_elements(const struct roped_call *call, int32_t sides,
                                         struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct elements_args args = {};
    int32_t summed[2];
    int n_sides = 0, n_threads = 64;
    const bool is_both = sides == (BINARY_IN_A | BINARY_IN_B); // each takes all elements
    int64_t steps = clamp(plan->n * (is_both ? 2 : 1) / kFillingThreads, 1, kFewSteps);
    steps = filling_steps(plan, sides, steps);
    if (!is_both && is_of_short_columns(plan, sides))
        steps = std::max(steps, kStepsOfShort);
    for (int32_t of = BINARY_IN_A; of <= BINARY_IN_B; of++) {
        if (!(sides & of))
            continue;
        struct element_side *side = &args.side[n_sides];
        summed[n_sides++] = of;
        name_tensors(call, of, &side->sum);
        name_dims(plan, of, 0, &side->sum);
        side->writes_x = !is_broadcast(plan, of ^ (BINARY_IN_A | BINARY_IN_B));
        const int kept = keeps_columns(plan, of) ? power_of_two(side->sum.n_kept, 8) : 1;
        const int wanted =
            threads_of_block(plan->n / steps, kept * blocks_of(side->sum.n_steps, steps),
                             kept > 1 ? kSumThreads : most_threads(plan, side->sum.n_steps));
        n_threads = wanted > n_threads ? wanted : n_threads;
    }
    for (int i = 0; i < n_sides; i++)
        lay_out_elements(&args.side[i], keeps_columns(plan, summed[i]), steps, n_threads);
    return start_elements<T>(&args, n_sides, plan->function == BINARY_DIV, n_threads, queue, err);
}
