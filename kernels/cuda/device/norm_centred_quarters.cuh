// norm_centred_quarters.cuh - the centred norm (norm_centred.cuh) of a few rows that its kernels of
// plain addresses do not take: four threads have a vector, as in norm_quarters.cuh, and what they
// add up are the same sums.
#pragma once

#include "cuda/device/norm_centred.cuh"
#include "cuda/device/norm_quarters.cuh"

// What the threads of a row tell each other: first those of a warp of shares, then all.
template <typename Acc>
struct centred_quarter_sums {
    quarter_shares<Acc> of_sum;
    quarter_shares<two_sums<Acc>> about;
    cluster_values<warp_sums<Acc>, 8 * kQuarterThreads / 32> of_row;

    // By each of the four warps that know mine.
    __device__ __forceinline__ two_sums<Acc> meet(const warp_sums<Acc> &mine, int n_warps,
                                                  float &mean)
    {
        if (gridDim.y > 1) {
            of_row.exchange_of_warp(mine);
        } else {
            if (threadIdx.x % 32 == 0)
                of_row.of_warp[threadIdx.x / 32] = mine;
            __syncthreads();
        }
        return sums_of_warps<Acc>(
            n_warps, lanes_of_warps(n_warps),
            [&](int warp) -> const auto & { return of_row.of_warp[4 * warp]; }, mean);
    }
};

// A row, in registers: elements that are not the row's are zeros.
template <typename K, int kVectors>
struct centred_quarters {
    static constexpr int kEach = K::kVec / 4;
    const norm_args &args;
    const quarters<K> &mine;
    float z[kVectors][kEach];

    template <typename Acc>
    __device__ __forceinline__ row_scale scale(centred_quarter_sums<Acc> &sums, bool &is_done) const
    {
        const int share = (int)(blockIdx.y * blockDim.x + threadIdx.x) / 4;
        const int n_shares = args.n_vectors, n_warps = (n_shares + 31) / 32;
        const row_threads<true> group{n_shares, share};
        const int n = n_warps == 1 ? (int)args.hidden : group.held_by_warp(args.hidden, K::kVec);
        Acc sum = 0;
#pragma unroll
        for (const auto &vector : z)
#pragma unroll
            for (float value : vector)
                sum += (Acc)value;
        warp_sums<Acc> known;
        known.n = (float)n;
        known.mean = (float)(sums.of_sum.sum_of_warp(sum) * inverse_of<Acc>(n));
        two_sums<Acc> about = {};
#pragma unroll
        for (int v = 0; v < kVectors; v++)
#pragma unroll
            for (int i = 0; i < kEach; i++) {
                const Acc off = mine.has(v, i) ? (Acc)z[v][i] - (Acc)known.mean : (Acc)0;
                about.first += off;
                about.second = fma(off, off, about.second);
            }
        known.about = sums.about.sum_of_warp(about);
        if (n_warps > 1)
            known.about = sums.meet(known, n_warps, known.mean);
        return scale_about(args, known.mean, known.about, is_done);
    }
};

// Weights, or biases, of either size; where there are none, nothing.
template <typename K, int kVectors>
__device__ __forceinline__ void load_weights(const quarters<K> &mine, const void *from,
                                             bool are_floats,
                                             uint32_t (&raw)[kVectors][K::kVec / 4])
{
    const char *weights = static_cast<const char *>(from);
    quarters<K> there = mine;
    if (!from)
        there.left = 0;
    if (are_floats)
        there.template load<4>(weights + there.first * 4, raw);
    else
        there.template load<2>(weights + there.first * 2, raw);
}

// All loads start together. A thread writes what it has read itself, x + residual at once.
template <typename K, int kVectors = kQuarterVectors>
__global__ void __launch_bounds__(kQuarterThreads)
    centred_quarters_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    constexpr int kEach = K::kVec / 4;
    __shared__ centred_quarter_sums<float> sums;
    __shared__ centred_quarter_sums<double> exact_sums;
    const int64_t row = blockIdx.x;
    const quarters<K> mine(args);
    const row_source<K> source = source_of<K>(args, row);
    const bool are_floats = has_float_weights<T>(args.weight_kind);
    const char *x = compute_now(source.x + mine.first * (int)sizeof(T)), *second = x;
    if constexpr (K::kAdds)
        second = compute_now(source.residual + mine.first * (int)sizeof(T));
    const void *weights = compute_now(weights_of<K>(args, args.weight, row));
    const void *biases = compute_now(weights_of<K>(args, args.bias, row));
    uint32_t raw[kVectors][kEach], raw_second[kVectors][kEach];
    uint32_t raw_weight[kVectors][kEach], raw_bias[kVectors][kEach];
    centred_quarters<K, kVectors> values{args, mine, {}};
    if (gridDim.y > 1) {
        sums.of_row.prepare();
        exact_sums.of_row.begin();
    }
    finish_before_wait(x, second, weights, biases, mine.left);
    wait_for_previous();
    let_next_start();
    mine.template load<(int)sizeof(T)>(x, raw);
    if constexpr (K::kAdds)
        mine.template load<(int)sizeof(T)>(second, raw_second);
    load_weights(mine, weights, are_floats, raw_weight);
    load_weights(mine, biases, are_floats, raw_bias);
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        auto &z = values.z[v];
        float other[kEach] = {};
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            z[i] = float_of<T>(raw[v][i]);
            if constexpr (K::kAdds)
                other[i] = float_of<T>(raw_second[v][i]);
        }
        take_elements<K>(args, z, other);
        if constexpr (K::kAdds)
            mine.store(static_cast<T *>(args.residual_out) + row * args.residual_out_pitch +
                           mine.first,
                       v, z);
    }
    bool is_done;
    row_scale scale = values.scale(sums, is_done);
    if (!is_done)
        scale = values.scale(exact_sums, is_done);
    T *to = static_cast<T *>(args.y) + row_at<K>(args, row, args.y_pitch) + mine.first;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        float gain[kEach], bias[kEach];
        if (!mine.has(v))
            continue;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            gain[i] = weights ? weight_of<T>(args.weight_kind, raw_weight[v][i]) : 1.0f;
            gain[i] += args.weight_bias;
            bias[i] = biases ? weight_of<T>(args.weight_kind, raw_bias[v][i]) : 0.0f;
        }
        finish_any<part_kind<K, K::kVec / 4>>(args, gain, bias, scale, values.z[v]);
        mine.store(to, v, values.z[v]);
    }
}
