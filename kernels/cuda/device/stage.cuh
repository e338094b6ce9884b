// stage.cuh - packets of 16 bytes on their way to shared memory (cp.async), in stages; where the
// chip has no such copies (before sm_80), they are there at once.
#pragma once

#include "cuda/device/vector.cuh"

// An address in shared memory, and 16 bytes there: of a pointer the compiler would find it again
// and again.
__device__ __forceinline__ uint32_t shared_address(const void *x)
{
    return (uint32_t)__cvta_generic_to_shared(x);
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t at)
{
    uint4 raw;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "r"(at)
                 : "memory");
    return raw;
}

// 16 bytes to shared memory, or zeros; they are there once wait_for_stage says so. kHints: with a
// policy. ptxas 13.0 makes instructions of it that no chip has in some kernels of large blocks
// (tests/gpu/wait_order.py looks for them).
template <bool kHints>
__device__ __forceinline__ void copy_16(uint32_t at, const void *from, bool is_there,
                                        uint64_t policy)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
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
    const uint4 raw = is_there ? load_16(from) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(raw.x), "r"(raw.y),
                 "r"(raw.z), "r"(raw.w)
                 : "memory");
#endif
}

template <bool kHints>
__device__ __forceinline__ void copy_16(uint4 *to, const void *from, bool is_there, uint64_t policy)
{
    copy_16<kHints>(shared_address(to), from, is_there, policy);
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
