// norm_pair.cuh - RMS norms that read a second tensor of rows beside x, a residual or a gate:
//
//     norm(x) + residual    norm(x * act(gate))    norm(x) * act(gate)
//
// and of those that read none, but have heads or a rounded scale: norm(x).
//
// A row may be cut into groups of columns, each of which is normalised as a row of its own with its
// part of the weights; below a row is such a group. Threads, vectors and the order of the sum are
// those of norm.cuh, so that the norm has its bits. Rows of up to 4,096 vectors of 16 bytes are
// read once and kept in registers; wider ones, and those at other addresses or with weights of
// another type than x, wait in shared memory (norm_pair_staged.cuh).
//
// The result may take the place of an input: a thread writes only the elements that it has read
// itself, after the sum's last exchange.
#pragma once

#include "cuda/device/activation.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/device/quotient.cuh"
#include "ops/norm_pair.h"

struct pair_args {
    struct norm_args norm; // residual: the second tensor
    uint32_t n_groups;     // of a row of the tensors
    divisor_of_index to_row;
    int32_t weight_bytes; // of a column
    int32_t activation;
    int32_t rounds_norm;  // bool
    int32_t rounds_scale; // bool; of NORM_ALONE
    // of rows in shared memory: from a vector of a thread to its next; shares of a row's block, or
    // its threads
    int32_t step, of_block;
};

// One kind: the type of x, and what is done with the second tensor.
template <typename Element, norm_pair kOf>
struct pair_kind {
    using T = Element;
    static constexpr int kVec = kVecOf<T>;
    static constexpr bool kAdds = kOf != NORM_ALONE; // a second tensor is loaded
    static constexpr bool kRoundsSum = false;
    static constexpr bool kHasTerms = false, kIsAny = false;
    static constexpr norm_sink kSink = kToFloats;
    static constexpr norm_pair kPair = kOf;
};

// Where a row is: that of the tensors, and its first column.
struct pair_place {
    int64_t row, column;

    __device__ __forceinline__ pair_place(const pair_args &args, int64_t group)
    {
        row = group;
        column = 0;
        if (args.n_groups > 1) {
            row = quotient((uint32_t)group, args.to_row);
            column = (group - row * args.n_groups) * args.norm.hidden;
        }
    }
    template <typename K>
    __device__ __forceinline__ row_source<K> source(const norm_args &args, int64_t first) const
    {
        return {args, row * args.x_pitch + column + first,
                row * args.residual_pitch + column + first};
    }
    __device__ __forceinline__ const char *weights(const pair_args &args) const
    {
        const char *from = static_cast<const char *>(args.norm.weight);
        return from ? from + column * args.weight_bytes : nullptr;
    }
};

// Only the two that gates have.
template <int n>
__device__ __forceinline__ void activate_gate(int activation, float (&gate)[n])
{
    if (activation == ACT_SIGMOID) {
#pragma unroll
        for (float &g : gate)
            g = sigmoid(g);
    } else {
#pragma unroll
        for (float &g : gate)
            g = silu(g);
    }
}

// What is normalised of a vector, in float32.
template <typename K, int kVectors>
__device__ __forceinline__ void unpack_pair(const pair_args &args, const raw_row<K, kVectors> &raw,
                                            int v, float (&z)[K::kVec])
{
    unpack<typename K::T>(raw.x[v], z);
    if constexpr (K::kPair == GATE_THEN_NORM) {
        float gate[K::kVec];
        unpack<typename K::T>(raw.residual[v], gate);
        activate_gate(args.activation, gate);
#pragma unroll
        for (int i = 0; i < K::kVec; i++)
            z[i] *= gate[i];
    }
}

template <typename K>
__device__ __forceinline__ row_scale rounded_scale(const pair_args &args, row_scale row)
{
    using E = element<typename K::T>;
    if (K::kPair == NORM_ALONE && args.rounds_scale)
        row.scale = E::to_float(E::from_float(row.scale));
    return row;
}

// What a vector of the second tensor adds to the norm, or multiplies it by.
template <typename K>
__device__ __forceinline__ void unpack_second(const pair_args &args, const uint4 &second,
                                              float (&other)[K::kVec])
{
    if constexpr (K::kPair == NORM_THEN_ADD || K::kPair == NORM_THEN_GATE)
        unpack<typename K::T>(second, other);
    if constexpr (K::kPair == NORM_THEN_GATE)
        activate_gate(args.activation, other);
}

