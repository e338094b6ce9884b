// qk_rmsnorm_rope.cu - qk_rmsnorm_rope on a CUDA device: each head of q and k divided by its root
// mean square, weighted, rotated, in one pass: every byte is read once and written once.
//
// Lanes of a warp own a head, as many as its units (device/rotate.cuh) need with two vectors of 16
// bytes each: 8 lanes for 128 elements of bfloat16. They keep the head in registers as it came,
// add their squares, then each lane scales and rotates what it holds. In large work a group of
// lanes walks four heads of one token at once, whose angles it needs once. Heads beyond 128
// vectors, and heads that 16 bytes do not divide, are read twice, the second time from a cache, by
// a group that may be a block.
//
// The order of a head's sum follows from the head, its memory and the source of its angles, never
// from the number of tokens. Squares are summed in float32; where that overflows, or may have lost
// the sum to underflow, once more in double, as the CPU backend always does.
#include "cuda/device/reduce.cuh"
#include "cuda/rotate_launch.cuh"
#include "ops/qk_rmsnorm_rope.h"

#include <float.h>

struct qk_args {
    int64_t to[2];      // bytes from an input to its output
    uint32_t n_groups;  // of lanes: tokens * head_lanes
    int32_t head_lanes; // groups per token
    int32_t rows;       // heads per group, at most kRows
    int32_t lane_bits;  // log2 of the lanes of a group
    float eps;
    float inverse_width;
    const void *weight[2];
    int32_t weight_dtype; // enum roped_dtype; ROPED_NO_DTYPE: weights are 1
    float weight_bias;
    int32_t rounds_product;
    int32_t reserved;
    double exact_inverse_width;
    struct rotate_args rotate;
};

// Below this mean square plus eps a sum of float32 squares may have lost bits to underflow.
constexpr float kTiny = 1e-30f;
constexpr int kMaxLanes = 32;    // of a group that keeps its heads in registers
constexpr int kMaxThreads = 256; // of a group that does not

// ------------------------------------------------------------------------------------ units

// What a lane computes with: the first and second elements of a unit's pairs. A unit that does not
// rotate has as many, in the same places; b is unused where it has half as many.
template <typename T, int kUnit>
struct unit_values {
    static constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    float a[kPairs], b[kPairs];
};

// Half as many elements: 16 bytes of what does not rotate beside 32 of what does, or one beside
// two.
template <int kUnit>
__device__ __forceinline__ bool has_second(const unit_place &place)
{
    return kUnit == kUnitNeox || kUnit == kUnitGptj || place.rotates;
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
__device__ __forceinline__ void add_squares(const unit_words<T, kUnit> &words, Acc &sum)
{
    unit_values<T, kUnit> x;
    widen_unit<T, kUnit>(words, x.a, x.b);
#pragma unroll
    for (int i = 0; i < x.kPairs; i++) {
        sum = fma((Acc)x.a[i], (Acc)x.a[i], sum);
        sum = fma((Acc)x.b[i], (Acc)x.b[i], sum);
    }
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
        load_shared_floats(reinterpret_cast<const float *>(from), gain);
#pragma unroll
        for (int i = 0; i < n; i++)
            gain[i] += bias;
    } else {
        float word[n / 2];
        load_shared_floats(reinterpret_cast<const float *>(from), word);
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

// ------------------------------------------------------------------------------------ results

template <typename T, int n>
__device__ __forceinline__ void scale_values(const qk_args &args, float scale,
                                             const float (&gain)[n], float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        x[i] *= scale;
        if (sizeof(T) == 2 && args.rounds_product)
            x[i] = element<T>::to_float(element<T>::from_float(x[i]));
        x[i] *= gain[i];
    }
}

// Scales a unit as loaded, rotates it if it rotates, and writes it to the head at to.
template <typename T, int kUnit>
__device__ __forceinline__ void write_unit(const qk_args &args, T *to, const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const unit_values<T, kUnit> &gain, float scale,
                                           const unit_words<T, kUnit> &words)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    unit_values<T, kUnit> x;
    widen_unit<T, kUnit>(words, x.a, x.b);
    scale_values<T>(args, scale, gain.a, x.a);
    if (has_second<kUnit>(place))
        scale_values<T>(args, scale, gain.b, x.b);
    if (place.rotates)
        rotate_pairs(x.a, x.b, angle);
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

// ------------------------------------------------------------------------------------ groups

// One head of one token.
struct qk_row {
    const char *from;
    bool is_k;
    bool exists;
};

__device__ __forceinline__ qk_row row_of(const rotate_args &args, uint32_t token, int head,
                                         bool exists)
{
    bool is_k = head >= args.q_heads;
    const char *from = is_k ? args.from[1] : args.from[0];
    uint32_t token_bytes = is_k ? args.token_bytes[1] : args.token_bytes[0];
    return {from + (uint64_t)token * token_bytes + (int64_t)head * args.head_bytes, is_k, exists};
}

template <typename T>
__device__ __forceinline__ T *output_of(const qk_args &args, const qk_row &row)
{
    return reinterpret_cast<T *>(const_cast<char *>(row.from) +
                                 (row.is_k ? args.to[1] : args.to[0]));
}

// Is a sum of float32 squares good enough: no overflow (or NaN), no underflow that matters.
__device__ __forceinline__ bool is_good(float sum, float mean)
{
    return sum <= FLT_MAX && mean >= kTiny;
}

__device__ __forceinline__ float exact_scale(const qk_args &args, double sum)
{
    return (float)rsqrt(fma(sum, args.exact_inverse_width, (double)args.eps));
}

// Sums of kRows rows over the lanes of each group, the same bits in every lane.
template <int kRows, typename Acc>
__device__ __forceinline__ void sum_rows(int lanes, Acc (&sum)[kRows])
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
#pragma unroll
        for (int r = 0; r < kRows; r++)
            sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], distance);
}

