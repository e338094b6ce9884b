// last_block.cuh - which block is the last one to have left its part of a result in memory: it adds
// the parts of all, which saves a launch.
#pragma once

#include <stdint.h>

// How many of n were here before; the last one leaves 0 again. What the thread has seen written,
// such as by a block before a barrier, whoever comes later sees, too.
__device__ __forceinline__ uint32_t count_in(uint32_t *counter, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter)), "r"(n - 1)
                 : "memory");
    return before;
}

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
