// binary_sweep_launch.cuh - which calls a sweep knows (binary_sweep.cuh), how its threads are laid
// out, and its start.
#pragma once

#include "cuda/binary_sweep.cuh"

#include <algorithm>

// Rows begin at multiples of so many elements of a packet.
static inline int64_t step_of_rows(int64_t width, int vec)
{
    int64_t step = 1;
    while (step < vec && width % (2 * step) == 0)
        step *= 2;
    return step;
}

// Packets that cover a row of so many elements, wherever it begins.
template <typename T>
static inline int64_t packets_of_row(int64_t width)
{
    constexpr int kVec = kVecOf<T>;
    return (kVec - step_of_rows(width, kVec) + width - 1) / kVec + 1;
}

// Takes the smallest of the summed dims out of what a sweep walks: each of its elements is a run,
// whose segments are its own. A row has so many steps. Are runs so few and so long that their
// blocks have much to do?
static inline bool name_runs(struct sum_args *sum, int64_t of_row)
{
    constexpr int64_t kMostRuns = 256, kLeastSteps = 32;
    struct sum_dim *dim = &sum->dim[sum->n_kept_dims], *end = &sum->dim[sum->n_dims--];
    struct sum_dim *of_runs = std::min_element(
        dim, end, [](const sum_dim &a, const sum_dim &b) { return a.size < b.size; });
    sum->of_run = {of_runs->g, of_runs->x};
    sum->n_steps /= of_runs->size;
    sum->n_runs = (uint32_t)std::min(of_runs->size, kMostRuns + 1);
    std::move(of_runs + 1, end, of_runs);
    return sum->n_runs <= kMostRuns && sum->n_steps * of_row >= kLeastSteps;
}

// Are a thread's columns the same in every run of rows?
static inline bool keeps_place(const struct sum_args *sum, int vec)
{
    const struct sum_dim *inner = &sum->dim[sum->n_dims - 1];
    return (inner[-1].g - inner->size * inner->g) % vec == 0;
}

// Names what a sweep walks. Is it one of the forms that it knows?
template <typename T>
static bool name_sweep(const struct roped_call *call, int32_t sum_side, int mode,
                       struct sweep_args *args)
{
    constexpr int kVec = kVecOf<T>;
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    const bool is_columns = keeps_columns(plan, sum_side);
    struct sum_args *sum = &args->sum;
    name_tensors(call, sum_side, sum);
    name_dims(plan, sum_side, 1, sum);
    args->width = inner_dim(plan, 0);
    args->most_threads = mode == kSweepOne ? kRowSumThreads : kSumThreads;
    args->is_shifted = args->has_gaps = args->width % kVec != 0;
    args->packets = packets_of_row<T>(args->width);
    args->n_x = 1;
    for (int i = 0; i < plan->rank; i++)
        args->n_x *= plan->dim[i].in & ~sum_side ? plan->dim[i].size : 1;
    args->x_is_one = !(plan->dim[plan->rank - 1].in & ~sum_side);
    args->y_is_packed = !args->is_shifted && are_aligned({sum->y, sum->grad_y});
    if (!is_aligned(sum->g, 16))
        return false;
    if (mode == kSweepOne ? !are_aligned({sum->x, sum->grad_x})
                          : mode == kSweepShifted && !args->x_is_one && !is_aligned(sum->x, 16))
        return false;
    // of narrower ones few elements of a packet are the row's
    if (mode == kSweepShifted && args->is_shifted && (args->width <= kVec || args->n_x > 1 << 30))
        return false;
    const int n_summed = sum->n_dims - sum->n_kept_dims, most = is_columns ? 2 : 1;
    const bool is_apart =
        is_columns && args->is_shifted && n_summed == 2 && !keeps_place(sum, kVec);
    const bool has_runs = n_summed > most || is_apart;
    const bool is_narrow = args->is_shifted && args->width < 4 * kVec; // mostly parts of packets
    if (n_summed > most + 1 ||
        (has_runs && (is_narrow || !name_runs(sum, is_columns ? 1 : args->packets))))
        return false;
    const int n_walked = sum->n_dims - sum->n_kept_dims;
    if (args->is_shifted && n_summed > 2 && n_walked == 2 && !keeps_place(sum, kVec))
        return false;
    const struct sum_dim none = {1, {0, 0}, 0, 0}, *inner = &sum->dim[sum->n_dims - 1];
    const struct sum_dim *outer = n_walked > (is_columns ? 1 : 0) ? inner - is_columns : &none;
    args->walk.outer = {outer->g, outer->x};
    args->walk.n_inner = is_columns ? inner->size : args->packets;
    args->walk.inner = is_columns ? sum_offsets{inner->g, inner->x} : sum_offsets{0, 0};
    sum->n_steps *= is_columns ? 1 : args->packets;
    return true;
}

