// stream.cuh - a kernel's place among the kernels of its stream, where the launch has the attribute
// of programmatic dependent launch (dispatch.cuh). Without it both functions do nothing.
#pragma once

#include <limits.h>
#include <stdint.h>

// The blocks of the next kernel may take free places, and wait there in their turn. Called before
// the wait that is soonest; behind it, as packets do, places fill evenly (NOTES.md, 'Launches').
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

// No address and no number that a kernel computes.
__device__ __forceinline__ bool is_never(const void *address)
{
    return (uintptr_t)address == 1;
}
__device__ __forceinline__ bool is_never(int x)
{
    return x == INT_MAX;
}

// Has addresses and numbers computed before what follows: the assembler would move that behind a
// wait, where it costs.
template <typename... X>
__device__ __forceinline__ void finish_before_wait(X... x)
{
    if ((is_never(x) | ...))
        asm volatile("exit;");
}

// The same of addresses, by one comparison: of what their lower halves make together, and twice
// that is even.
template <typename... X>
__device__ __forceinline__ void finish_addresses(const X *...at)
{
    const uint32_t all = ((uint32_t)(uintptr_t)at ^ ...);
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b32 twice;\n\tshl.b32 twice, %0, 1;\n\t"
                 "setp.eq.u32 p, twice, 0x7FFFFFFF;\n\t@p exit;\n\t}" ::"r"(all));
}

// Computes x here, before a wait or a barrier, where the compiler would move it to its use.
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

__device__ __forceinline__ float compute_now(float x)
{
    asm volatile("" : "+f"(x));
    return x;
}

// An address that the compiler knows to be of global memory: what goes through it are no generic
// accesses. The empty instruction keeps it from undoing the conversion.
__device__ __forceinline__ char *as_global(const void *x)
{
    size_t global = __cvta_generic_to_global(x);
    asm("" : "+l"(global));
    return static_cast<char *>(__cvta_global_to_generic(global));
}

__device__ __forceinline__ const char *compute_now(const char *x)
{
    size_t global = __cvta_generic_to_global(x);
    asm volatile("" : "+l"(global));
    return static_cast<const char *>(__cvta_global_to_generic(global));
}
