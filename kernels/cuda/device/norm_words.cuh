// norm_words.cuh - norms without a mean (norm.cuh, norm_pair.cuh) of many rows at addresses that 16
// bytes do not divide, a block each, by words of one element or of two that lanes have side by
// side: nothing is shifted, and nothing waits in shared memory.
//
// Four threads have a vector, or two of words of two elements, each the elements of one or of two
// of the four sums of squares.cuh, as in norm_quarters.cuh; a thread has those of two or four
// shares of the sum.
#pragma once

#include "cuda/device/norm_packets.cuh"

// What a warp adds up of 32 shares, and a block of all: the sum of norm_quarters.cuh.
template <typename Acc>
struct word_sums {
    Acc of_share[512], of_warp[32];

    // Threads that are a power of two lanes have a share; its number in of.
    __device__ __forceinline__ void put(int share, Acc x, int threads)
    {
        for (int distance = 1; distance < threads; distance *= 2)
            x += exchange(x, distance);
        if (threadIdx.x % threads == 0)
            of_share[share] = x;
    }
    __device__ __forceinline__ Acc sum_of(int n_shares)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = n_shares / 32;
        __syncthreads();
        if (warp < n_warps) {
            const Acc x = sum_in_warp<32>(of_share[threadIdx.x]);
            if (lane == 0)
                of_warp[warp] = x;
        }
        __syncthreads();
        return sum_leaves(of_warp, n_warps);
    }
};

// A thread's words of a row: of kSlots vectors kEach each. It has so many shares, as far apart.
template <typename K, int kUnit, int kShares, int kSlots>
struct row_words : quarters<K> {
    using of_elements = quarters<K>;
    using T = typename K::T;
    using of_elements::has;
    static constexpr int kThreads = 4 / kUnit; // of a vector
    static constexpr int kEach = of_elements::kEach, n = kEach * kUnit;
    static_assert(K::kVec >= 4 * kUnit || kUnit == 1, "words of a vector");

    __device__ __forceinline__ explicit row_words(const norm_args &norm)
        : row_words(norm,
                    (int)threadIdx.x / kThreads * K::kVec + (int)threadIdx.x % kThreads * kUnit)
    {
    }
    __device__ __forceinline__ row_words(const norm_args &norm, int first)
        : of_elements(first, (int)norm.hidden - first, norm.n_shares / kShares * K::kVec)
    {
    }
    __device__ __forceinline__ void load(const char *from, uint32_t (&raw)[kSlots][kEach]) const
    {
        of_elements::template load<sizeof(T), kUnit * sizeof(T)>(from, raw);
    }
    static __device__ __forceinline__ void values(const uint32_t (&raw)[kEach], float (&x)[n])
    {
#pragma unroll
        for (int w = 0; w < kEach; w++) {
            if constexpr (kUnit == 2) {
                const float2 two = element<T>::to_float2(raw[w]);
                x[2 * w] = two.x;
                x[2 * w + 1] = two.y;
            } else {
                x[w] = float_of<T>(raw[w]);
            }
        }
    }
    __device__ __forceinline__ void store(T *to, int slot, const float (&y)[n]) const
    {
        to += (uint32_t)(slot * this->step);
#pragma unroll
        for (int w = 0; w < kEach; w++) {
            if (!has(slot, w))
                continue;
            if constexpr (kUnit == 2)
                *reinterpret_cast<uint32_t *>(to + 4 * w) =
                    element<T>::from_float2(y[2 * w], y[2 * w + 1]);
            else
                to[4 * w] = element<T>::from_float(y[w]);
        }
    }
};

// A thread has the words of two shares, of up to two vectors each. Its registers let three or four
// blocks of 512 threads find room, but of two inputs by words of two elements, which have most.
template <typename K, int kUnit>
constexpr int kWordRegisters = !K::kAdds    ? 48
                               : kUnit == 2 ? 64
                                            : 56;