// Do rows begin anywhere in a packet where a column has few terms, or threads have few of them?
// Then single elements, which lanes read side by side whatever the address, cost less than to find
// the parts of packets. Rows that are summed, whose sums are a thread's own, lose by it.
static inline bool is_of_few_terms(const struct sweep_args *args, bool is_columns)
{
    return is_columns && args->is_shifted &&
           (args->sum.n_steps <= kFewSteps || args->sum.n <= kFewSteps * kFillingThreads);
}

// Few quotients of rows, of which a packet takes as long as several of products, are a step of each
// thread.
static inline bool is_of_few_quotients(const struct sweep_args *args)
{
    return args->sum.kind != kBinaryMul &&
           args->sum.n_kept * args->sum.n_steps <= kFillingThreads / 2;
}

// Has a sweep's one gradient the device for itself?
static inline bool is_alone(const struct sweep_args *args)
{
    return args->most_threads == kRowSumThreads;
}

// The fewest steps that a thread should take: one of few quotients of rows, and of float32 columns.
// Many of columns are whole iterations.
template <int kVec>
static int64_t fewest_steps(const struct sweep_args *args, bool is_columns)
{
    const int64_t n_packets =
        args->sum.n_kept * args->sum.n_steps * (is_columns ? args->packets : 1);
    const bool is_one = is_columns ? kVec == 4 && is_alone(args) && args->sum.kind != kBinaryMul &&
                                         n_packets <= kFillingThreads / 2
                                   : is_of_few_quotients(args);
    const int64_t steps = steps_of_thread(n_packets);
    if (is_columns && steps > kFewSteps)
        return steps / kSweepUnroll * kSweepUnroll;
    return is_one ? 1 : steps;
}

// Sums over the columns of rows, by threads of so many steps. Step lanes of a row are 8 or more,
// 128 bytes, or 2, a sector, where another gradient is made beside it: what that reads is in L2. Of
// few quotients segments are a step, for they take long, and before there are segments a block has
// more threads. But those of 16-bit types are products with an inverse: an iteration of them takes
// less than either. Of many packets 8 lanes with three iterations do what 16 do in two that are not
// full. Returns the threads of a block.
template <int kVec>
static int lay_out_rows(struct sweep_args *args, int64_t steps)
{
    constexpr int kLeast = 8;
    struct sum_args *sum = &args->sum;
    const int64_t taken = blocks_of(sum->n_steps, kSumThreads);
    const bool divides = is_of_few_quotients(args);
    const bool is_many = sum->n_kept * sum->n_steps >= kFewSteps * kFillingThreads;
    const bool is_few = sum->n_kept <= kMultiprocessors && (!divides || kVec == 4);
    const int most = is_few && taken > (divides ? 1 : kSweepUnroll) && taken <= kStepsOfCut
                         ? args->most_threads
                         : kSumThreads;
    const int64_t spread =
        spread_of_row(sum->n_steps, args->packets, steps, most, is_alone(args) ? kLeast : 2);
    const int n_threads = threads_of_block(sum->n_kept * spread, spread, most);
    int step_lanes = power_of_two(spread, n_threads);
    const int64_t of_half = blocks_of(sum->n_steps, kLeast);
    if (step_lanes == 2 * kLeast && is_alone(args) && is_many && of_half > 2 * kSweepUnroll &&
        of_half <= 3 * kSweepUnroll)
        step_lanes = kLeast;
    if (divides)
        cut_steps(sum, step_lanes, steps, 1, kVec == 8 ? kSweepUnroll : 1);
    else
        cut_steps(sum, step_lanes, steps, clamp(2 * steps, 4, kFewSteps));
    args->row_step_bits = bits_of(step_lanes);
    lay_out_walk(&args->walk, step_lanes);
    return n_threads;
}

