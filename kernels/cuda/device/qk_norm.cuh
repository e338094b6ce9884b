// qk_norm.cuh - the kernels of qk_rmsnorm_rope, and of what puts k and v into a cache after it:
// each head of q and k divided by its root mean square, weighted, rotated.
//
// Threads of a warp own a head, one unit (device/rotate.cuh) each: 16 for 128 elements of bfloat16.
// They keep it in registers as it came, add their squares, then each scales and rotates what it
// holds. Narrow units, unlike rope's in large work: weights and angles are in registers beside the
// head, and blocks that wait for a sum need others on their multiprocessor that load. In large work
// a thread walks four neighbouring heads of one token, whose angles and weights it needs once.
//
// Heads of more units than a warp has threads, weights of another type than q and k, and angles of
// rare sources take the kernel with several units per thread. Heads beyond it, and heads that 16
// bytes do not divide, are read twice, the second time from a cache, by a group that may be a
// block.
//
// The order of a head's sum follows from the head, its memory, the source of its angles and the
// weight's type, never from the number of tokens. Squares are summed in float32; where that
// overflows, or may have lost the sum to underflow, once more in double, as the CPU backend always
// does.
#pragma once

#include "cuda/device/qk_head.cuh"

// ------------------------------------------------------------------------------------ one unit

constexpr int kHeadsPerThread = 4; // in all but small work
constexpr int kCommonLanes = 16;   // threads of a head in kernels for common calls
constexpr int kWalkThreads = 192;  // of a block

// Blocks on a multiprocessor: 56 registers, or 64 of float16, whose unpacked values the compiler
// keeps (vector.cuh) and would spill.
template <typename T>
constexpr int kWalkBlocks = std::is_same<T, __half>::value ? 5 : 6;

// Heads that a thread walks: neighbours, of q alone or of k alone, so that weights are read once.
struct head_run {
    uint32_t token;
    int head; // the first
    int n;    // how many there are; 0 or below: none
    bool is_k;
};

// blockDim is (threads of a head, runs of heads, tokens): no division finds a thread's place.
template <typename Outputs, int kRows>
__device__ __forceinline__ head_run run_of(const typename Outputs::args &args)
{
    const rotate_args &rotate = args.rotate;
    int index = blockIdx.y * blockDim.y + threadIdx.y;
    head_run run;
    run.token = Outputs::column(args) * blockDim.z + threadIdx.z;
    run.is_k = index >= args.q_runs;
    run.head = run.is_k ? rotate.q_heads + (index - args.q_runs) * kRows : index * kRows;
    run.n = (run.is_k ? rotate.n_heads : rotate.q_heads) - run.head;
    if (run.token >= rotate.n_tokens ||
        (int)threadIdx.x >= rotate.rotating_units + rotate.rest_units)
        run.n = 0;
    return run;
}

// All of a run one head at a time, for those warps that have a head whose sum of float32 squares is
// not good: that one's is made again in double. Out of line, from the beginning and the last thing
// a thread does: few warps need it, every kernel carries it, and none keeps registers for it.
// Outputs are those that serve any call.
template <typename Outputs, typename T, int kUnit, int kAngles, int kRows>
__device__ __noinline__ void write_heads_again(const typename Outputs::args &args)
{
    const rotate_args &rotate = args.rotate;
    head_run run = run_of<Outputs, kRows>(args);
    unit_place place = place_of<T, kUnit>(rotate, threadIdx.x);
    const char *from = head_of(rotate, run.token, run.head);
    unit_values<T, kUnit> gain;
    angle_values<rotate_unit<T, kUnit>::kPairs> angle;
    if (run.n > 0)
        started_gains(args, start_gains<T, kUnit>(weight_of(args, run.is_k), place), gain);
    if (run.n > 0 && place.rotates)
        angles_of<kAngles>(
            rotate.angles, run.token,
            short_position_of(rotate.angles, run.token, position_place(rotate.angles, run.token)),
            place.first_pair, angle);
    unit_factors<T, kUnit> factors(place, gain, angle);
    int64_t cell = Outputs::place(args, run.token, run.is_k && run.n > 0);
    typename Outputs::template run<T> to(args, cell, run.head, run.is_k, from, 0);
#pragma unroll 1
    for (int r = 0; r < kRows; r++, from += rotate.head_bytes) {
        unit_words<T, kUnit> words = no_words<T, kUnit>();
        square_sums<float> sums;
        square_sums<double> exact;
        if (r < run.n)
            load_unit<T, kUnit>(from, place, words);
        add_squares<T, kUnit>(words, sums);
        float sum = sum_in_lanes(blockDim.x, sums.total());
        float mean = fmaf(sum, args.inverse_width, args.eps);
        float scale = inverse_root(mean);
        add_squares<T, kUnit>(words, exact);
        double exact_sum = sum_in_lanes(blockDim.x, exact.total());
        if (!is_good(sum, mean))
            scale = exact_scale(args, exact_sum);
        auto write = [&](auto rounding) {
            if (r < run.n)
                write_unit<T, kUnit, decltype(rounding)::kIsOn>(to.head(args, r), place, factors,
                                                                scale, words);
        };
        with_rounding<T>(args, write);
    }
}

