// norm_packets.cuh - norms without a mean (norm.cuh, norm_pair.cuh) of many rows at addresses that
// 16 bytes do not divide, a block each, by the packets that memory has (packet_row.cuh).
#pragma once

#include "cuda/device/packet_row.cuh"

// Is the second tensor needed for the sum, not for the result?
template <typename K, typename Args>
constexpr bool is_sum_of_both = K::kAdds;
template <typename K>
constexpr bool is_sum_of_both<K, pair_args> = K::kPair == GATE_THEN_NORM;

// Threads of a block of many rows, at most: of more, two would not find room on a multiprocessor.
template <bool kSumsBoth>
constexpr int kMostPacketThreads = kSumsBoth ? 512 : 640;

// Of up to two shares for each thread. partial has places for what all warps have, also behind a
// row's shares, 1,024 at most: those are zeros, and the sum of 32 places leaves none out.
template <typename Acc, typename Row>
__device__ __forceinline__ Acc sum_of_squares(const Row &row, Acc *partial)
{
    Acc share[2];
#pragma unroll
    for (int s = 0; s < 2; s++) {
        square_sums<Acc> squares;
        row.for_each(s, [&](const auto &z, int) { squares.add(z); });
        share[s] = squares.total();
    }
    if (row.norm.n_shares <= (int)blockDim.x)
        return sum_in_group(share[0], partial, (int)blockDim.x);
    return sum_in_group(share, partial, (int)blockDim.x);
}

template <typename K, typename Args>
__global__ void __maxnreg__((kPacketRegisters<is_sum_of_both<K, Args>>))
    norm_packets_kernel(const __grid_constant__ Args args)
{
    using T = typename K::T;
    using row_of = packet_row<K, is_sum_of_both<K, Args>>;
    constexpr int kPlaces = kMostPacketThreads<is_sum_of_both<K, Args>> / 16;
    __shared__ float partial[kPlaces];
    __shared__ double exact_partial[kPlaces];
    const quarter_place<K> place(args, blockIdx.x);
    const norm_args &norm = place.norm;
    const row_of row(norm, place.source);
    const packet_weights<T> weights[1] = {{norm, place.weights, row.first, row.last, 1.0f}};
    T *sums = nullptr;
    if constexpr (K::kAdds && std::is_same_v<Args, norm_args>)
        sums = static_cast<T *>(norm.residual_out) + place.sum_at - row.first;
    let_next_start();
    wait_for_previous();
    row.take(weights, sums, [&](auto &z, auto &other) { take_elements<K>(args, z, other); });
    const row_scale scale =
        rounded_scale<K>(args, scale_by(
                                   norm, false, [&] { return sum_of_squares(row, partial); },
                                   [&] { return sum_of_squares(row, exact_partial); }));
    row.write(weights, static_cast<T *>(norm.y) + place.at - row.first,
              [&](auto &gain, auto &other, auto &y) {
                  if constexpr (row_of::kNeedsLater)
                      take_elements<K>(args, y, other);
                  add_bias(norm, gain[0]);
                  finish_elements<K>(args, gain[0], scale, other, y);
              });
}