// More segments than these take the last block longer to add than they spare, and more than make
// so many blocks leave more to be added than the blocks gain.
constexpr int64_t kMostSegments = 4 * kMultiprocessors, kMostSegmentBlocks = 8 * kMultiprocessors;

// Packets of a row in a sector of memory.
constexpr int64_t kLanesOfSector = 2;

// A thread that has all terms of its columns has nothing to exchange: of so few terms that pays
// where there are so many lanes for each.
constexpr int64_t kMostOwnSteps = 12, kLanesOfOwnStep = kFillingThreads / 128;

// Lanes of a row that begins anywhere, of which the last one sums nothing of its own.
constexpr int64_t kOddLanes = 16;

// The same over rows. Lanes of a row are 8, or 16 where one of them sums nothing of its own, or as
// many as its packets, if the rows that are summed lie one behind the other; the other threads of a
// block are step lanes. Where these would leave most multiprocessors without a block, and threads
// with more steps than they should take but no segments, lanes are fewer. Where rows begin
// anywhere, step lanes are a multiple of the rows after which one begins at the same place of a
// packet.
template <int kVec>
static int lay_out_columns(struct sweep_args *args, int64_t steps, int64_t odd_lanes = kOddLanes)
{
    struct sum_args *sum = &args->sum;
    const bool is_dense = args->walk.inner.g == args->width;
    int64_t least = args->is_shifted ? odd_lanes : is_dense ? power_of_two(args->packets, 8) : 8;
    int64_t turns = 1, of_sector = 1;
    while (args->is_shifted && turns * args->walk.inner.g % kVec != 0)
        turns *= 2;
    args->by_packets = index_divisor(args->packets);
    args->n_lanes = sum->n_kept * args->packets;
    while (least > kLanesOfSector && !args->is_shifted &&
           args->n_lanes / least <= kMultiprocessors / 2 &&
           sum->n_steps > steps * (kSumThreads / least) &&
           sum->n_steps <= kStepsOfCut * (kSumThreads / least)) {
        least /= 2;
        of_sector = kLanesOfSector;
    }
    least = clamp(args->n_lanes + args->is_shifted, 1, least);
    int64_t spread = clamp(blocks_of(sum->n_steps, steps), turns, kSumThreads / least);
    if (!args->is_shifted && sum->n_steps <= kMostOwnSteps &&
        args->n_lanes >= sum->n_steps * kLanesOfOwnStep)
        spread = 1;
    const int n_threads = threads_of_block(args->n_lanes * spread, least * spread);
    int64_t step_lanes = blocks_of(sum->n_steps, blocks_of(sum->n_steps, spread));
    step_lanes = blocks_of(step_lanes, turns) * turns;
    int64_t lanes = n_threads / step_lanes;
    lanes = lanes > 8 ? lanes / 8 * 8 : lanes / of_sector * of_sector;
    lanes = clamp(lanes, 1, args->n_lanes + args->is_shifted);
    const int64_t groups = blocks_of(args->n_lanes, lanes - args->is_shifted);
    const int64_t most_segments = clamp(kMostSegmentBlocks / groups, 1, kMostSegments);
    const int64_t taken = blocks_of(sum->n_steps, step_lanes);
    // segments of an iteration, as long as their blocks find room at once, or beside others
    const int64_t of_cut = is_alone(args) ? taken * groups / (2 * kMultiprocessors) : 0;
    steps = clamp(blocks_of(taken, most_segments), steps, sum->n_steps);
    const bool divides_few = is_alone(args) && sum->kind != kBinaryMul &&
                             args->n_lanes * sum->n_steps <= kFillingThreads / 2;
    const int64_t unit = !divides_few ? kSweepUnroll : kVec == 8 ? kSweepUnroll / 2 : 1;
    cut_steps(sum, step_lanes, steps, clamp(of_cut, unit, kFewSteps),
              kStepsOfCut / kSweepUnroll * unit, unit);
    args->lanes = (uint32_t)lanes;
    args->step_lanes = (uint32_t)step_lanes;
    args->own_lanes = (uint32_t)(lanes - args->is_shifted);
    lay_out_walk(&args->walk, step_lanes);
    return (int)blocks_of(lanes * step_lanes, 32) * 32;
}