// 1 / sqrt(mean + eps) of each head of a run; words are 0 where a thread has no unit. False in all
// threads of a warp of which a head's sum was not good.
template <typename T, int kUnit, bool kCommon, int kRows>
__device__ __forceinline__ bool scales_of(const qk_args &args, const head_run &run,
                                          const unit_words<T, kUnit> (&words)[kRows],
                                          float (&scale)[kRows])
{
    float sum[kRows];
    int lanes = kCommon ? kCommonLanes : blockDim.x;
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        square_sums<float> sums;
        add_squares<T, kUnit>(words[r], sums);
        sum[r] = sums.total();
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        if (distance < lanes) {
#pragma unroll
            for (int r = 0; r < kRows; r++) // independent of each other: their latencies overlap
                sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], distance);
        }
    bool is_done = true;
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        float mean = fmaf(sum[r], args.inverse_width, args.eps);
        is_done = is_done && (r >= run.n || is_good(sum[r], mean));
        scale[r] = inverse_root(mean);
    }
    return __all_sync(0xFFFFFFFFu, is_done);
}

// kCommon: every unit rotates, a head has kCommonLanes of them, positions are a tensor, there are
// weights, and nothing is rounded before them.
template <typename Outputs, typename T, int kUnit, int kAngles, int kRows, bool kCommon>
__global__ void __launch_bounds__(kWalkThreads, kWalkBlocks<T>)
    qk_norm_kernel(const __grid_constant__ typename Outputs::args args)
{
    if constexpr (Outputs::kAppends)
        if (Outputs::template write_values<T>(args))
            return;
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    const rotate_args &rotate = args.rotate;
    head_run run = run_of<Outputs, kRows>(args);
    unit_place place = place_of<T, kUnit, kCommon>(rotate, threadIdx.x);
    const char *from = head_of(rotate, run.token, run.head) + place.at * (int)sizeof(T);
    unit_place near = place; // from there
    near.at = 0;
    near.second = compute_now(place.second - place.at);
    from = compute_now(from);
    // in a common call tokens beyond the last read what is the last one's, and write nothing
    uint32_t token = min(run.token, rotate.n_tokens - 1);
    const char *position_from = compute_now(position_place(rotate.angles, token));
    const T *weight_from = nullptr;
    if constexpr (kCommon) {
        weight_from = static_cast<const T *>(weight_of(args, run.is_k)) + place.at;
        finish_before_wait(from, position_from, weight_from, run.n, near.second);
    }
    wait_for_previous();
    uint32_t position = 0;
    if constexpr (kCommon)
        position = load_position(position_from);
    else if (run.n > 0)
        position = short_position_of(rotate.angles, run.token, position_from);
    unit_words<T, kUnit> words[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        words[r] = no_words<T, kUnit>();
        if (r < run.n)
            load_unit<T, kUnit>(from + r * (int64_t)rotate.head_bytes, near, words[r]);
    }
    unit_words<T, kUnit> weight;
    angle_values<kPairs> angle;
    if constexpr (kCommon)
        load_unit<T, kUnit>(reinterpret_cast<const char *>(weight_from), near, weight);
    else if (run.n > 0)
        weight = start_gains<T, kUnit>(weight_of(args, run.is_k), place);
    int64_t cell = Outputs::place(args, token, run.is_k && run.n > 0);
    let_next_start();
    if (kCommon || (run.n > 0 && place.rotates))
        angles_of<kAngles>(rotate.angles, token, position, place.first_pair, angle);
    unit_values<T, kUnit> gain;
    started_gains(args, weight, gain);
    unit_factors<T, kUnit> factors(place, gain, angle);
    float scale[kRows];
    if (!scales_of<T, kUnit, kCommon>(args, run, words, scale)) {
        write_heads_again<typename Outputs::any, T, kUnit, kAngles, kRows>(args);
        return;
    }
    typename Outputs::template run<T> to(args, cell, run.head, run.is_k, from, place.at);
    to.with_heads(args, [&](auto head) {
        auto write = [&](auto rounding) {
#pragma unroll
            for (int r = 0; r < kRows; r++)
                if (r < run.n)
                    write_unit<T, kUnit, decltype(rounding)::kIsOn>(head(r), near, factors,
                                                                    scale[r], words[r]);
        };
        with_rounding<T, kCommon>(args, write);
    });
}