// From z of a vector to its result. The sum is not fused: it is that of what the norm gives.
template <typename K>
__device__ __forceinline__ void finish_pair(const pair_args &args, const float (&gain)[K::kVec],
                                            const row_scale &scale, const float (&other)[K::kVec],
                                            float (&y)[K::kVec])
{
    using T = typename K::T;
    constexpr bool kIsNarrow = sizeof(T) == 2;
    if (kIsNarrow && args.norm.rounds_product)
        finish_vector<K, kIsNarrow>(args.norm, gain, scale, y);
    else
        finish_vector<K, false>(args.norm, gain, scale, y);
    if constexpr (K::kPair == GATE_THEN_NORM || K::kPair == NORM_ALONE)
        return;
    if (kIsNarrow && args.rounds_norm)
        round_to<T>(y);
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] = K::kPair == NORM_THEN_ADD ? __fadd_rn(y[i], other[i]) : y[i] * other[i];
}

// ------------------------------------------------------------------------------------ registers

// What is normalised of a thread's vectors: as floats, or unpacked again from what came from
// memory, in half of the registers, where a thread has many and nothing is to be computed.
template <typename K, typename C>
struct pair_values {
    using T = typename K::T;
    static constexpr int kVectors = C::kVectors;
    static constexpr bool kHoldsFloats =
        K::kPair == GATE_THEN_NORM || sizeof(T) == 4 || kVectors <= 2;
    raw_row<K, kVectors> raw;
    float z[kHoldsFloats ? kVectors : 1][K::kVec];

    __device__ __forceinline__ void take(const pair_args &args)
    {
        if constexpr (kHoldsFloats) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                unpack_pair(args, raw, v, z[v]);
        }
    }
    // kAgain: by other instructions than before, so that floats are not kept.
    template <bool kAgain>
    __device__ __forceinline__ void get(int v, float (&x)[K::kVec]) const
    {
        if constexpr (kHoldsFloats) {
#pragma unroll
            for (int i = 0; i < K::kVec; i++)
                x[i] = z[v][i];
        } else {
            unpack<T, kAgain>(raw.x[v], x);
        }
    }
    // What was unpacked is not kept for the next time.
    __device__ __forceinline__ void forget()
    {
        if constexpr (!kHoldsFloats) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                forget_words(raw.x[v]);
        }
    }
    template <typename Acc>
    __device__ __forceinline__ void share_squares(Acc (&share)[C::kShares])
    {
#pragma unroll
        for (int s = 0; s < C::kShares; s++) {
            square_sums<Acc> sums;
#pragma unroll
            for (int v = s; v < kVectors; v += C::kShares) {
                float x[K::kVec];
                get<false>(v, x);
                sums.add(x);
            }
            share[s] = sums.total();
        }
        forget();
    }
};