// Columns of one to a few waves in one wave without segments: so many lanes of a row for each block
// that all blocks find room at once, and each has all terms of its sums. Not where a fifth of all
// places and more would stay empty, nor where a block's row would be less than 128 bytes, nor of
// rows that begin anywhere (4560x5462 of float32 1.16). Returns the threads of a block, or 0.
static inline int lay_out_wide_columns(struct sweep_args *args, int64_t most_blocks)
{
    struct sum_args *sum = &args->sum;
    const int64_t of_block = blocks_of(args->n_lanes, most_blocks);
    const int64_t lanes = blocks_of(of_block, kLanesOfSector) * kLanesOfSector;
    const int64_t n_blocks = blocks_of(args->n_lanes, lanes), step_lanes = kSumThreads / lanes;
    if (args->is_shifted || sum->n_runs > 1 || step_lanes < 4 || lanes < 8 ||
        5 * n_blocks < 4 * most_blocks)
        return 0;
    const int64_t taken = blocks_of(sum->n_steps, step_lanes);
    sum->steps_per_segment = blocks_of(taken, kSweepUnroll) * kSweepUnroll * step_lanes;
    sum->n_segments = 1;
    args->lanes = (uint32_t)lanes;
    args->step_lanes = (uint32_t)step_lanes;
    args->own_lanes = (uint32_t)lanes;
    lay_out_walk(&args->walk, step_lanes);
    return (int)blocks_of(lanes * step_lanes, 32) * 32;
}

template <typename T, int kKind>
static kernel_fn<sweep_args> *sweep_kernel_of(bool is_columns)
{
    return is_columns ? sweep_columns_kernel<T, kKind, kSweepOne>
                      : sweep_rows_kernel<T, kKind, kSweepOne>;
}

// Of a block of so many threads.
template <int kVec>
static struct sum_groups groups_of(const struct sweep_args *args, bool is_columns, int n_threads)
{
    if (is_columns)
        return {blocks_of(args->n_lanes, args->own_lanes), (int64_t)args->own_lanes * kVec};
    const int64_t lanes = n_threads >> args->row_step_bits;
    return {blocks_of(args->sum.n_kept, lanes), lanes};
}

template <int kVec>
static int lay_out_sweep(struct sweep_args *args, bool is_columns, int64_t steps)
{
    return is_columns ? lay_out_columns<kVec>(args, steps) : lay_out_rows<kVec>(args, steps);
}

template <int kVec>
static double waves_of(const struct sweep_args *args, bool is_columns, int n_threads, int registers)
{
    const int64_t n_groups = groups_of<kVec>(args, is_columns, n_threads).n;
    return (double)(n_groups * args->sum.n_segments) / (double)blocks_at_once(n_threads, registers);
}

