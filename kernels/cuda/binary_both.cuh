// binary_both.cuh - both gradients of a binary function whose operands are both broadcast, in one
// launch: each by a pass of its own (binary_sweep.cuh), or in one pass where each row has one
// element of an operand, or each operand a dim of its own (binary_grid.cuh). Many odd columns of
// few terms are a launch of single elements each.
#pragma once

#include "cuda/binary_elements.cuh"
#include "cuda/binary_few.cuh"
#include "cuda/binary_grid.cuh"
#include "cuda/binary_parts.cuh"
#include "cuda/binary_sweep_launch.cuh"

#include <algorithm>
#include <cmath>

// ------------------------------------------------------------------------------------ two passes

// The blocks of one gradient.
struct both_side {
    struct sweep_args sweep;
    int32_t is_columns; // bool
    uint32_t n_blocks;  // groups times segments
    struct divisor_of_index by_groups;
    uint32_t n_groups;
};

struct both_args {
    struct both_side side[2];
};

template <typename T, int kKind, int kMode>
__device__ __forceinline__ void sweep_side(const both_side &side, const sum_block &block)
{
    if (side.is_columns)
        sweep_columns_of<T, kKind, kMode>(side.sweep, block);
    else
        sweep_rows_of<T, kKind, kMode>(side.sweep, block);
}

// Of quotients a side knows whether it is the divisor's: it has no use for the other's terms.
template <typename T, int kKind, int kMode>
__global__ void
__launch_bounds__(kSumThreads, sizeof(T) == 4 && kKind == kBinaryMul && kMode == kSweepBoth ? 3 : 2)
    sweep_both_kernel(const __grid_constant__ struct both_args args)
{
    let_next_start();
    const bool is_second = blockIdx.x >= args.side[0].n_blocks;
    const both_side &side = args.side[is_second];
    const uint32_t block = blockIdx.x - (is_second ? args.side[0].n_blocks : 0);
    const uint32_t segment = quotient(block, side.by_groups);
    const sum_block place = {block - segment * side.n_groups, segment};
    if constexpr (kKind == kBinaryMul)
        sweep_side<T, kBinaryMul, kMode>(side, place);
    else if (side.sweep.sum.kind == kBinaryOverY)
        sweep_side<T, kBinaryOverY, kMode>(side, place);
    else
        sweep_side<T, kBinaryOverX, kMode>(side, place);
}

constexpr int64_t kBothAtOnce = 2 * kMultiprocessors; // blocks that multiprocessors hold

// Where not all blocks find room at once, those whose threads take more steps come first: the last
// ones to begin would end long after the others.
template <int kVec>
static void order_sides(struct both_args *args, int n_threads)
{
    int64_t n_blocks = 0, steps[2];
    for (int i = 0; i < 2; i++) {
        const struct both_side *side = &args->side[i];
        const struct sum_args *sum = &side->sweep.sum;
        const int64_t step_lanes =
            side->is_columns ? side->sweep.step_lanes : (int64_t)1 << side->sweep.row_step_bits;
        steps[i] = blocks_of(std::min(sum->steps_per_segment, sum->n_steps), step_lanes);
        n_blocks += groups_of<kVec>(&side->sweep, side->is_columns, n_threads).n * sum->n_segments;
    }
    if (n_blocks > kBothAtOnce && steps[0] < steps[1])
        std::swap(args->side[0], args->side[1]);
}

// Rows that begin anywhere have kernels of their own: quotients of others took 1.4 by them.
template <typename T, int kKind>
static kernel_fn<both_args> *both_kernel_of(bool is_shifted)
{
    return is_shifted ? sweep_both_kernel<T, kKind, kSweepShifted>
                      : sweep_both_kernel<T, kKind, kSweepBoth>;
}