// As scale_of of norm.cuh, from values that are in registers.
template <typename K, typename C>
__device__ __forceinline__ row_scale scale_of_values(const norm_args &args,
                                                     pair_values<K, C> &values)
{
    __shared__ float partial[C::kPartials];
    float share[C::kShares];
    values.share_squares(share);
    clear_missing<C>(partial);
    float sum = sum_in_group<C::kThreads>(share, partial, C::threads() / 32);
    float mean = fmaf(sum, args.inverse_hidden, args.eps);
    float scale = inverse_root(mean);
    bool is_done = is_good(sum, mean);
    if (C::kSharesWarp ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return {scale};
    double exact_share[C::kShares];
    values.share_squares(exact_share);
    float exact = exact_scale_of<C>(args, exact_share, 0);
    return {is_done ? scale : exact};
}

// Weights of a thread's vectors are started with the row's where registers hold both.
// C::kIsSecondLate: the second tensor, which is not normalised, has no registers, and comes to L2
// meanwhile.
template <typename K, typename C>
__global__ void __launch_bounds__(C::kBound, C::kMinBlocks)
    pair_kernel(const __grid_constant__ struct pair_args args)
{
    using T = typename K::T;
    constexpr int kVectors = C::kVectors, kStarted = C::kStartsWeight ? kVectors : 1;
    const norm_args &norm = args.norm;
    row_part<K, C> part;
    pair_values<K, C> values;
    raw_row<K, kVectors> &raw = values.raw;
    uint4 weights[kStarted];
    part.thread = threadIdx.x % C::kThreads;
    part.row = (int64_t)blockIdx.x * C::kGroups + threadIdx.x / C::kThreads;
    const int first = part.thread * K::kVec;
    const pair_place place(args, part.row);
    part.at = compute_now(place.row * norm.y_pitch + place.column + first);
    part.to_read = part.row < norm.n_rows ? norm.n_vectors - part.thread : 0;
    part.share_out();
    row_source<K> source = place.source<K>(norm, first);
    const char *gains = place.weights(args);
    const bool has_gains = gains != nullptr;
    gains = compute_now(has_gains ? gains + first * (int)sizeof(T) : source.x);
    part.find_now();
    source.find_now();
    const uint64_t policy = policy_to_keep();
    finish_before_wait(source.x, source.residual, gains, part.to_read, part.to_write);
    wait_for_previous();
    let_next_start();
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        const int at = v * part.step() * (int)sizeof(T);
        clear<K>(raw, v);
        if (part.reads(v)) {
            raw.x[v] = load_16_by<C::kKeeps>(policy, source.x + at);
            if constexpr (K::kAdds && C::kIsSecondLate)
                prefetch_to_l2(source.residual + at);
            else if constexpr (K::kAdds)
                raw.residual[v] = load_16_by<C::kKeeps>(policy, source.residual + at);
        }
    }
    if constexpr (C::kStartsWeight) {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            weights[v] = no_weight<T>();
            if (has_gains && part.reads(v))
                weights[v] =
                    load_16_by<C::kKeeps>(policy, gains + v * part.step() * (int)sizeof(T));
        }
    }
    values.take(args);
    const row_scale scale = rounded_scale<K>(args, scale_of_values<K, C>(norm, values));
    if (C::kMayPart && part.to_write <= 0)
        return; // whole warps
    auto finish = [&](int v, const uint4 &weight, const uint4 &second) {
        float gain[K::kVec], other[K::kVec], y[K::kVec];
        unpack<T>(weight, gain);
        add_bias(norm, gain);
        values.template get<true>(v, y);
        unpack_second<K>(args, second, other);
        finish_pair<K>(args, gain, scale, other, y);
        if (part.writes(v))
            store_result<K, true>(norm, part.at + v * part.step(), K::kVec, y);
    };
    if constexpr (!C::kStartsWeight) {
        constexpr int kAtOnce = 2; // vectors whose loads no store, and no branch, comes between
        static_assert(kVectors % kAtOnce == 0, "no vector is left over");
#pragma unroll
        for (int first = 0; first < kVectors; first += kAtOnce) {
            uint4 weight[kAtOnce], second[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; i++) {
                const int v = first + i;
                const int at = part.reads(v) ? v * part.step() * (int)sizeof(T) : 0;
                if constexpr (C::kIsSecondLate)
                    second[i] = load_16_by<C::kKeeps>(policy, source.residual + at);
                else
                    second[i] = raw.residual[K::kAdds ? v : 0];
                weight[i] = load_16_by<C::kKeeps>(policy, gains + at);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; i++)
                finish(first + i, has_gains ? weight[i] : no_weight<T>(), second[i]);
        }
    } else {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            if (kVectors > 2 && !part.writes(v)) // often of whole warps
                continue;
            finish(v, weights[v], raw.residual[K::kAdds ? v : 0]);
        }
    }
}

// ------------------------------------------------------------------------------------ few rows

// A row, or a few that a warp sums with four vectors for each lane: there are more threads than
// have to sum, and others write the row, a vector each, of which all but the norm is ready when the
// sum is there. The sum is that of n_shares threads.
constexpr int kSumWarps = 16, kSumVectors = 4; // at most, and of a thread

// Those that are not there are zeros. Nobody reads partial any more.
template <typename Acc>
__device__ __forceinline__ void post_sum(Acc share, int threads, Acc (&partial)[kSumWarps])
{
    const int warp = threadIdx.x / 32;
    const Acc sum = sum_in_warp<32>(share);
    if (threadIdx.x % 32 == 0)
        partial[warp] = sum;
    if (threadIdx.x < kSumWarps && threadIdx.x * 32 >= threads)
        partial[threadIdx.x] = Acc{};
}

