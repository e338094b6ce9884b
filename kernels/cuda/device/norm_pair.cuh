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
// another type than x, are read twice, the second time from a cache.
//
// The result may take the place of an input: a thread writes only the elements that it has read
// itself, after the sum's last exchange.
#pragma once

#include "cuda/device/activation.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/device/quotient.cuh"
#include "ops/norm_pair.h"

#include <type_traits>

struct pair_args {
    struct norm_args norm; // residual: the second tensor
    uint32_t n_groups;     // of a row of the tensors
    divisor_of_index to_row;
    int32_t weight_bytes; // of a column
    int32_t activation;
    int32_t rounds_norm;  // bool
    int32_t rounds_scale; // bool; of NORM_ALONE
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

// From z of a vector to its result. The sum is not fused: it is that of what the norm gives.
template <typename K>
__device__ __forceinline__ void finish_pair(const pair_args &args, const float (&gain)[K::kVec],
                                            const row_scale &scale, const uint4 &second,
                                            float (&y)[K::kVec])
{
    using T = typename K::T;
    constexpr bool kIsNarrow = sizeof(T) == 2;
    float other[K::kVec];
    if (kIsNarrow && args.norm.rounds_product)
        finish_vector<K, kIsNarrow>(args.norm, gain, scale, y);
    else
        finish_vector<K, false>(args.norm, gain, scale, y);
    if constexpr (K::kPair == GATE_THEN_NORM || K::kPair == NORM_ALONE)
        return;
    if (kIsNarrow && args.rounds_norm)
        unpack<T>(pack<T>(y), y);
    unpack<T>(second, other);
    if constexpr (K::kPair == NORM_THEN_GATE)
        activate_gate(args.activation, other);
#pragma unroll
    for (int i = 0; i < K::kVec; i++)
        y[i] = K::kPair == NORM_THEN_ADD ? __fadd_rn(y[i], other[i]) : y[i] * other[i];
}

// ------------------------------------------------------------------------------------ registers

template <typename K, typename C, typename Acc>
__device__ __forceinline__ void share_of(const float (&z)[C::kVectors][K::kVec],
                                         Acc (&share)[C::kShares])
{
#pragma unroll
    for (int s = 0; s < C::kShares; s++) {
        square_sums<Acc> sums;
#pragma unroll
        for (int v = s; v < C::kVectors; v += C::kShares)
            sums.add(z[v]);
        share[s] = sums.total();
    }
}

// As scale_of of norm.cuh, from values that are in registers.
template <typename K, typename C>
__device__ __forceinline__ row_scale scale_of_values(const norm_args &args,
                                                     const float (&z)[C::kVectors][K::kVec])
{
    __shared__ float partial[C::kPartials];
    float share[C::kShares];
    share_of<K, C>(z, share);
    clear_missing<C>(partial);
    float sum = sum_in_group<C::kThreads>(share, partial, C::threads() / 32);
    float mean = fmaf(sum, args.inverse_hidden, args.eps);
    float scale = inverse_root(mean);
    bool is_done = is_good(sum, mean);
    if (C::kSharesWarp ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return {scale};
    double exact_share[C::kShares];
    share_of<K, C>(z, exact_share);
    float exact = exact_scale_of<C>(args, exact_share, 0);
    return {is_done ? scale : exact};
}

// Weights of a thread's vectors are started with the row's where registers hold both.
template <typename K, typename C>
__global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    pair_kernel(const __grid_constant__ struct pair_args args)
{
    using T = typename K::T;
    constexpr int kVectors = C::kVectors, kStarted = C::kStartsWeight ? kVectors : 1;
    // not of float16, which would spill more
    constexpr bool kUnpacksAgain =
        std::is_same_v<T, __nv_bfloat16> && K::kPair != GATE_THEN_NORM && kVectors > 2;
    const norm_args &norm = args.norm;
    row_part<K, C> part;
    raw_row<K, kVectors> raw;
    uint4 weights[kStarted];
    float z[kVectors][K::kVec];
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
            if constexpr (K::kAdds)
                raw.residual[v] = load_16_by<C::kKeeps>(policy, source.residual + at);
        }
    }
    auto load_weight = [&](int v) {
        uint4 raw_weight = no_weight<T>();
        if (has_gains && part.reads(v))
            raw_weight = load_16_by<C::kKeeps>(policy, gains + v * part.step() * (int)sizeof(T));
        return raw_weight;
    };
    if constexpr (C::kStartsWeight) {
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            weights[v] = load_weight(v);
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        unpack_pair(args, raw, v, z[v]);
    if constexpr (kUnpacksAgain) { // x as it came stays, in half of the registers
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            forget_words(raw.x[v]);
    }
    const row_scale scale = rounded_scale<K>(args, scale_of_values<K, C>(norm, z));
    if (C::kMayPart && part.to_write <= 0)
        return; // whole warps
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        float gain[K::kVec];
        unpack<T>(C::kStartsWeight ? weights[v % kStarted] : load_weight(v), gain);
        add_bias(norm, gain);
        if constexpr (kUnpacksAgain)
            unpack<T>(raw.x[v], z[v]);
        finish_pair<K>(args, gain, scale, raw.residual[K::kAdds ? v : 0], z[v]);
        if (part.writes(v))
            store_result<K, true>(norm, part.at + v * part.step(), K::kVec, z[v]);
    }
}