// Starts blocks of so many threads, those of the first side before those of the second.
template <typename T>
static enum roped_status start_sides(struct both_args *args, int n_sides, int n_threads,
                                     struct roped_queue *queue, struct roped_error *err)
{
    int64_t n_blocks = 0;
    struct sum_args *sums[2];
    struct sum_groups groups[2];
    if (n_sides == 2)
        order_sides<kVecOf<T>>(args, n_threads);
    for (int i = 0; i < n_sides; i++) {
        struct both_side *side = &args->side[i];
        sums[i] = &side->sweep.sum;
        groups[i] = groups_of<kVecOf<T>>(&side->sweep, side->is_columns, n_threads);
        side->n_groups = (uint32_t)groups[i].n;
        side->by_groups = index_divisor(groups[i].n);
        side->n_blocks = (uint32_t)(groups[i].n * sums[i]->n_segments);
        n_blocks += groups[i].n * sums[i]->n_segments;
    }
    enum roped_status status = find_partial(n_sides, sums, groups, queue, err);
    if (status)
        return status;
    kernel_fn<both_args> *kernel =
        sums[0]->kind == kBinaryMul
            ? both_kernel_of<T, kBinaryMul>(args->side[0].sweep.is_shifted)
            : both_kernel_of<T, kBinaryOver>(args->side[0].sweep.is_shifted);
    return start(queue, kernel, dim3((unsigned)n_threads), n_blocks, dim3(), *args, err);
}

// Lays out both sides for one launch, whose blocks have as many threads as either side wants, and a
// multiple of the step lanes of a row. A wave has the blocks of both.
template <int kVec>
static int lay_out_both(struct both_args *args, int n_sides, int registers)
{
    int n_threads = 0;
    int64_t fewest = INT64_MAX, unit = kSweepUnroll;
    for (int i = 0; i < n_sides; i++) {
        const struct both_side *side = &args->side[i];
        fewest = std::min(fewest, fewest_steps<kVec>(&side->sweep, side->is_columns));
        unit = side->is_columns ? unit : 1;
    }
    lay_out_in_a_wave(fewest, unit, [&](int64_t steps) {
        int64_t n_blocks = 0;
        int wanted = 0, step = 32; // a power of two, as those of rows are
        for (int i = 0; i < n_sides; i++) {
            struct both_side *side = &args->side[i];
            const int64_t least = fewest_steps<kVec>(&side->sweep, side->is_columns);
            wanted = std::max(wanted, lay_out_sweep<kVec>(&side->sweep, side->is_columns,
                                                          std::max(steps, least)));
            if (!side->is_columns)
                step = std::max(step, 1 << side->sweep.row_step_bits);
        }
        n_threads = (int)blocks_of(wanted, step) * step;
        for (int i = 0; i < n_sides; i++) {
            struct both_side *side = &args->side[i];
            n_blocks += groups_of<kVec>(&side->sweep, side->is_columns, n_threads).n *
                        side->sweep.sum.n_segments;
        }
        return (double)n_blocks / (double)blocks_at_once(n_threads, registers);
    });
    return n_threads;
}

// One launch. But where the first of two sides fills the device the second one waits anyway: a
// kernel that knows whose blocks it has begins sooner. Quotients, which take longer, have none.
template <typename T>
static enum roped_status start_both(struct both_args *args, int n_sides, struct roped_queue *queue,
                                    struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct both_side *first = &args->side[0], *second = &args->side[1];
    const bool is_mul = first->sweep.sum.kind == kBinaryMul, is_shifted = first->sweep.is_shifted;
    const int registers = sizeof(T) == 2 ? 128 : is_mul && !is_shifted ? 80 : 104;
    int64_t n_first = 0;
    if (n_sides == 2 && is_mul && !is_shifted && first->is_columns && second->is_columns) {
        const int n_threads =
            lay_out_sweep<kVec>(&first->sweep, true, fewest_steps<kVec>(&first->sweep, true));
        n_first = groups_of<kVec>(&first->sweep, true, n_threads).n * first->sweep.sum.n_segments;
    }
    if (n_first <= kBothAtOnce)
        return start_sides<T>(args, n_sides, lay_out_both<kVec>(args, n_sides, registers), queue,
                              err);
    kernel_fn<sweep_args> *kernel = sweep_columns_kernel<T, kBinaryMul, kSweepBoth>;
    const int of_first = lay_out_one<kVec>(&first->sweep, true, registers);
    const int of_second = lay_out_one<kVec>(&second->sweep, true, registers);
    enum roped_status status = start_sweep<T>(kernel, &first->sweep, true, of_first, queue, err);
    return status ? status : start_sweep<T>(kernel, &second->sweep, true, of_second, queue, err);
}

// ------------------------------------------------------------------------------------ crosses

// Has one operand alone the innermost dim, so that each row has one element of the other? Then one
// pass may add both gradients. Returns the side whose columns the rows keep, or 0.
static inline int32_t side_of_cross(const struct binary_plan *plan)
{
    constexpr int32_t kBoth = BINARY_IN_A | BINARY_IN_B;
    const int32_t side = plan->rank > 1 ? plan->dim[plan->rank - 1].in : kBoth;
    return side != kBoth ? side : 0;
}