// 1 / sqrt(mean + eps) of each row; words are 0 where a lane has no unit. Several groups share a
// warp, and all of its lanes take part in a sum; a group whose own sum was good keeps it, for its
// neighbours must not change its bits.
template <typename T, int kUnit, int kUnits, int kRows>
__device__ __forceinline__ void scales_of(const qk_args &args, const qk_row (&row)[kRows],
                                          const unit_words<T, kUnit> (&words)[kRows][kUnits],
                                          float (&scale)[kRows])
{
    int lanes = 1 << args.lane_bits;
    float sum[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
        for (int u = 0; u < kUnits; u++)
            add_squares<T, kUnit>(words[r][u], sum[r]);
    sum_rows(lanes, sum);
    bool is_done = true, is_row_done[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        float mean = fmaf(sum[r], args.inverse_width, args.eps);
        is_row_done[r] = !row[r].exists || is_good(sum[r], mean);
        is_done = is_done && is_row_done[r];
        scale[r] = __frsqrt_rn(mean);
    }
    if (__all_sync(0xFFFFFFFFu, is_done))
        return;
    double exact[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
        for (int u = 0; u < kUnits; u++)
            add_squares<T, kUnit>(words[r][u], exact[r]);
    sum_rows(lanes, exact);
#pragma unroll
    for (int r = 0; r < kRows; r++)
        if (!is_row_done[r])
            scale[r] = exact_scale(args, exact[r]);
}

// ------------------------------------------------------------------------------------ kernels

// Blocks per multiprocessor that registers must leave room for: loads of one block overlap sums
// of another.
template <int kAngles, int kRows>
constexpr int kMinBlocks = kAngles != kAnglesAny &&kRows == 1 ? 3 : 2;

template <typename T, int kUnit, int kAngles, int kUnits, int kRows>
__global__ void __launch_bounds__(ROTATE_THREADS, kMinBlocks<kAngles, kRows>)
    qk_rmsnorm_rope_kernel(const __grid_constant__ struct qk_args args)
{
    constexpr int kPairs = rotate_unit<T, kUnit>::kPairs;
    let_next_start();
    const rotate_args &rotate = args.rotate;
    int lanes = 1 << args.lane_bits, lane = threadIdx.x & (lanes - 1);
    uint32_t group = blockIdx.x * (blockDim.x >> args.lane_bits) + (threadIdx.x >> args.lane_bits);
    uint32_t token = group / (uint32_t)args.head_lanes;
    int head = (int)(group - token * (uint32_t)args.head_lanes);
    int units = rotate.rotating_units + rotate.rest_units;
    bool has_token = group < args.n_groups; // all threads take part in the sums

    unit_place place[kUnits];
    bool is_mine[kUnits];
    qk_row row[kRows];
    unit_words<T, kUnit> words[kRows][kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
        is_mine[u] = u * lanes + lane < units;
        place[u] = place_of<T, kUnit>(rotate, u * lanes + lane);
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        int h = head + r * args.head_lanes;
        row[r] = row_of(rotate, token, h, has_token && r < args.rows && h < rotate.n_heads);
        row[r].from = compute_now(row[r].from);
    }
    wait_for_previous();
    uint32_t position = 0;
    if (kAngles != kAnglesAny && row[0].exists)
        position = short_position_of(rotate.angles, token);
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
            words[r][u] = no_words<T, kUnit>();
            if (row[r].exists && is_mine[u])
                load_unit<T, kUnit>(row[r].from, place[u], words[r][u]);
        }
    unit_values<T, kUnit> gain[kUnits];
    angle_values<kPairs> angle[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; u++)
        if (row[0].exists && is_mine[u])
            gains_of<T, kUnit>(args, row[0].is_k, place[u], gain[u]);
#pragma unroll
    for (int u = 0; u < kUnits; u++)
        if (row[0].exists && is_mine[u] && place[u].rotates)
            angles_of<kAngles>(rotate.angles, token, position, place[u].first_pair, angle[u]);
    float scale[kRows];
    scales_of<T, kUnit>(args, row, words, scale);
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
            if (!row[r].exists || !is_mine[u])
                continue;
            if (r > 0 && row[r].is_k != row[r - 1].is_k)
                gains_of<T, kUnit>(args, row[r].is_k, place[u], gain[u]);
            write_unit<T, kUnit>(args, output_of<T>(args, row[r]), place[u], angle[u], gain[u],
                                 scale[r], words[r][u]);
        }
}

