// stream.cuh - a kernel's place among the kernels of its stream, where the launch has the attribute
// of programmatic dependent launch (dispatch.cuh). Without it both functions do nothing.
#pragma once

// Early in every kernel: the blocks of the next kernel may take places that are free. They wait for
// this kernel in their turn, so the order of the stream holds.
__device__ __forceinline__ void let_next_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Before the first access to memory: waits until everything before this kernel in the stream is
// done and visible. What comes before it (places, addresses, reading the parameters) costs nothing
// while the kernel before still runs.
__device__ __forceinline__ void wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Computes x here, before a wait, where the compiler would move it to its use.
template <typename X>
__device__ __forceinline__ X compute_now(X x)
{
    static_assert(sizeof x == 4 || sizeof x == 8, "a register or two");
    if constexpr (sizeof x == 4)
        asm volatile("" : "+r"(x));
    else
        asm volatile("" : "+l"(x));
    return x;
}
