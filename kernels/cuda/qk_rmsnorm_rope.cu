// qk_rmsnorm_rope.cu - qk_rmsnorm_rope on a CUDA device: each head of q and k divided by its root
// mean square, weighted, rotated, in one pass: every byte is read once and written once.
//
// Lanes of a warp own a head, as many as its units (device/rotate.cuh) need with two vectors of 16
// bytes each: 8 lanes for 128 elements of bfloat16. They keep the head in registers as it came,
// add their squares, then each lane scales and rotates what it holds. A group of lanes walks up to
// four heads of one token at once, whose angles it needs once. Heads beyond 128 vectors, and
// heads that 16 bytes do not divide, are read twice, the second time from a cache, by a group
// that may be a block.
//
// The order of a head's sum follows from the head, its memory and the source of its angles, never
// from the number of tokens. Squares are summed in float32; where that overflows, or may have lost
// the sum to underflow, once more in double, as the CPU backend always does.
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/rotate_launch.cuh"
#include "ops/qk_rmsnorm_rope.h"

#include <float.h>

struct qk_args {
    struct rotate_args rotate;
    void *to[2];
    const void *weight[2];
    int32_t weight_dtype; // enum roped_dtype; ROPED_NO_DTYPE: weights are 1
    int32_t rounds_product;
    float eps;
    float weight_bias;
    float inverse_width;
    double exact_inverse_width;
    int64_t n_groups;   // tokens * groups of lanes per token
    int64_t head_lanes; // groups per token
    int32_t rows;       // heads per group, at most kRows
    int32_t lane_bits;  // log2 of lanes per group
};

// Below this mean square plus eps a sum of float32 squares may have lost bits to underflow.
constexpr float kTiny = 1e-30f;
constexpr int kMaxLanes = 32;    // of a group that keeps its heads in registers
constexpr int kMaxThreads = 256; // of a group that does not

// ------------------------------------------------------------------------------------ vectors