// One thread's share of a head's squares, from memory.
template <typename T, int kUnit, typename Acc>
__device__ __forceinline__ Acc read_squares(const qk_args &args, const qk_row &row, int units,
                                            int thread, int threads)
{
    Acc sum = 0;
    if (!row.exists)
        return sum;
#pragma unroll 1
    for (int u = thread; u < units; u += threads) {
        unit_words<T, kUnit> words = no_words<T, kUnit>();
        load_unit<T, kUnit>(row.from, place_of<T, kUnit>(args.rotate, u), words);
        add_squares<T, kUnit>(words, sum);
    }
    return sum;
}

// One head per group of up to a block, which reads it twice: heads too wide for registers, and
// widths or pointers that 16 bytes do not divide.
template <typename T, int kUnit>
__global__ void __launch_bounds__(kMaxThreads)
    qk_rmsnorm_rope_reread_kernel(const __grid_constant__ struct qk_args args)
{
    __shared__ float partial[kMaxThreads / 32];
    __shared__ double exact_partial[kMaxThreads / 32];
    let_next_start();
    const rotate_args &rotate = args.rotate;
    int threads = 1 << args.lane_bits, thread = threadIdx.x & (threads - 1);
    uint32_t group = blockIdx.x * (blockDim.x >> args.lane_bits) + (threadIdx.x >> args.lane_bits);
    uint32_t token = group / (uint32_t)args.head_lanes;
    int head = (int)(group - token * (uint32_t)args.head_lanes);
    int units = rotate.rotating_units + rotate.rest_units;
    qk_row row = row_of(rotate, token, head, group < args.n_groups);
    wait_for_previous();

    float sum = read_squares<T, kUnit, float>(args, row, units, thread, threads);
    sum = sum_in_group(sum, partial, threads);
    float mean = fmaf(sum, args.inverse_width, args.eps);
    bool is_done = !row.exists || is_good(sum, mean);
    float scale = __frsqrt_rn(mean);
    // a group beyond a warp is a block, whose threads agree
    if (threads <= 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        double exact = read_squares<T, kUnit, double>(args, row, units, thread, threads);
        exact = sum_in_group(exact, exact_partial, threads);
        scale = is_done ? scale : exact_scale(args, exact);
    }
    if (!row.exists)
        return;
    for (int u = thread; u < units; u += threads) {
        unit_words<T, kUnit> words = no_words<T, kUnit>();
        unit_values<T, kUnit> gain;
        angle_values<rotate_unit<T, kUnit>::kPairs> angle;
        unit_place place = place_of<T, kUnit>(rotate, u);
        load_unit<T, kUnit>(row.from, place, words);
        gains_of<T, kUnit>(args, row.is_k, place, gain);
        if (place.rotates)
            angles_of<kAnglesAny>(rotate.angles, token, 0, place.first_pair, angle);
        write_unit<T, kUnit>(args, output_of<T>(args, row), place, angle, gain, scale, words);
    }
}

// ------------------------------------------------------------------------------------ launchers

// Bits of the smallest power of two that is not below n.
static int bits_of(int64_t n)
{
    int bits = 0;
    while ((int64_t)1 << bits < n)
        bits++;
    return bits;
}

