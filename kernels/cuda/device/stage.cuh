// stage.cuh - packets of 16 bytes on their way to shared memory (cp.async), in stages; where the
// chip has no such copies (before sm_80), they are there at once.
#pragma once

#include "cuda/device/vector.cuh"

// 16 bytes to shared memory, or zeros; they are there once wait_for_stage says so. kHints: with a
// policy. ptxas 13.0 makes instructions of it that no chip has in blocks of 1,024 threads
// (tests/gpu/wait_order.py looks for them).
template <bool kHints>
__device__ __forceinline__ void copy_16(uint4 *to, const void *from, bool is_there, uint64_t policy)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if constexpr (kHints)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(at),
                     "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at),
                     "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0)
                     : "memory");
#else
    (void)policy;
    *to = is_there ? load_16(from) : make_uint4(0, 0, 0, 0);
#endif
}

__device__ __forceinline__ uint64_t policy_of(bool keeps)
{
    uint64_t policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (keeps)
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ __forceinline__ void end_stage()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

constexpr int kMostStages = 4;

// Waits for the oldest of n stages.
__device__ __forceinline__ void wait_for_stage(int n)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    static_assert(kMostStages == 4, "as many cases");
    if (n == 4)
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (n == 3)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (n == 2)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}