// Of the sums, behind a barrier.
struct few_scale {
    bool is_done;
    float scale;

    __device__ __forceinline__ few_scale(const norm_args &args, const float (&partial)[kSumWarps])
    {
        const float sum = sum_tree<kSumWarps>(partial);
        const float mean = fmaf(sum, args.inverse_hidden, args.eps);
        is_done = is_good(sum, mean);
        scale = inverse_root(mean);
    }
};

template <typename K>
__device__ __forceinline__ void sum_few(const pair_args &args, const pair_place &place,
                                        float (&partial)[kSumWarps], double (&exact)[kSumWarps])
{
    const norm_args &norm = args.norm;
    const int threads = norm.n_shares, thread = threadIdx.x;
    const int to_read = compute_now(thread < threads ? norm.n_vectors - thread : 0);
    const char *from = compute_now(place.source<K>(norm, thread * K::kVec).x);
    float z[kSumVectors][K::kVec];
    uint4 raw[kSumVectors];
    square_sums<float> squares;
    finish_before_wait(from, to_read);
    wait_for_previous();
    let_next_start();
#pragma unroll
    for (int v = 0; v < kSumVectors; v++) {
        raw[v] = make_uint4(0, 0, 0, 0);
        if (v * threads < to_read)
            raw[v] = load_16(from + v * threads * 16);
    }
#pragma unroll
    for (int v = 0; v < kSumVectors; v++) {
        unpack<typename K::T>(raw[v], z[v]);
        squares.add(z[v]);
    }
    post_sum(squares.total(), threads, partial);
    __syncthreads();
    if (few_scale(norm, partial).is_done)
        return;
    square_sums<double> exact_squares;
#pragma unroll
    for (int v = 0; v < kSumVectors; v++)
        exact_squares.add(z[v]);
    post_sum(exact_squares.total(), threads, exact);
    __syncthreads();
}

template <typename K>
__device__ __forceinline__ void write_few(const pair_args &args, const pair_place &place,
                                          int first_thread, const float (&partial)[kSumWarps],
                                          const double (&exact)[kSumWarps])
{
    using T = typename K::T;
    const norm_args &norm = args.norm;
    const int vector = blockIdx.y * (blockDim.x - first_thread) + threadIdx.x - first_thread;
    const bool is_there = compute_now((int)(vector < norm.n_vectors));
    const int64_t at = place.row * norm.y_pitch + place.column + vector * K::kVec;
    row_source<K> source = place.source<K>(norm, vector * K::kVec);
    const char *weights = place.weights(args);
    const bool has_weights = weights != nullptr;
    weights = compute_now(has_weights ? weights + vector * 16 : source.x);
    T *to = static_cast<T *>(norm.y) + at;
    float y[K::kVec], gain[K::kVec], other[K::kVec];
    uint4 x = {}, second = {}, weight = no_weight<T>();
    source.find_now();
    finish_before_wait(source.x, source.residual, weights, to);
    wait_for_previous();
    let_next_start();
    if (is_there) {
        x = load_16(source.x);
        if constexpr (K::kAdds)
            second = load_16(source.residual);
        if (has_weights)
            weight = load_16(weights);
    }
    unpack<T>(x, y);
    unpack<T>(weight, gain);
    add_bias(norm, gain);
    unpack_second<K>(args, second, other);
    __syncthreads();
    const few_scale found(norm, partial);
    row_scale scale = {found.scale};
    if (!found.is_done) {
        __syncthreads();
        scale.scale = exact_scale(norm, sum_tree<kSumWarps>(exact));
    }
    finish_pair<K>(args, gain, rounded_scale<K>(args, scale), other, y);
    if (is_there)
        *reinterpret_cast<uint4 *>(to) = pack<T>(y);
}

template <typename K>
__global__ void __launch_bounds__(1024)
    pair_few_kernel(const __grid_constant__ struct pair_args args)
{
    __shared__ alignas(16) float partial[kSumWarps];
    __shared__ alignas(16) double exact[kSumWarps];
    const pair_place place(args, blockIdx.x);
    const int first_thread = args.norm.n_shares; // that writes
    if ((int)threadIdx.x < first_thread)
        sum_few<K>(args, place, partial, exact);
    else
        write_few<K>(args, place, first_thread, partial, exact);
}