template <typename K, typename Args, int kUnit, int kShares = 2>
__global__ void __maxnreg__((kWordRegisters<K, kUnit>))
    norm_words_kernel(const __grid_constant__ Args args)
{
    using T = typename K::T;
    constexpr int kSlots = 4;
    using words = row_words<K, kUnit, kShares, kSlots>;
    constexpr int n = words::n, kEach = words::kEach;
    constexpr bool kSumsBoth = is_sum_of_both<K, Args>, kIsPair = K::kAdds && !kSumsBoth;
    __shared__ word_sums<float> sums;
    __shared__ word_sums<double> exact_sums;
    const quarter_place<K> place(args, blockIdx.x);
    const norm_args &norm = place.norm;
    const words mine(norm);
    const int offset = mine.first * (int)sizeof(T);
    const char *x = compute_now(place.source.x + offset), *second = x, *weights = x;
    if constexpr (K::kAdds)
        second = compute_now(place.source.residual + offset);
    if (place.weights)
        weights = place.weights + offset;
    weights = compute_now(weights);
    let_next_start();
    wait_for_previous();
    uint32_t raw[kSlots][kEach], raw_second[K::kAdds ? kSlots : 1][kEach];
    mine.load(x, raw);
    if constexpr (K::kAdds)
        mine.load(second, raw_second);
    // of sums floats stay, of others what came
    float z[kSumsBoth ? kSlots : 1][n];
    const auto take = [&](int s, float(&of)[n]) {
        float other[n] = {};
        words::values(raw[s], of);
        if constexpr (kSumsBoth) {
            words::values(raw_second[s], other);
            take_elements<K>(args, of, other);
        }
    };
    const auto sum_of_squares = [&](auto &all) {
        using Acc = std::remove_reference_t<decltype(all.of_share[0])>;
#pragma unroll
        for (int i = 0; i < kShares; i++) {
            Acc part[kUnit] = {};
#pragma unroll
            for (int s = i; s < kSlots; s += kShares) {
                float of[n];
                if constexpr (kSumsBoth)
                    memcpy(of, z[s], sizeof of);
                else
                    take(s, of);
#pragma unroll
                for (int j = 0; j < n; j++)
                    part[j % kUnit] = fma((Acc)of[j], (Acc)of[j], part[j % kUnit]);
            }
            const Acc share = kUnit == 2 ? part[0] + part[kUnit - 1] : part[0];
            all.put((int)threadIdx.x / words::kThreads + i * (norm.n_shares / kShares), share,
                    words::kThreads);
        }
        return all.sum_of(norm.n_shares);
    };
    if constexpr (kSumsBoth) {
#pragma unroll
        for (int s = 0; s < kSlots; s++) {
            take(s, z[s]);
            if constexpr (std::is_same_v<Args, norm_args>)
                mine.store(static_cast<T *>(norm.residual_out) + place.sum_at + mine.first, s,
                           z[s]);
        }
    }
    const row_scale scale =
        rounded_scale<K>(args, scale_by(
                                   norm, false, [&] { return sum_of_squares(sums); },
                                   [&] { return sum_of_squares(exact_sums); }));
    T *const to = static_cast<T *>(norm.y) + place.at + mine.first;
    uint32_t raw_weight[kSlots][kEach];
    if (place.weights)
        mine.load(weights, raw_weight);
#pragma unroll
    for (int s = 0; s < kSlots; s++) {
        float gain[n], other[n] = {}, y[n];
        if (!mine.has(s))
            break;
#pragma unroll
        for (int j = 0; j < n; j++)
            gain[j] = 1.0f;
        if (place.weights)
            words::values(raw_weight[s], gain);
        if constexpr (kSumsBoth) {
            memcpy(y, z[s], sizeof y);
        } else {
#pragma unroll
            for (uint32_t &word : raw[s])
                word = compute_now(word); // as a float it would have waited for the sum
            words::values(raw[s], y);
        }
        if constexpr (kIsPair) {
            words::values(raw_second[s], other);
            take_elements<K>(args, y, other);
        }
        add_bias(norm, gain);
        finish_elements<K>(args, gain, scale, other, y);
        mine.store(to, s, y);
    }
}
