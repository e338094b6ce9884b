// qk_norm.cuh - the kernels of qk_rmsnorm_rope: each head of q and k divided by its root mean
// square, weighted, rotated.
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

#include "cuda/device/reduce.cuh"
#include "cuda/device/rotate.cuh"
#include "cuda/device/squares.cuh"

#include <type_traits>

struct qk_args {
    int64_t to[2];     // bytes from an input to its output
    uint32_t n_groups; // of threads that take a head each, where blocks are one-dimensional
    int32_t lane_bits; // log2 of the threads of such a group
    int32_t q_runs;    // of heads that a thread walks, q's; k's follow
    float eps;
    float inverse_width;
    const void *weight[2];
    int32_t weight_dtype; // enum roped_dtype; ROPED_NO_DTYPE: weights are 1
    float weight_bias;
    int32_t rounds_product;
    int32_t weights_in_kind; // bool: none, or of the type of q and k
    double exact_inverse_width;
    struct rotate_args rotate;
};

constexpr int kMaxThreads = 256; // of a block

// ------------------------------------------------------------------------------------ units

// What a lane computes with: the first and second elements of a unit's pairs. A unit that does not
// rotate has as many, in the same places; b is unused where it has half as many.
template <typename T, int kUnit>
struct unit_values {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    float a[kPairs], b[kPairs];
};

// A scalar that does not rotate is one element instead of two.
template <int kUnit>
__device__ __forceinline__ bool has_second(const unit_place &place)
{
    return kUnit != kUnitScalar || place.rotates;
}

template <typename T, int kUnit>
__device__ __forceinline__ unit_words<T, kUnit> no_words()
{
    unit_words<T, kUnit> words;
    if constexpr (kUnit == kUnitScalar) {
        words.a = words.b = element<T>::from_float(0.0f);
    } else {
#pragma unroll
        for (uint4 &word : words.word)
            word = make_uint4(0, 0, 0, 0);
    }
    return words;
}

template <typename T, int kUnit, typename Acc>
__device__ __forceinline__ void add_squares(const unit_words<T, kUnit> &words,
                                            square_sums<Acc> &sums)
{
    unit_values<T, kUnit> x;
    widen_unit<T, kUnit>(words, x.a, x.b);
    sums.add(x.a);
    sums.add(x.b);
}

// ------------------------------------------------------------------------------------ weights

// n weights plus weight_bias, from element at of a head.
template <typename W, int n>
__device__ __forceinline__ void read_gains(const void *weight, int at, float bias, float (&gain)[n])
{
    const W *from = static_cast<const W *>(weight) + at;
    if constexpr (n * sizeof(W) % 4 != 0) {
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] = bias + element<W>::to_float(from[i]);
    } else if constexpr (sizeof(W) == 4) {
        load_floats(reinterpret_cast<const float *>(from), gain);
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] += bias;
    } else {
        float word[n / 2];
        load_floats(reinterpret_cast<const float *>(from), word);
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            float2 pair = element<W>::to_float2(__float_as_uint(word[i]));
            gain[2 * i] = bias + pair.x;
            gain[2 * i + 1] = bias + pair.y;
        }
    }
}

// The type is the same for a whole launch.
template <int n>
__device__ __forceinline__ void gains_at(const qk_args &args, bool is_k, int at, float (&gain)[n])
{
    const void *weight = is_k ? args.weight[1] : args.weight[0];
    if (args.weight_dtype == ROPED_NO_DTYPE) {
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] = args.weight_bias + 1.0f;
    } else if (args.weight_dtype == ROPED_F32) {
        read_gains<float>(weight, at, args.weight_bias, gain);
    } else if (args.weight_dtype == ROPED_F16) {
        read_gains<__half>(weight, at, args.weight_bias, gain);
    } else {
        read_gains<__nv_bfloat16>(weight, at, args.weight_bias, gain);
    }
}

template <typename T, int kUnit>
__device__ __forceinline__ void gains_of(const qk_args &args, bool is_k, const unit_place &place,
                                         unit_values<T, kUnit> &gain)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    if constexpr (kUnit == kUnitGptj) {
        float both[2 * kPairs];
        gains_at(args, is_k, place.at, both);
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            gain.a[i] = both[2 * i];
            gain.b[i] = both[2 * i + 1];
        }
    } else {
        gains_at(args, is_k, place.at, gain.a);
        if (has_second<kUnit>(place))
            gains_at(args, is_k, place.second, gain.b);
    }
}

