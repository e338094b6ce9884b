// norm_centred_packets.cuh - the centred norm (norm_centred.cuh) of many rows at addresses that 16
// bytes do not divide, a block each, by the packets that memory has (packet_row.cuh).
#pragma once

#include "cuda/device/norm_centred.cuh"
#include "cuda/device/norm_packets.cuh"

// Of the row that waits in shared memory, by threads of which each has two shares at most.
template <typename K>
__global__ void __maxnreg__(kPacketRegisters<K::kAdds>)
    centred_packets_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    const int64_t of_block = blockIdx.x;
    const packet_row<K, K::kAdds> row(args, source_of<K>(args, of_block));
    const row_threads<true, 2> group{args.n_shares, (int)threadIdx.x};
    const packet_weights<T> weights[2] = {
        {args, weights_of<K>(args, args.weight, of_block), row.first, row.last, 1.0f},
        {args, weights_of<K>(args, args.bias, of_block), row.first, row.last, 0.0f}};
    const int n = group.held_by_warp(args.hidden, K::kVec);
    T *sums = nullptr;
    if constexpr (K::kAdds)
        sums = static_cast<T *>(args.residual_out) + of_block * args.residual_out_pitch - row.first;
    let_next_start();
    wait_for_previous();
    row.take(weights, sums, [&](auto &z, auto &other) { take_elements<K>(args, z, other); });
    bool is_done;
    row_scale scale = centre<float>(args, row, group, n, is_done);
    if (!is_done)
        scale = centre<double>(args, row, group, n, is_done);
    row.write(weights,
              static_cast<T *>(args.y) + row_at<K>(args, of_block, args.y_pitch) - row.first,
              [&](auto &gain, auto &, auto &y) {
                  add_bias(args, gain[0]);
                  finish_any<K>(args, gain[0], gain[1], scale, y);
              });
}