// Cuts tokens into groups of lanes that walk rows heads each.
static enum roped_status start_groups(struct qk_args *args, kernel_fn<qk_args> *kernel, int rows,
                                      int threads, struct roped_queue *queue,
                                      struct roped_error *err)
{
    int64_t head_lanes = ceil_div(args->rotate.n_heads, rows);
    int64_t n_groups = (int64_t)args->rotate.n_tokens * head_lanes;
    if (n_groups > UINT32_MAX - kMaxThreads)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'q': %lld heads in all, expected at most %lld on a CUDA device",
                          (long long)n_groups * rows, (long long)UINT32_MAX - kMaxThreads);
    args->rows = rows;
    args->head_lanes = (int32_t)head_lanes;
    args->n_groups = (uint32_t)n_groups;
    return start(queue, kernel, dim3((unsigned)threads),
                 ceil_div(n_groups, threads >> args->lane_bits), dim3(), *args, err);
}

// Units that a lane holds.
template <int kUnit>
constexpr int kFastUnits = kUnit == kUnitNeoxWide ? 1 : 2;
template <int kUnit>
constexpr int kAnyUnits = kUnit == kUnitNeoxWide ? 2 : 4;

// Heads in registers. Large work walks four heads per group, for the reasons that rope does.
template <typename T, int kUnit>
static enum roped_status launch_fast(struct qk_args *args, int kind, struct roped_queue *queue,
                                     struct roped_error *err)
{
    constexpr int kUnits = kFastUnits<kUnit>;
    const struct rotate_args *rotate = &args->rotate;
    int64_t units = rotate->rotating_units + rotate->rest_units;
    int64_t n_units = (int64_t)rotate->n_tokens * rotate->n_heads * units;
    int waves = kind == kAnglesTable ? ROTATE_TABLE_WAVES : ROTATE_WAVES;
    int rows =
        rotate->n_heads < ROTATE_ROWS ? 1 : rotate_rows(n_units, waves, queue->n_multiprocessors);
    args->lane_bits = bits_of(ceil_div(units, kUnits));
    kernel_fn<qk_args> *kernel;
    if (kind == kAnglesTable)
        kernel = rows == 1 ? qk_rmsnorm_rope_kernel<T, kUnit, kAnglesTable, kUnits, 1>
                           : qk_rmsnorm_rope_kernel<T, kUnit, kAnglesTable, kUnits, ROTATE_ROWS>;
    else
        kernel = rows == 1 ? qk_rmsnorm_rope_kernel<T, kUnit, kAnglesComputed, kUnits, 1>
                           : qk_rmsnorm_rope_kernel<T, kUnit, kAnglesComputed, kUnits, ROTATE_ROWS>;
    int64_t n_threads = ceil_div((int64_t)rotate->n_tokens * rotate->n_heads, rows)
                        << args->lane_bits;
    return start_groups(args, kernel, rows, block_threads(n_threads, queue->n_multiprocessors),
                        queue, err);
}

// Wider heads in registers, and every source of angles.
template <typename T, int kUnit>
static enum roped_status launch_any(struct qk_args *args, struct roped_queue *queue,
                                    struct roped_error *err)
{
    constexpr int kUnits = kAnyUnits<kUnit>;
    int64_t units = args->rotate.rotating_units + args->rotate.rest_units;
    args->lane_bits = bits_of(ceil_div(units, kUnits));
    return start_groups(args, qk_rmsnorm_rope_kernel<T, kUnit, kAnglesAny, kUnits, 1>, 1,
                        ROTATE_THREADS, queue, err);
}

template <typename T, int kUnit>
static enum roped_status launch_reread(struct qk_args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    int64_t units = args->rotate.rotating_units + args->rotate.rest_units;
    int64_t lanes = at_most(units, kMaxThreads);
    args->lane_bits = bits_of(lanes);
    int threads = lanes > 32 ? 1 << args->lane_bits : kMaxThreads; // beyond a warp: one group
    return start_groups(args, qk_rmsnorm_rope_reread_kernel<T, kUnit>, 1, threads, queue, err);
}

// kUnit holds vectors, and a head's units fit a warp of launch_any.
template <typename T, int kUnit>
static enum roped_status launch_vectors(struct qk_args *args, struct roped_queue *queue,
                                        struct roped_error *err)
{
    int kind = angle_kind_of(&args->rotate.angles, rotate_unit<T, kUnit>::kPairs);
    int64_t units = args->rotate.rotating_units + args->rotate.rest_units;
    if constexpr (kUnit != kUnitNeox)
        if (kind != kAnglesAny && units <= kFastUnits<kUnit> * kMaxLanes)
            return launch_fast<T, kUnit>(args, kind, queue, err);
    return launch_any<T, kUnit>(args, queue, err);
}

