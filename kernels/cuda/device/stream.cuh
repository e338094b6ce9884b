// stream.cuh - a kernel's place among the kernels of its stream.
#pragma once

// First in every kernel. Waits until everything before it in the stream is done and visible, then
// lets the blocks of the next kernel take places that are free: they wait here in their turn, so
// the order of the stream holds. Both do nothing in a launch without the attribute (dispatch.cuh).
__device__ __forceinline__ void enter_stream()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