// Weights of the type of q and k are loaded as a head is, and used when everything else has been
// asked for: a load that is waited for holds up those behind it. No weights are ones.
template <typename T, int kUnit>
__device__ __forceinline__ unit_words<T, kUnit> start_gains(const void *weight,
                                                            const unit_place &place)
{
    unit_words<T, kUnit> words;
    if (weight) {
        load_unit<T, kUnit>(static_cast<const char *>(weight), place, words);
    } else {
        float ones[kVecOf<T>];
#pragma unroll
        for (float &one : ones)
            one = 1.0f;
        words.word[0] = pack<T>(ones);
    }
    return words;
}

template <typename T, int kUnit>
__device__ __forceinline__ void
started_gains(const qk_args &args, const unit_words<T, kUnit> &words, unit_values<T, kUnit> &gain)
{
    widen_unit<T, kUnit>(words, gain.a, gain.b);
#pragma unroll
    for (int i = 0; i < rotate_unit<T, kUnit>::kPairs; i++) {
        gain.a[i] += args.weight_bias;
        gain.b[i] += args.weight_bias;
    }
}

// ------------------------------------------------------------------------------------ results

// Rounds to T, two elements in an instruction.
template <typename T, int n>
__device__ __forceinline__ void round_values(float (&x)[n])
{
    if constexpr (n == 1) {
        x[0] = element<T>::to_float(element<T>::from_float(x[0]));
    } else {
#pragma unroll
        for (int i = 0; i < n; i += 2) {
            float2 pair = element<T>::to_float2(element<T>::from_float2(x[i], x[i + 1]));
            x[i] = pair.x;
            x[i + 1] = pair.y;
        }
    }
}

// Weights and rotation of a unit, made once for all heads of a thread. Of 16-bit types in one: what
// the first and the second element of each pair count for in either result, which saves each head a
// product per element. In float32 apart: a weight times a cosine may be subnormal where the result
// is not. A unit that does not rotate has its weights alone.
template <typename T, int kUnit, bool kIsNarrow = sizeof(T) == 2>
struct unit_factors {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    float a_in_a[kPairs], b_in_a[kPairs], a_in_b[kPairs], b_in_b[kPairs];

    __device__ __forceinline__ unit_factors(const unit_place &place,
                                            const unit_values<T, kUnit> &gain,
                                            const angle_values<kPairs> &angle)
    {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            a_in_a[i] = place.rotates ? gain.a[i] * angle.cosine[i] : gain.a[i];
            b_in_b[i] = place.rotates ? gain.b[i] * angle.cosine[i] : gain.b[i];
            a_in_b[i] = gain.a[i] * angle.sine[i];
            b_in_a[i] = gain.b[i] * -angle.sine[i];
        }
    }
    __device__ __forceinline__ void apply(const unit_place &place, unit_values<T, kUnit> &x) const
    {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            float a = x.a[i], b = x.b[i];
            x.a[i] = a * a_in_a[i];
            x.b[i] = b * b_in_b[i];
            if (place.rotates) {
                x.a[i] = fmaf(b, b_in_a[i], x.a[i]);
                x.b[i] = fmaf(a, a_in_b[i], x.b[i]);
            }
        }
    }
};

template <typename T, int kUnit>
struct unit_factors<T, kUnit, false> {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    unit_values<T, kUnit> gain;
    angle_values<kPairs> angle;

    __device__ __forceinline__ unit_factors(const unit_place &,
                                            const unit_values<T, kUnit> &unit_gain,
                                            const angle_values<kPairs> &unit_angle)
        : gain(unit_gain), angle(unit_angle)
    {
    }
    __device__ __forceinline__ void apply(const unit_place &place, unit_values<T, kUnit> &x) const
    {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            x.a[i] *= gain.a[i];
            x.b[i] *= gain.b[i];
        }
        if (place.rotates)
            rotate_pairs(x.a, x.b, angle);
    }
};

template <typename T, bool kRounds, int n>
__device__ __forceinline__ void scale_values(float scale, float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] *= scale;
    if constexpr (kRounds)
        round_values<T>(x);
}

