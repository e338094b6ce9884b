// norm_pair_narrow.cuh - the norms of norm_pair.cuh of many rows of up to 16 vectors that 16 bytes
// do not divide: spans of a warp's rows, as in norm_narrow.cuh, of both tensors and of the result.
#pragma once

#include "cuda/device/norm_narrow.cuh"
#include "cuda/device/norm_pair.cuh"

// blockDim.x threads a row, blockDim.y rows a block. Rows have no groups, and heads are one.
template <typename K, typename C>
__global__ void __launch_bounds__(256, C::kMinBlocks)
    pair_narrow_kernel(const __grid_constant__ struct pair_args args)
{
    constexpr int kVectors = C::kVectors;
    const norm_args &norm = args.norm;
    narrow_rows<K, C> rows(norm);
    uint4 gains[kVectors];
    let_next_start();
    wait_for_previous();
    if (rows.first >= norm.n_rows)
        return; // a warp
    rows.fetch(rows.first);
    shifted_vector<sizeof(typename K::T)> of_gain[kVectors];
    rows.start_weights(norm.weight, of_gain);
    rows.finish_weights(norm.weight, 1.0f, of_gain, gains);
    for (;;) {
        pair_values<K, C> values;
        rows.get(values.raw);
        if (rows.has_next())
            rows.fetch(rows.first + rows.step());
        values.take(args);
        const row_scale scale = narrow_scale(norm, values, rows.group.threads);
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            float y[K::kVec], gain[K::kVec], other[K::kVec];
            values.template get<false>(v, y);
            unpack<typename K::T>(gains[v], gain);
            add_bias(norm, gain);
            unpack_second<K>(args, values.raw.residual[v], other);
            finish_pair<K>(args, gain, scale, other, y);
            rows.put(0, norm.y, v, y);
        }
        __syncwarp();
        rows.span(norm.y, rows.first).store(rows.stage + C::kTensors / 2 * rows.packets);
        if (!rows.has_next())
            return;
        rows.first += rows.step();
    }
}