// Odd columns of half as many lanes: twice as many groups of blocks, with half of the steps. That
// pays where all find room at once and had left multiprocessors without a block before, or had
// taken more than a wave of segments. Returns the threads of a block, or 0.
template <int kVec>
static int lay_out_narrow_columns(struct sweep_args *args, int64_t fewest, double waves_before,
                                  int registers)
{
    constexpr int kLanes = kOddLanes / 2;
    struct sweep_args narrow = *args;
    int n_threads = 0;
    const bool leaves_room =
        args->sum.n_segments == 1 && groups_of<kVec>(args, true, n_threads).n < kMultiprocessors;
    if (args->sum.n_runs > 1 || args->sum.n_steps <= fewest * args->step_lanes ||
        (waves_before <= 1 && !leaves_room))
        return 0;
    const double waves = lay_out_in_a_wave(fewest, kSweepUnroll, [&](int64_t steps) {
        n_threads = lay_out_columns<kVec>(&narrow, steps, kLanes);
        return waves_of<kVec>(&narrow, true, n_threads, registers);
    });
    if (waves > 1)
        return 0;
    *args = narrow;
    return n_threads;
}

// A sweep of one gradient, by a kernel of about so many registers, in one wave of blocks where
// there are few. Threads of columns, whose step lanes are any number, take whole iterations. Rows
// of float32, of which a multiprocessor holds more blocks with more bytes on their way each, lose
// as often as they gain (800x2070 takes 1.14, 1000x1030 0.80).
template <int kVec>
static int lay_out_one(struct sweep_args *args, bool is_columns, int registers)
{
    int n_threads = 0;
    if (!is_columns && kVec == 4)
        return lay_out_sweep<kVec>(args, is_columns, fewest_steps<kVec>(args, is_columns));
    const int64_t fewest = fewest_steps<kVec>(args, is_columns);
    const double waves =
        lay_out_in_a_wave(fewest, is_columns ? kSweepUnroll : 1, [&](int64_t steps) {
            n_threads = lay_out_sweep<kVec>(args, is_columns, steps);
            return waves_of<kVec>(args, is_columns, n_threads, registers);
        });
    if (is_columns && args->is_shifted && fewest < kFewSteps) {
        const int narrow = lay_out_narrow_columns<kVec>(args, fewest, waves, registers);
        return narrow > 0 ? narrow : n_threads;
    }
    if (!is_columns || waves <= 1 || waves > kFewWaves)
        return n_threads;
    const int wide = lay_out_wide_columns(args, blocks_at_once(kSumThreads, registers));
    return wide > 0 ? wide : n_threads;
}

// Starts a kernel of one gradient, laid out for blocks of so many threads.
template <typename T>
static enum roped_status start_sweep(kernel_fn<sweep_args> *kernel, struct sweep_args *args,
                                     bool is_columns, int n_threads, struct roped_queue *queue,
                                     struct roped_error *err)
{
    struct sum_args *sum = &args->sum;
    const struct sum_groups groups = groups_of<kVecOf<T>>(args, is_columns, n_threads);
    enum roped_status status = find_partial(1, &sum, &groups, queue, err);
    if (status)
        return status;
    return start(queue, kernel, dim3((unsigned)n_threads), groups.n, dim3(1, sum->n_segments),
                 *args, err);
}

// Registers of a kernel's threads, as far as they decide how many blocks a multiprocessor holds. Of
// float32 quotients over rows it is 104, but layouts for that take more time than they save.
template <typename T>
static inline int registers_of(int kind, bool is_columns)
{
    if (sizeof(T) == 4)
        return is_columns || kind == kBinaryOverX ? 96 : 80;
    if (kind == kBinaryMul || !is_columns)
        return 112;
    return std::is_same_v<T, __half> && kind == kBinaryOverY ? 112 : 128;
}

// The gradient of the broadcast side, and with it that of the other one.
template <typename T>
static enum roped_status launch_sweep(struct sweep_args *args, bool is_columns,
                                      struct roped_queue *queue, struct roped_error *err)
{
    const int kind = args->sum.kind;
    const int registers = registers_of<T>(kind, is_columns);
    return start_sweep<T>(kind == kBinaryMul     ? sweep_kernel_of<T, kBinaryMul>(is_columns)
                          : kind == kBinaryOverY ? sweep_kernel_of<T, kBinaryOverY>(is_columns)
                                                 : sweep_kernel_of<T, kBinaryOverX>(is_columns),
                          args, is_columns, lay_out_one<kVecOf<T>>(args, is_columns, registers),
                          queue, err);
}