// Scales, weights and rotates a unit as loaded, and writes it to the head at to.
template <typename T, int kUnit, bool kRounds>
__device__ __forceinline__ void write_unit(T *to, const unit_place &place,
                                           const unit_factors<T, kUnit> &factors, float scale,
                                           const unit_words<T, kUnit> &words)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    unit_values<T, kUnit> x;
    widen_unit<T, kUnit, true>(words, x.a, x.b);
    scale_values<T, kRounds>(scale, x.a);
    if (has_second<kUnit>(place))
        scale_values<T, kRounds>(scale, x.b);
    factors.apply(place, x);
    if constexpr (kUnit == kUnitGptj) {
        float both[2 * kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            both[2 * i] = x.a[i];
            both[2 * i + 1] = x.b[i];
        }
        store_floats(to + place.at, both);
    } else {
        store_floats(to + place.at, x.a);
        if (has_second<kUnit>(place))
            store_floats(to + place.second, x.b);
    }
}

// Writes units as they are.
template <typename T>
struct keeping_sink {
    static constexpr bool kMaySkip = false;
    T *to;

    __device__ __forceinline__ char *head(const char *, uint32_t, int) const
    {
        return reinterpret_cast<char *>(to);
    }
    template <typename, typename Word>
    __device__ __forceinline__ void rest(char *, int, int at, const Word &word) const
    {
        *reinterpret_cast<Word *>(to + at) = word;
    }
};

template <typename T, int kUnit>
__device__ __forceinline__ void keep_words(T *to, const unit_place &place,
                                           const unit_words<T, kUnit> &words)
{
    keep_unit<T, kUnit>(keeping_sink<T>{to}, nullptr, 0, 0, place, words);
}

template <bool isOn>
struct rounding_is {
    static constexpr bool kIsOn = isOn;
};

// write(rounding_is<...>) for whether x * scale is rounded to T before the weight.
template <typename T, bool kCommon = false, typename F>
__device__ __forceinline__ void with_rounding(const qk_args &args, const F &write)
{
    if (sizeof(T) == 2 && !kCommon && args.rounds_product)
        write(rounding_is<sizeof(T) == 2>{});
    else
        write(rounding_is<false>{});
}

// ------------------------------------------------------------------------------------ rows

// Address of a head, of q's then k's.
__device__ __forceinline__ const char *head_of(const rotate_args &args, uint32_t token, int head)
{
    bool is_k = head >= args.q_heads;
    const char *from = is_k ? args.from[1] : args.from[0];
    uint32_t token_bytes = is_k ? args.token_bytes[1] : args.token_bytes[0];
    return from + (uint64_t)token * token_bytes + (int64_t)head * args.head_bytes;
}

template <typename T>
__device__ __forceinline__ T *output_of(const qk_args &args, const char *from, bool is_k)
{
    return reinterpret_cast<T *>(const_cast<char *>(from) + (is_k ? args.to[1] : args.to[0]));
}

__device__ __forceinline__ const void *weight_of(const qk_args &args, bool is_k)
{
    return is_k ? args.weight[1] : args.weight[0];
}

__device__ __forceinline__ float exact_scale(const qk_args &args, double sum)
{
    return (float)rsqrt(fma(sum, args.exact_inverse_width, (double)args.eps));
}

