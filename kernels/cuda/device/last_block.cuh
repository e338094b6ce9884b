// last_block.cuh - which block is the last one to have left its part of a result in memory: it adds
// the parts of all, which saves a launch.
#pragma once

#include "cuda/device/binary.cuh"

// Is this block the last one of those that have the same sums? What the others have written is
// visible then, and the counter is 0 again.
__device__ __forceinline__ bool comes_last(uint32_t *counter, uint32_t n_blocks)
{
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = count_in(counter, n_blocks) == n_blocks - 1;
    __syncthreads();
    return is_last;
}