// ------------------------------------------------------------------------------------ many units

struct qk_group {
    int thread, threads;
    uint32_t token;
    int head;
    bool exists;
};

template <typename Outputs>
__device__ __forceinline__ qk_group group_of(const typename Outputs::args &args)
{
    qk_group group;
    uint32_t first = Outputs::column(args) * (blockDim.x >> args.lane_bits);
    uint32_t index = first + (threadIdx.x >> args.lane_bits);
    group.threads = 1 << args.lane_bits;
    group.thread = threadIdx.x & (group.threads - 1);
    group.token = index / (uint32_t)args.rotate.n_heads;
    group.head = (int)(index - group.token * (uint32_t)args.rotate.n_heads);
    group.exists = index < args.n_groups; // all threads take part in the sums
    return group;
}

// One head per group of up to a warp, which keeps it in registers.
template <typename Outputs, typename T, int kUnit, int kUnits>
__global__ void __launch_bounds__(kMaxThreads, 2)
    qk_norm_units_kernel(const __grid_constant__ typename Outputs::args args)
{
    if constexpr (Outputs::kAppends)
        if (Outputs::template write_values<T>(args))
            return;
    let_next_start();
    const rotate_args &rotate = args.rotate;
    qk_group group = group_of<Outputs>(args);
    int units = rotate.rotating_units + rotate.rest_units;
    bool is_k = group.head >= rotate.q_heads;
    const char *from = compute_now(head_of(rotate, group.token, group.head));
    unit_place place[kUnits];
    bool exists[kUnits];
    unit_words<T, kUnit> words[kUnits];
    wait_for_previous();
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
        int unit = u * group.threads + group.thread;
        exists[u] = group.exists && unit < units;
        place[u] = place_of<T, kUnit>(rotate, unit);
        words[u] = no_words<T, kUnit>();
        if (exists[u])
            load_unit<T, kUnit>(from, place[u], words[u]);
    }
    square_sums<float> sums;
#pragma unroll
    for (int u = 0; u < kUnits; u++)
        add_squares<T, kUnit>(words[u], sums);
    float sum = sum_in_lanes(group.threads, sums.total());
    float mean = fmaf(sum, args.inverse_width, args.eps);
    float scale = inverse_root(mean);
    bool is_done = !group.exists || is_good(sum, mean);
    if (!__all_sync(0xFFFFFFFFu, is_done)) {
        square_sums<double> exact;
#pragma unroll
        for (int u = 0; u < kUnits; u++)
            add_squares<T, kUnit>(words[u], exact);
        float again = exact_scale(args, sum_in_lanes(group.threads, exact.total()));
        scale = is_done ? scale : again;
    }
    bool is_kept = group.exists && is_padding<kAnglesAny>(rotate.angles, group.token);
    int64_t cell = Outputs::place(args, group.token, is_k && group.exists);
    auto to =
        typename Outputs::template run<T>(args, cell, group.head, is_k, from, 0).head(args, 0);
    auto write = [&](auto rounding) {
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
            unit_values<T, kUnit> gain;
            angle_values<rotate_unit<T, kUnit>::kPairs> angle;
            if (!exists[u])
                continue;
            if (is_kept) {
                keep_words(to.kept, place[u], words[u]);
                continue;
            }
            gains_of<T, kUnit>(args, is_k, place[u], gain);
            if (place[u].rotates)
                angles_of<kAnglesAny>(rotate.angles, group.token, 0, place[u].first_pair, angle);
            write_unit<T, kUnit, decltype(rounding)::kIsOn>(
                to, place[u], unit_factors<T, kUnit>(place[u], gain, angle), scale, words[u]);
        }
    };
    with_rounding<T>(args, write);
}