// A sum over lanes threads of a warp, a power of two, the same bits in every one.
template <typename Acc>
__device__ __forceinline__ Acc sum_in_lanes(int lanes, Acc x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        if (distance < lanes)
            x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}

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
template <int kRows>
__device__ __forceinline__ head_run run_of(const qk_args &args)
{
    const rotate_args &rotate = args.rotate;
    int index = blockIdx.y * blockDim.y + threadIdx.y;
    head_run run;
    run.token = blockIdx.x * blockDim.z + threadIdx.z;
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
template <typename T, int kUnit, int kAngles, int kRows>
__device__ __noinline__ void write_heads_again(const qk_args &args)
{
    const rotate_args &rotate = args.rotate;
    head_run run = run_of<kRows>(args);
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
                write_unit<T, kUnit, decltype(rounding)::kIsOn>(output_of<T>(args, from, run.is_k),
                                                                place, factors, scale, words);
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
template <typename T, int kUnit, int kAngles, int kRows, bool kCommon>
__global__ void __launch_bounds__(kWalkThreads, kWalkBlocks<T>)
    qk_norm_kernel(const __grid_constant__ struct qk_args args)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    const rotate_args &rotate = args.rotate;
    head_run run = run_of<kRows>(args);
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
    let_next_start();
    if (kCommon || (run.n > 0 && place.rotates))
        angles_of<kAngles>(rotate.angles, token, position, place.first_pair, angle);
    unit_values<T, kUnit> gain;
    started_gains(args, weight, gain);
    unit_factors<T, kUnit> factors(place, gain, angle);
    float scale[kRows];
    if (!scales_of<T, kUnit, kCommon>(args, run, words, scale)) {
        write_heads_again<T, kUnit, kAngles, kRows>(args);
        return;
    }
    char *to = output_of<char>(args, from, run.is_k);
    auto write = [&](auto rounding) {
#pragma unroll
        for (int r = 0; r < kRows; r++)
            if (r < run.n)
                write_unit<T, kUnit, decltype(rounding)::kIsOn>(
                    reinterpret_cast<T *>(to + r * (int64_t)rotate.head_bytes), near, factors,
                    scale[r], words[r]);
    };
    with_rounding<T, kCommon>(args, write);
}

// ------------------------------------------------------------------------------------ several
// units

struct qk_group {
    int thread, threads;
    uint32_t token;
    int head;
    bool exists;
};

__device__ __forceinline__ qk_group group_of(const qk_args &args)
{
    qk_group group;
    uint32_t index = blockIdx.x * (blockDim.x >> args.lane_bits) + (threadIdx.x >> args.lane_bits);
    group.threads = 1 << args.lane_bits;
    group.thread = threadIdx.x & (group.threads - 1);
    group.token = index / (uint32_t)args.rotate.n_heads;
    group.head = (int)(index - group.token * (uint32_t)args.rotate.n_heads);
    group.exists = index < args.n_groups; // all threads take part in the sums
    return group;
}

// One head per group of up to a warp, which keeps it in registers.
template <typename T, int kUnit, int kUnits>
__global__ void __launch_bounds__(kMaxThreads, 2)
    qk_norm_units_kernel(const __grid_constant__ struct qk_args args)
{
    let_next_start();
    const rotate_args &rotate = args.rotate;
    qk_group group = group_of(args);
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
    auto write = [&](auto rounding) {
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
            unit_values<T, kUnit> gain;
            angle_values<rotate_unit<T, kUnit>::kPairs> angle;
            if (!exists[u])
                continue;
            if (is_kept) {
                keep_words(output_of<T>(args, from, is_k), place[u], words[u]);
                continue;
            }
            gains_of<T, kUnit>(args, is_k, place[u], gain);
            if (place[u].rotates)
                angles_of<kAnglesAny>(rotate.angles, group.token, 0, place[u].first_pair, angle);
            write_unit<T, kUnit, decltype(rounding)::kIsOn>(
                output_of<T>(args, from, is_k), place[u],
                unit_factors<T, kUnit>(place[u], gain, angle), scale, words[u]);
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

// One head per group of up to a block, which reads it twice: heads too wide for registers, and
// widths or pointers that 16 bytes do not divide.
template <typename T, int kUnit>
__global__ void __launch_bounds__(kMaxThreads)
    qk_norm_reread_kernel(const __grid_constant__ struct qk_args args)
{
    __shared__ float partial[kMaxThreads / 32];
    __shared__ double exact_partial[kMaxThreads / 32];
    let_next_start();
    const rotate_args &rotate = args.rotate;
    qk_group group = group_of(args);
    int units = rotate.rotating_units + rotate.rest_units;
    bool is_k = group.head >= rotate.q_heads;
    const char *from = head_of(rotate, group.token, group.head);
    wait_for_previous();

    float sum = read_squares<T, kUnit, float>(args, from, group, units);
    sum = sum_in_group(sum, partial, group.threads);
    float mean = fmaf(sum, args.inverse_width, args.eps);
    bool is_done = !group.exists || is_good(sum, mean);
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
    auto write = [&](auto rounding) {
        for (int u = group.thread; u < units; u += group.threads) {
            unit_words<T, kUnit> words = no_words<T, kUnit>();
            unit_values<T, kUnit> gain;
            angle_values<rotate_unit<T, kUnit>::kPairs> angle;
            unit_place place = place_of<T, kUnit>(rotate, u);
            load_unit<T, kUnit>(from, place, words);
            if (is_kept) {
                keep_words(output_of<T>(args, from, is_k), place, words);
                continue;
            }
            gains_of<T, kUnit>(args, is_k, place, gain);
            if (place.rotates)
                angles_of<kAnglesAny>(rotate.angles, group.token, 0, place.first_pair, angle);
            write_unit<T, kUnit, decltype(rounding)::kIsOn>(
                output_of<T>(args, from, is_k), place, unit_factors<T, kUnit>(place, gain, angle),
                scale, words);
        }
    };
    with_rounding<T>(args, write);
}