// ------------------------------------------------------------------------------------ memory

// One thread's share of a row's squares; source is that of the row.
template <typename K, bool kIsAligned, typename Acc>
__device__ __forceinline__ Acc read_pair_squares(const pair_args &args, const row_source<K> &source,
                                                 int64_t end, int thread, int threads)
{
    raw_row<K, 1> raw;
    square_sums<Acc> sums;
#pragma unroll 1
    for (int64_t i = thread * K::kVec; i < end; i += threads * K::kVec) {
        float z[K::kVec];
        load_into<K, kIsAligned>(raw, 0, source, i, end - i);
        unpack_pair(args, raw, 0, z);
        sums.add(z);
    }
    return sums.total();
}

// As find_scale of norm_staged.cuh. end: the row's elements, 0 where there is no row.
template <typename K, bool kIsAligned>
__device__ __forceinline__ row_scale reread_pair_scale(const pair_args &args,
                                                       const row_source<K> &source, int64_t end,
                                                       int thread, int threads)
{
    __shared__ float partial[32];
    __shared__ double exact_partial[32];
    const norm_args &norm = args.norm;
    float mean = 0;
    bool is_done = false;
    if (!norm.sums_in_double) {
        float sum = read_pair_squares<K, kIsAligned, float>(args, source, end, thread, threads);
        sum = sum_in_group(sum, partial, threads);
        mean = fmaf(sum, norm.inverse_hidden, norm.eps);
        is_done = is_good(sum, mean);
    }
    float scale = inverse_root(mean);
    if (threads < 32 ? !__all_sync(0xFFFFFFFFu, is_done) : !is_done) {
        double exact = read_pair_squares<K, kIsAligned, double>(args, source, end, thread, threads);
        exact = sum_in_group(exact, exact_partial, threads);
        scale = is_done ? scale : exact_scale(norm, exact);
    }
    return {scale};
}

template <typename K, bool kIsAligned>
__global__ void __launch_bounds__(1024)
    pair_reread_kernel(const __grid_constant__ struct pair_args args)
{
    let_next_start();
    wait_for_previous();
    const norm_args &norm = args.norm;
    const int threads = blockDim.x, thread = threadIdx.x;
    const int64_t row = row_of_block();
    int64_t end = row < norm.n_rows ? norm.hidden : 0;
    const pair_place place(args, row);
    const row_source<K> source = place.source<K>(norm, 0);
    const row_scale scale = rounded_scale<K>(
        args, reread_pair_scale<K, kIsAligned>(args, source, end, thread, threads));
    raw_row<K, 1> raw;
    for (int64_t i = thread * K::kVec; i < end; i += threads * K::kVec) {
        float y[K::kVec], gain[K::kVec];
        load_into<K, kIsAligned>(raw, 0, source, i, end - i);
        any_weights<typename K::T, kIsAligned>(norm, place.weights(args), 1.0f, i / K::kVec, gain);
        add_bias(norm, gain);
        unpack_pair(args, raw, 0, y);
        finish_pair<K>(args, gain, scale, raw.residual[0], y);
        store_result<K, kIsAligned>(norm, place.row * norm.y_pitch + place.column + i, end - i, y);
    }
}