// Are the dims around a row the other operand's alone, in what both have?
static inline bool is_plain_cross(const struct binary_plan *plan)
{
    constexpr int32_t kBoth = BINARY_IN_A | BINARY_IN_B;
    return (plan->rank == 2 || (plan->rank == 3 && plan->dim[0].in == kBoth)) &&
           plan->dim[plan->rank - 2].in == (kBoth ^ plan->dim[plan->rank - 1].in);
}

// Panels whose sums of rows one block adds. Of more there are groups, about as many as one has
// panels; of fewer, groups have a row wait for twice as many blocks in turn (157 panels 1.06).
constexpr uint32_t kMostPanelsAtOnce = 256;

// The lanes of a row and of a block. A warp has a row of a panel, or several narrow rows. What
// lanes are left have other kept elements where rows are few, or lie apart from each other. Of odd
// rows a block has at least as many in turn as it takes until one begins at the same place of a
// packet; where that is the next one and terms are few, a lane has all of its columns.
template <typename T>
static void lay_out_cross(struct sweep_args *args, bool is_plain)
{
    struct sum_args *sum = &args->sum;
    const bool is_narrow = args->packets <= 32;
    args->row_lanes = is_narrow ? power_of_two(args->packets, 32) : 32;
    args->lanes = 32;
    int turns = 1; // rows after which one begins at the same place of a packet
    while (args->is_shifted && turns * args->walk.inner.g % kVecOf<T> != 0)
        turns *= 2;
    const bool is_own = turns == 1 && sum->n_steps <= kFewSteps && sum->n_runs == 1 && !is_plain;
    args->own_lanes = 32 - (args->is_shifted && !is_narrow && !is_own);
    args->n_panels = is_narrow ? 1 : (uint32_t)blocks_of(args->packets, args->own_lanes);
    args->packets = (int64_t)args->n_panels * (is_narrow ? args->row_lanes : args->own_lanes);
    args->has_gaps = 1;
    args->by_packets = index_divisor(args->packets);
    args->n_lanes = sum->n_kept * args->packets;
    if (args->own_lanes == 32 && !(is_plain && !is_narrow)) {
        const bool is_dense =
            args->walk.inner.g == args->width && args->walk.n_inner * args->row_lanes >= 32;
        const int most = kSumThreads / (is_dense ? args->row_lanes : 32);
        const int step_lanes = power_of_two(blocks_of(sum->n_steps, kFewSteps), most);
        args->lanes = kSumThreads / (step_lanes > turns ? step_lanes : turns);
        args->own_lanes = args->lanes;
    }
    args->step_lanes = kSumThreads / args->lanes;
    args->n_parts = args->n_panels;
    for (int i = 0; i < sum->n_kept_dims; i++)
        args->n_parts *= sum->dim[i].x == 0 ? sum->dim[i].size : 1;
}

// Blocks of one segment of each run.
static inline int64_t blocks_of_cross(const struct sweep_args *args)
{
    return blocks_of(args->n_lanes, args->own_lanes) * args->sum.n_runs;
}

// Cuts the rows of columns into segments of so many iterations at least, for so many blocks at
// most. Returns how long these take, in iterations: the blocks of a wave wait for about two at
// their begin and their end.
template <typename T>
static int64_t cut_rows(struct sweep_args *args, int64_t n_wanted, int64_t least)
{
    constexpr int64_t kWaited = 2, kAtOnce = kMultiprocessors * (sizeof(T) == 4 ? 3 : 2);
    struct sum_args *sum = &args->sum;
    const int64_t n_blocks = blocks_of_cross(args), unit = kSweepUnroll * args->step_lanes;
    const int64_t most = blocks_of(sum->n_steps, least * unit);
    const int64_t rows = blocks_of(sum->n_steps, clamp(n_wanted / n_blocks, 1, most));
    sum->steps_per_segment = blocks_of(rows, unit) * unit;
    const int64_t n_segments = blocks_of(sum->n_steps, sum->steps_per_segment);
    sum->n_segments = (uint32_t)n_segments * sum->n_runs;
    return blocks_of(n_blocks * n_segments, kAtOnce) * (sum->steps_per_segment / unit + kWaited);
}