// rest_units starts as a count of elements.
template <typename T>
static enum roped_status launch_type(struct qk_args *args, int64_t head_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct rotate_args *rotate = &args->rotate;
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    int64_t n_vectors = head_dim / kVec;
    bool has_vectors = can_use_vectors(rotary, head_dim, rotate->rotary_offset, kVec);
    for (int i = 0; i < 2; i++)
        has_vectors = has_vectors && is_aligned(rotate->from[i], 16) && args->to[i] % 16 == 0 &&
                      is_aligned(args->weight[i], 16);
    rotate->rotating_units = (int32_t)rotary->n_pairs;
    if (!has_vectors)
        return launch_reread<T, kUnitScalar>(args, queue, err);
    rotate->rest_units /= kVec;
    rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / kVec);
    if (rotary->style == ROPE_GPTJ)
        return n_vectors <= kAnyUnits<kUnitGptj> * kMaxLanes
                   ? launch_vectors<T, kUnitGptj>(args, queue, err)
                   : launch_reread<T, kUnitGptj>(args, queue, err);
    if (n_vectors > kAnyUnits<kUnitNeox> * kMaxLanes)
        return launch_reread<T, kUnitNeox>(args, queue, err);
    // a unit that does not rotate is one vector, of two that a wide one has room for
    int64_t wide_units = rotate->rotating_units / 2 + rotate->rest_units;
    if (rotary->n_pairs % kVec != 0 || wide_units > kAnyUnits<kUnitNeoxWide> * kMaxLanes)
        return launch_vectors<T, kUnitNeox>(args, queue, err);
    rotate->rotating_units /= 2;
    return launch_vectors<T, kUnitNeoxWide>(args, queue, err);
}

static struct qk_args args_of(const struct roped_call *call)
{
    const struct qk_rmsnorm_rope_plan *plan =
        reinterpret_cast<const struct qk_rmsnorm_rope_plan *>(call->plan);
    const struct rope_plan *rope = &plan->rope;
    const int64_t heads[2] = {rope->q_heads, rope->k_heads};
    const struct roped_tensor *in = &call->in[QK_RMSNORM_ROPE_Q];
    const struct roped_tensor *out = &call->out[QK_RMSNORM_ROPE_Q_OUT];
    struct qk_args args = {};
    struct rotate_args *rotate = &args.rotate;
    rotate->angles = angle_args_of(call, &rope->rotary, QK_RMSNORM_ROPE_POSITIONS);
    set_rotate_tensors(rotate, in[0].data, in[1].data, heads, rope->head_dim,
                       roped_dtype_bytes(in->dtype));
    rotate->rotary_offset = (int32_t)rope->rotary_offset;
    rotate->rest_units = (int32_t)(rope->head_dim - 2 * rope->rotary.n_pairs);
    for (int i = 0; i < 2; i++) { // q, k
        args.to[i] = (int64_t)((uintptr_t)out[i].data - (uintptr_t)in[i].data);
        args.weight[i] = call->in[QK_RMSNORM_ROPE_Q_WEIGHT + i].data;
    }
    args.weight_dtype = plan->weight_dtype;
    args.rounds_product = plan->rounding == RMSNORM_ROUND_HF;
    args.eps = plan->eps;
    args.weight_bias = plan->weight_bias;
    args.exact_inverse_width = 1.0 / (double)rope->head_dim;
    args.inverse_width = (float)args.exact_inverse_width;
    return args;
}

extern "C" enum roped_status roped_cuda_qk_rmsnorm_rope(const struct roped_call *call,
                                                        struct roped_queue *queue,
                                                        struct roped_error *err)
{
    const struct rope_plan *plan =
        &reinterpret_cast<const struct qk_rmsnorm_rope_plan *>(call->plan)->rope;
    int64_t n_heads = plan->q_heads + plan->k_heads;
    enum roped_status status =
        check_rotate_limits("q", plan->rotary.n_tokens, n_heads, plan->head_dim, err);
    if (status || plan->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    struct qk_args args = args_of(call);
    return with_float_type(call->in[QK_RMSNORM_ROPE_Q].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, plan->head_dim, queue, err);
    });
}