// n weights plus weight_bias, from element at of a head.
template <typename W, int n>
__device__ __forceinline__ void read_gains(const void *weight, int at, float bias, float (&gain)[n])
{
    const W *from = static_cast<const W *>(weight) + at;
    if constexpr (n == 1) {
        gain[0] = bias + element<W>::to_float(*from);
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
__device__ __forceinline__ void gains_of(const qk_args &args, bool is_k, int at, float (&gain)[n])
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

template <typename T, int kUnit, typename Acc>
__device__ __forceinline__ void add_squares(const unit_place &place,
                                            const row_words<T, kUnit> &words, Acc &sum)
{
    using unit = rotate_unit<T, kUnit>;
#pragma unroll
    for (int v = 0; v < unit::kVectors; v++) {
        float x[unit::kVec];
        if (v == 1 && !place.has_second)
            continue;
        widen_word<T, kUnit>(words.word[v], x);
#pragma unroll
        for (int i = 0; i < unit::kVec; i++)
            sum = fma((Acc)x[i], (Acc)x[i], sum);
    }
}

// Gains of both vectors of a unit.
template <typename T, int kUnit>
struct unit_gains {
    float gain[rotate_unit<T, kUnit>::kVectors][rotate_unit<T, kUnit>::kVec];
};

template <typename T, int kUnit>
__device__ __forceinline__ void load_gains(const qk_args &args, bool is_k, const unit_place &place,
                                           unit_gains<T, kUnit> &out)
{
    gains_of(args, is_k, place.at[0], out.gain[0]);
    if constexpr (rotate_unit<T, kUnit>::kVectors == 2)
        if (place.has_second)
            gains_of(args, is_k, place.at[1], out.gain[1]);
}

template <typename T, int n>
__device__ __forceinline__ void scale_vector(const qk_args &args, float scale,
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

template <typename T, int n>
__device__ __forceinline__ void store(void *to, int64_t at, const float (&x)[n])
{
    T *out = static_cast<T *>(to) + at;
    if constexpr (n == 1)
        *out = element<T>::from_float(x[0]);
    else
        *reinterpret_cast<uint4 *>(out) = pack<T>(x);
}

// Scales a unit as loaded, rotates it if it rotates, and writes it.
template <typename T, int kUnit>
__device__ __forceinline__ void
write_unit(const qk_args &args, const rotate_row &row, const unit_place &place,
           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
           const unit_gains<T, kUnit> &gains, float scale, const row_words<T, kUnit> &words)
{
    using unit = rotate_unit<T, kUnit>;
    void *to = row.is_k ? args.to[1] : args.to[0];
    float a[unit::kVec];
    widen_word<T, kUnit>(words.word[0], a);
    scale_vector<T>(args, scale, gains.gain[0], a);
    if constexpr (unit::kVectors == 2) {
        float b[unit::kVec];
        if (place.has_second) {
            widen_word<T, kUnit>(words.word[1], b);
            scale_vector<T>(args, scale, gains.gain[1], b);
        }
        if (place.rotates)
            rotate_halves(a, b, angle);
        if (place.has_second)
            store<T>(to, row.first + place.at[1], b);
    } else if (place.rotates) {
        rotate_neighbours(a, angle);
    }
    store<T>(to, row.first + place.at[0], a);
}

// ------------------------------------------------------------------------------------ groups

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

// 1 / sqrt(mean + eps) of each row. Several groups share a warp, and all of its lanes take part in
// a sum; a group whose own sum was good keeps it, for its neighbours must not change its bits.
template <typename T, int kUnit, int kUnits, int kRows>
__device__ __forceinline__ void
scales_of(const qk_args &args, const unit_place (&place)[kUnits], const bool (&is_mine)[kUnits],
          const rotate_row (&row)[kRows], const row_words<T, kUnit> (&words)[kRows][kUnits],
          float (&scale)[kRows])
{
    int lanes = 1 << args.lane_bits;
    float sum[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
        for (int u = 0; u < kUnits; u++)
            if (is_mine[u])
                add_squares<T, kUnit>(place[u], words[r][u], sum[r]);
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
            if (is_mine[u])
                add_squares<T, kUnit>(place[u], words[r][u], exact[r]);
    sum_rows(lanes, exact);
#pragma unroll
    for (int r = 0; r < kRows; r++)
        if (!is_row_done[r])
            scale[r] = exact_scale(args, exact[r]);
}

// a / b; both below 2^32 nearly always, where that takes twenty instructions.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b)
{
    if (((a | b) >> 32) == 0)
        return (uint32_t)a / (uint32_t)b;
    return a / b;
}

// ------------------------------------------------------------------------------------ kernels

// Blocks per multiprocessor that registers must leave room for: loads of one block overlap sums
// of another.
template <int kVectors, int kRows>
constexpr int kMinBlocks = kRows == 1      ? 4
                           : kVectors == 4 ? 1
                                           : 2;

template <typename T, int kUnit, int kAngles, int kVectors, int kRows>
__global__ void __launch_bounds__(ROTATE_THREADS, kMinBlocks<kVectors, kRows>)
    qk_rmsnorm_rope_kernel(const __grid_constant__ struct qk_args args)
{
    using unit = rotate_unit<T, kUnit>;
    constexpr int kUnits = kVectors / unit::kVectors;
    enter_stream();
    const rotate_args &rotate = args.rotate;
    int lanes = 1 << args.lane_bits, lane = threadIdx.x & (lanes - 1);
    int64_t group = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> args.lane_bits;
    int units = rotate.rotating_units + (rotate.rest_vectors + unit::kVectors - 1) / unit::kVectors;
    int64_t n_heads = rotate.heads[0] + rotate.heads[1];
    int64_t token = quotient(group, args.head_lanes);
    int64_t head = group - token * args.head_lanes;
    bool has_token = group < args.n_groups; // all threads take part in the sums

    unit_place place[kUnits];
    bool is_mine[kUnits];
    rotate_row row[kRows];
    row_words<T, kUnit> words[kRows][kUnits] = {};
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
        is_mine[u] = u * lanes + lane < units;
        place[u] = place_of<T, kUnit>(rotate, u * lanes + lane);
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
        int64_t at = head + r * args.head_lanes;
        row[r] = row_of(rotate, token, at, has_token && r < args.rows && at < n_heads);
#pragma unroll
        for (int u = 0; u < kUnits; u++)
            if (is_mine[u])
                load_row<T, kUnit>(rotate, row[r], place[u], words[r][u]);
    }

    angle_values<unit::kPairs> angle[kUnits];
    unit_gains<T, kUnit> gains[kUnits];
    if (row[0].exists) {
        int64_t position = 0;
        if (kAngles != kAnglesAny)
            position = position_of<true>(rotate.angles, token, 0);
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
            if (is_mine[u])
                load_gains<T, kUnit>(args, row[0].is_k, place[u], gains[u]);
            if (is_mine[u] && place[u].rotates)
                angles_of<kAngles>(rotate.angles, token, position, place[u].first_pair, angle[u]);
        }
    }
    float scale[kRows];
    scales_of<T, kUnit>(args, place, is_mine, row, words, scale);

#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
            if (!row[r].exists || !is_mine[u])
                continue;
            if (r > 0 && row[r].is_k != row[r - 1].is_k)
                load_gains<T, kUnit>(args, row[r].is_k, place[u], gains[u]);
            write_unit<T, kUnit>(args, row[r], place[u], angle[u], gains[u], scale[r], words[r][u]);
        }
}

// One thread's share of a head's squares, from memory.
template <typename T, int kUnit, typename Acc>
__device__ __forceinline__ Acc read_squares(const qk_args &args, const rotate_row &row, int units,
                                            int thread, int threads)
{
    Acc sum = 0;
    if (!row.exists)
        return sum;
#pragma unroll 1
    for (int u = thread; u < units; u += threads) {
        row_words<T, kUnit> words;
        unit_place place = place_of<T, kUnit>(args.rotate, u);
        load_row<T, kUnit>(args.rotate, row, place, words);
        add_squares<T, kUnit>(place, words, sum);
    }
    return sum;
}

// One head per group of up to a block, which reads it twice: heads too wide for registers, and
// widths or pointers that 16 bytes do not divide.
template <typename T, int kUnit>
__global__ void __launch_bounds__(kMaxThreads)
    qk_rmsnorm_rope_reread_kernel(const __grid_constant__ struct qk_args args)
{
    using unit = rotate_unit<T, kUnit>;
    __shared__ float partial[kMaxThreads / 32];
    __shared__ double exact_partial[kMaxThreads / 32];
    enter_stream();
    const rotate_args &rotate = args.rotate;
    int threads = 1 << args.lane_bits, thread = threadIdx.x & (threads - 1);
    int64_t group = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> args.lane_bits;
    int units = rotate.rotating_units + (rotate.rest_vectors + unit::kVectors - 1) / unit::kVectors;
    int64_t token = quotient(group, args.head_lanes);
    rotate_row row = row_of(rotate, token, group - token * args.head_lanes, group < args.n_groups);

    float sum = read_squares<T, kUnit, float>(args, row, units, thread, threads);
    sum = sum_in_group(sum, partial, threads);
    float mean = fmaf(sum, args.inverse_width, args.eps);
    bool is_done = is_good(sum, mean);
    float scale = __frsqrt_rn(mean);
    // a group beyond a warp is a block, whose threads agree
    if (threads < 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        double exact = read_squares<T, kUnit, double>(args, row, units, thread, threads);
        exact = sum_in_group(exact, exact_partial, threads);
        scale = is_done ? scale : exact_scale(args, exact);
    }
    if (!row.exists)
        return;
    for (int u = thread; u < units; u += threads) {
        row_words<T, kUnit> words;
        angle_values<unit::kPairs> angle;
        unit_gains<T, kUnit> gains;
        unit_place place = place_of<T, kUnit>(rotate, u);
        load_row<T, kUnit>(rotate, row, place, words);
        load_gains<T, kUnit>(args, row.is_k, place, gains);
        if (place.rotates)
            angles_of<kAnglesAny>(rotate.angles, token, 0, place.first_pair, angle);
        write_unit<T, kUnit>(args, row, place, angle, gains, scale, words);
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

static enum roped_status start_groups(struct qk_args *args, kernel_fn<qk_args> *kernel, int threads,
                                      struct roped_queue *queue, struct roped_error *err)
{
    int64_t groups = threads >> args->lane_bits;
    return start(queue, kernel, dim3((unsigned)threads), ceil_div(args->n_groups, groups), dim3(),
                 *args, err);
}

template <typename T, int kUnit>
static enum roped_status launch_reread(struct qk_args *args, int64_t units,
                                       struct roped_queue *queue, struct roped_error *err)
{
    int64_t lanes = at_most(units, kMaxThreads);
    args->lane_bits = bits_of(lanes);
    args->rows = 1;
    args->head_lanes = args->rotate.heads[0] + args->rotate.heads[1];
    args->n_groups = args->rotate.angles.rotary.n_tokens * args->head_lanes;
    int threads = lanes > 32 ? 1 << args->lane_bits : kMaxThreads; // beyond a warp: one group
    return start_groups(args, qk_rmsnorm_rope_reread_kernel<T, kUnit>, threads, queue, err);
}

// kVectors per lane and head; rows as many as leave every multiprocessor enough threads.
template <typename T, int kUnit, int kVectors>
static int choose_groups(struct qk_args *args, int64_t units, const struct roped_queue *queue)
{
    constexpr int kUnits = kVectors / rotate_unit<T, kUnit>::kVectors;
    int64_t n_tokens = args->rotate.angles.rotary.n_tokens;
    int64_t n_heads = args->rotate.heads[0] + args->rotate.heads[1];
    args->lane_bits = bits_of(ceil_div(units, kUnits));
    int64_t lanes = (int64_t)1 << args->lane_bits;
    args->rows = rows_per_thread(n_tokens, lanes, n_heads, 8 / kVectors, queue->n_multiprocessors);
    args->head_lanes = ceil_div(n_heads, args->rows);
    args->n_groups = n_tokens * args->head_lanes;
    return block_threads(args->n_groups * lanes, queue->n_multiprocessors);
}

template <typename T, int kUnit, int kAngles>
static kernel_fn<qk_args> *kernel_of(int rows)
{
    if (rows == 1) // decode: less code to fetch
        return qk_rmsnorm_rope_kernel<T, kUnit, kAngles, 2, 1>;
    return qk_rmsnorm_rope_kernel<T, kUnit, kAngles, 2, 4>;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct qk_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    using unit = rotate_unit<T, kUnit>;
    const struct rotate_args *rotate = &args->rotate;
    int64_t units = rotate->rotating_units + ceil_div(rotate->rest_vectors, unit::kVectors);
    if constexpr (kUnit != kUnitScalar) {
        int kind = angle_kind_of(&rotate->angles, unit::kPairs);
        bool is_narrow = units * unit::kVectors <= kMaxLanes * 2;
        if (is_narrow && kind != kAnglesAny) {
            int threads = choose_groups<T, kUnit, 2>(args, units, queue);
            return start_groups(args,
                                kind == kAnglesTable
                                    ? kernel_of<T, kUnit, kAnglesTable>(args->rows)
                                    : kernel_of<T, kUnit, kAnglesComputed>(args->rows),
                                threads, queue, err);
        }
        if (units * unit::kVectors <= kMaxLanes * 4) {
            int threads = choose_groups<T, kUnit, 4>(args, units, queue);
            return start_groups(args, qk_rmsnorm_rope_kernel<T, kUnit, kAnglesAny, 4, 2>, threads,
                                queue, err);
        }
    }
    return launch_reread<T, kUnit>(args, units, queue, err);
}

template <typename T>
static enum roped_status launch_type(struct qk_args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    struct rotate_args *rotate = &args->rotate;
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    bool has_vectors = can_use_vectors(rotary, rotate->head_dim, rotate->rotary_offset, kVec);
    for (int i = 0; i < 2; i++)
        has_vectors = has_vectors && is_aligned(rotate->from[i], 16) &&
                      is_aligned(args->to[i], 16) && is_aligned(args->weight[i], 16);
    if (!has_vectors) {
        rotate->rotating_units = (int32_t)rotary->n_pairs;
        return launch_units<T, kUnitScalar>(args, queue, err);
    }
    rotate->rest_vectors /= kVec;
    if (rotary->style == ROPE_GPTJ) {
        rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / kVec);
        return launch_units<T, kUnitGptj>(args, queue, err);
    }
    rotate->rotating_units = (int32_t)(rotary->n_pairs / kVec);
    return launch_units<T, kUnitNeox>(args, queue, err);
}

// rest_vectors starts as a count of elements; launch_type knows the width of a vector.
static struct qk_args args_of(const struct roped_call *call)
{
    const struct qk_rmsnorm_rope_plan *plan =
        reinterpret_cast<const struct qk_rmsnorm_rope_plan *>(call->plan);
    const struct rope_plan *rope = &plan->rope;
    struct qk_args args = {};
    args.rotate.angles = angle_args_of(call, &rope->rotary, QK_RMSNORM_ROPE_POSITIONS);
    args.rotate.heads[0] = rope->q_heads;
    args.rotate.heads[1] = rope->k_heads;
    args.rotate.head_dim = (int32_t)rope->head_dim;
    args.rotate.rotary_offset = (int32_t)rope->rotary_offset;
    args.rotate.rest_vectors = (int32_t)(rope->head_dim - 2 * rope->rotary.n_pairs);
    for (int i = 0; i < 2; i++) { // q, k
        args.rotate.from[i] = call->in[QK_RMSNORM_ROPE_Q + i].data;
        args.to[i] = call->out[QK_RMSNORM_ROPE_Q_OUT + i].data;
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
    enum roped_status status = check_head_width("q", plan->head_dim, err);
    if (status || plan->rotary.n_tokens == 0 || plan->q_heads + plan->k_heads == 0)
        return status;
    struct qk_args args = args_of(call);
    return with_float_type(call->in[QK_RMSNORM_ROPE_Q].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, queue, err);
    });
}