// Of few panels there are as many blocks as multiprocessors hold at once, two each, or three that
// divide float32, which wait for code as long as for memory. Of more panels
// so many do not come out: of two, four and eight times as many blocks those that take least.
template <typename T>
static void cut_cross(struct sweep_args *args)
{
    int64_t least = INT64_MAX, n_best = kBothAtOnce;
    if (4 * blocks_of_cross(args) <= kBothAtOnce) {
        const bool is_long = sizeof(T) == 4 && args->sum.kind != kBinaryMul;
        cut_rows<T>(args, is_long ? 3 * kMultiprocessors : kBothAtOnce, 1);
    } else {
        for (int64_t n = 2 * kBothAtOnce; n <= 8 * kBothAtOnce; n *= 2) {
            const int64_t taken = cut_rows<T>(args, n, kFewSteps / kSweepUnroll);
            n_best = taken < least ? n : n_best;
            least = std::min(taken, least);
        }
        cut_rows<T>(args, n_best, kFewSteps / kSweepUnroll);
    }
    lay_out_walk(&args->walk, args->step_lanes);
}

// Floats that blocks leave to be added, of columns, and of rows behind them.
struct cross_parts {
    int64_t of_columns, of_rows;
};

template <typename T>
static cross_parts parts_of_cross(const struct sweep_args *args)
{
    const int64_t n_segments = args->sum.n_segments;
    const int64_t n_columns =
        blocks_of(args->n_lanes, args->own_lanes) * args->own_lanes * kVecOf<T>;
    return {n_segments > 1 ? n_columns * n_segments : 0,
            args->n_parts > 1 ? args->n_parts * args->n_x : 0};
}

// Parts of sums of rows that few panels have are added by the last block, others by a launch of
// their own.
template <typename T>
static enum roped_status launch_cross(struct sweep_args *args, bool is_plain,
                                      struct roped_queue *queue, struct roped_error *err)
{
    struct sum_args *sum = &args->sum;
    const int64_t n_blocks = blocks_of(args->n_lanes, args->own_lanes);
    const bool is_mul = sum->kind == kBinaryMul;
    const bool adds_rows = is_mul && is_plain && args->n_parts > 1, is_cut = sum->n_segments > 1;
    args->panels_of_group = args->n_panels;
    if (args->n_panels > kMostPanelsAtOnce)
        args->panels_of_group = (uint32_t)std::ceil(std::sqrt((double)args->n_panels));
    args->n_groups = (uint32_t)blocks_of(args->n_panels, args->panels_of_group);
    const cross_parts parts = parts_of_cross<T>(args);
    const int64_t n_parts = parts.of_columns + parts.of_rows;
    const int64_t n_row_counters =
        adds_rows ? sum->n_kept * sum->n_segments * counters_of_rows(args->n_groups) : 0;
    const int64_t n_counters = is_cut ? n_blocks : 0;
    enum roped_status status = ROPED_OK;
    if (n_parts > 0)
        status = roped_cuda_scratch(queue, n_parts * (int64_t)sizeof(float),
                                    n_counters + n_row_counters, &sum->partial, &sum->counter, err);
    if (status)
        return status;
    args->row_partial = sum->partial + parts.of_columns;
    args->row_counter = adds_rows ? sum->counter + n_counters : nullptr;
    status = start(queue,
                   is_mul ? sweep_columns_kernel<T, kBinaryMul, kSweepCross>
                          : sweep_columns_kernel<T, kBinaryOver, kSweepCross>,
                   dim3(kSumThreads), n_blocks, dim3(1, sum->n_segments), *args, err);
    if (status || adds_rows || args->n_parts == 1)
        return status;
    return start_parts<T>(args->row_partial, sum->grad_x, args->n_x, args->n_parts, queue, err);
}

// Not of few elements, which one launch of both sides waits for once, nor of few rows of very many
// panels. Few odd rows would leave most step lanes without one.
template <typename T>
static bool is_of_plain_cross(const struct binary_plan *plan)
{
    constexpr int64_t kFew = 1 << 20, kFewRows = 256, kPanelsOfRow = 24, kMostPanels = 8 << 10;
    constexpr int64_t kFewOddRows = 32;
    const int64_t width = inner_dim(plan, 0), n_rows = inner_dim(plan, 1);
    const int64_t n_panels = width / (31 * kVecOf<T>)+1;
    const int64_t n_blocks = plan->n / (width * n_rows) * n_panels;
    return n_blocks <= kMostPanels &&
           ((width % kVecOf<T> != 0 && n_rows >= kFewOddRows) || // two passes shift packets
            ((plan->n > kFew || n_rows > kFewRows) &&
             (n_blocks <= kBothAtOnce || kPanelsOfRow * n_rows > n_blocks)));
}