// ------------------------------------------------------------------------------------ reread

// One thread's share of a head's squares, from memory.
template <typename T, int kUnit, typename Acc>
__device__ __forceinline__ Acc read_squares(const qk_args &args, const char *from,
                                            const qk_group &group, int units)
{
    square_sums<Acc> sums;
    if (!group.exists)
        return 0;
#pragma unroll 1
    for (int u = group.thread; u < units; u += group.threads) {
        unit_words<T, kUnit> words = no_words<T, kUnit>();
        load_unit<T, kUnit>(from, place_of<T, kUnit>(args.rotate, u), words);
        add_squares<T, kUnit>(words, sums);
    }
    return sums.total();
}

// Units of a thread, each of which adds two squares to the same float: the sum of more would be too
// far off.
constexpr int kMostFloatUnits = 64;

// One head per group of up to a block, which reads it twice: heads too wide for registers, and
// widths or pointers that 16 bytes do not divide.
template <typename Outputs, typename T, int kUnit>
__global__ void __launch_bounds__(kMaxThreads)
    qk_norm_reread_kernel(const __grid_constant__ typename Outputs::args args)
{
    __shared__ float partial[kMaxThreads / 32];
    __shared__ double exact_partial[kMaxThreads / 32];
    if constexpr (Outputs::kAppends)
        if (Outputs::template write_values<T>(args))
            return;
    let_next_start();
    const rotate_args &rotate = args.rotate;
    qk_group group = group_of<Outputs>(args);
    int units = rotate.rotating_units + rotate.rest_units;
    bool is_k = group.head >= rotate.q_heads;
    const char *from = head_of(rotate, group.token, group.head);
    wait_for_previous();

    // the same in all groups of a warp
    const bool has_float_sum = units <= kMostFloatUnits * group.threads;
    float sum = 0.0f;
    if (has_float_sum) {
        sum = read_squares<T, kUnit, float>(args, from, group, units);
        sum = sum_in_group(sum, partial, group.threads);
    }
    float mean = fmaf(sum, args.inverse_width, args.eps);
    bool is_done = !group.exists || (has_float_sum && is_good(sum, mean));
    float scale = inverse_root(mean);
    // a group beyond a warp is a block, whose threads agree
    if (group.threads <= 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        double exact = read_squares<T, kUnit, double>(args, from, group, units);
        exact = sum_in_group(exact, exact_partial, group.threads);
        scale = is_done ? scale : exact_scale(args, exact);
    }
    if (!group.exists)
        return;
    bool is_kept = is_padding<kAnglesAny>(rotate.angles, group.token);
    int64_t cell = Outputs::place(args, group.token, is_k && group.exists);
    auto to =
        typename Outputs::template run<T>(args, cell, group.head, is_k, from, 0).head(args, 0);
    auto write = [&](auto rounding) {
        for (int u = group.thread; u < units; u += group.threads) {
            unit_words<T, kUnit> words = no_words<T, kUnit>();
            unit_values<T, kUnit> gain;
            angle_values<rotate_unit<T, kUnit>::kPairs> angle;
            unit_place place = place_of<T, kUnit>(rotate, u);
            load_unit<T, kUnit>(from, place, words);
            if (is_kept) {
                keep_words(to.kept, place, words);
                continue;
            }
            gains_of<T, kUnit>(args, is_k, place, gain);
            if (place.rotates)
                angles_of<kAnglesAny>(rotate.angles, group.token, 0, place.first_pair, angle);
            write_unit<T, kUnit, decltype(rounding)::kIsOn>(
                to, place, unit_factors<T, kUnit>(place, gain, angle), scale, words);
        }
    };
    with_rounding<T>(args, write);
}