// Are there so many elements, and so many rows for each column, that a pass which adds both
// gradients has less to do than two? Quotients wait for divisions, and a second pass finds
// grad_output in L2: they are to be more, most so those of whole 16-bit rows. Lays the pass out;
// what it leaves to be added must fit.
template <typename T>
static bool name_cross(const struct roped_call *call, const struct binary_plan *plan,
                       struct sweep_args *args, bool *is_plain)
{
    constexpr int kVec = kVecOf<T>;
    constexpr int64_t kFewPackets = 1 << 18, kLeastSteps = 4;
    const bool is_light = sizeof(T) == 2 && inner_dim(plan, 0) % kVec == 0;
    const int64_t few_quotients = is_light ? 2 << 20 : 1 << 20;
    const int32_t side = side_of_cross(plan);
    if (!side || (plan->function == BINARY_DIV && plan->n < few_quotients) ||
        !name_sweep<T>(call, side, kSweepCross, args) || args->n_x > INT32_MAX)
        return false;
    const struct sum_args *sum = &args->sum;
    *is_plain = is_plain_cross(plan) && args->width >= 16 * kVec;
    if (*is_plain ? !is_of_plain_cross<T>(plan)
                  : plan->n <= kFewPackets * kVec || (args->is_shifted && args->width < 4 * kVec))
        return false;
    const int64_t packets = args->packets;
    lay_out_cross<T>(args, *is_plain);
    cut_cross<T>(args);
    // lanes without a packet divide, too
    if (sum->kind != kBinaryMul && packets < 32 && 16 * packets <= 9 * args->row_lanes)
        return false;
    if (!*is_plain && sum->n_steps < kLeastSteps * args->step_lanes)
        return false;
    const cross_parts parts = parts_of_cross<T>(args);
    const int64_t n_blocks = blocks_of(args->n_lanes, args->own_lanes);
    return (sum->n_segments == 1 || 2 * n_blocks <= ROPED_CUDA_COUNTERS) &&
           parts.of_columns + parts.of_rows <= ROPED_CUDA_SCRATCH_BYTES / (int64_t)sizeof(float);
}

// ------------------------------------------------------------------------------------ launch

// Elements of a call of which two gradients by single elements are one launch; of more each has the
// threads that it needs.
constexpr int64_t kMostOfOneLaunch = 1 << 20;

// Have columns that begin anywhere fewer rows than there are places of a packet, or few elements?
// Most step lanes would have none, or little to do.
template <typename T>
static bool is_of_few_rows(const struct sweep_args *args, bool is_columns)
{
    return is_columns && args->is_shifted &&
           (args->sum.n_steps < kVecOf<T> || args->sum.n <= kMostOfOneLaunch);
}

template <typename T>
static enum roped_status launch_both(const struct roped_call *call, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct both_args both = {};
    struct grid_args grid = {};
    struct sweep_args cross = {};
    enum roped_status status = ROPED_OK;
    int n_sides = 0;
    int32_t without_packets = 0; // sides
    if (is_of_elements(plan, BINARY_IN_A) && is_of_elements(plan, BINARY_IN_B))
        return launch_elements<T>(call, BINARY_IN_A | BINARY_IN_B, queue, err);
    if (name_grid<T>(call, &grid))
        return launch_grid<T>(&grid, queue, err);
    bool is_plain;
    if (name_cross<T>(call, plan, &cross, &is_plain))
        return launch_cross<T>(&cross, is_plain, queue, err);
    for (int32_t of = BINARY_IN_A; of <= BINARY_IN_B && !status; of++) {
        struct both_side *side = &both.side[n_sides];
        side->is_columns = keeps_columns(plan, of);
        if (plan->n > kMostOfOneLaunch && is_of_odd_columns<T>(plan, of))
            status = launch_few_columns<T>(call, of, queue, err);
        else if (name_sweep<T>(call, of, kSweepShifted, &side->sweep) &&
                 !is_of_few_rows<T>(&side->sweep, side->is_columns))
            n_sides++;
        else if (plan->n <= kMostOfOneLaunch)
            without_packets |= of;
        else
            status = launch_elements<T>(call, of, queue, err);
    }
    if (without_packets && !status)
        status = launch_elements<T>(call, without_packets, queue, err);
    return n_sides == 0 || status ? status : start_both<T>(&both, n_sides, queue, err);
}
