// dispatch.cuh - from run-time values of a call to template arguments, and one launch to one
// driver call. Host code only.
#pragma once

#include "cuda/check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <initializer_list>
#include <limits.h>

// ------------------------------------------------------------------------------------ types

template <typename T>
struct type_tag {
    using type = T;
};

// function(type_tag<T>) for the element type of T tensors.
template <typename F>
static inline auto with_float_type(int dtype, const F &function)
{
    switch (dtype) {
    case ROPED_F16:
        return function(type_tag<__half>{});
    case ROPED_BF16:
        return function(type_tag<__nv_bfloat16>{});
    default:
        return function(type_tag<float>{});
    }
}

static inline bool is_aligned(const void *pointer, uintptr_t bytes)
{
    return (uintptr_t)pointer % bytes == 0;
}

// Have all of them vectors of 16 bytes? NULL, which no call has given, is no obstacle.
static inline bool are_aligned(std::initializer_list<const void *> pointers)
{
    for (const void *pointer : pointers)
        if (!is_aligned(pointer, 16))
            return false;
    return true;
}

// Are so many elements whole vectors?
template <typename T>
static inline bool are_vectors(std::initializer_list<int64_t> elements)
{
    for (int64_t n : elements)
        if (n % (16 / (int64_t)sizeof(T)) != 0)
            return false;
    return true;
}

// Elements from a row to the next.
static inline int64_t row_stride(const struct roped_tensor *tensor, int64_t width)
{
    return tensor->stride ? tensor->stride : width;
}

// Blocks that take so many of n each.
static inline int64_t blocks_of(int64_t n, int64_t of_block)
{
    return (n + of_block - 1) / of_block;
}

static inline int64_t clamp(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

// A constant, though it is of an H100: with the device's own count the order of sums, and so their
// bits, would depend on it.
constexpr int64_t kMultiprocessors = 132;

// Does a call move so much more than L2 holds that its kernel should keep what it reads
// (device/vector.cuh)? From four times on it gains.
static inline bool passes_l2(int64_t bytes, const struct roped_queue *queue)
{
    return bytes > 4 * (int64_t)queue->l2_bytes;
}

// Has every element of so many a thread at once, or nearly? Then it waits for one load, and
// shifting (device/shifted.cuh) would only be more to do: 2,048 threads are on a multiprocessor, of
// which those of 16 bits gain sooner.
template <typename T>
static bool is_small(int64_t elements, const struct roped_queue *queue)
{
    const int64_t most = sizeof(T) == 4 ? 2048 : 1536;
    return elements <= most * queue->n_multiprocessors;
}

// ------------------------------------------------------------------------------------ launch

template <typename Args>
using kernel_fn = void(const Args);

// Programmatic dependent launch, where the chip has it (sm_90): the blocks of a kernel take their
// places while the last ones of the kernel before run, which saves 0.3 us of a launch of 1 us.
// Every kernel keeps the order of the stream itself (device/stream.cuh).
//
// n_blocks goes to grid.x, the only dimension without a small limit. shared_bytes are what a block
// has beside what its kernel declares. is_cluster, where the chip overlaps kernels: blocks of one
// grid.x are a cluster, at most 8, and see each other's shared memory.
template <typename Args>
static enum roped_status
start(struct roped_queue *queue, kernel_fn<Args> *kernel, dim3 block, int64_t n_blocks, dim3 grid,
      const Args &args, struct roped_error *err, int64_t shared_bytes = 0, bool is_cluster = false)
{
    static_assert(sizeof(Args) <= 4096, "kernel parameters");
    if (n_blocks > INT_MAX)
        return roped_fail(err, ROPED_TOO_LARGE, "call: %lld blocks, expected at most %d",
                          (long long)n_blocks, INT_MAX);
    grid.x = (unsigned)n_blocks;
    if (shared_bytes > 40 << 10) // more than a kernel may have unasked
        CHECK_RETURN(queue->backend,
                     cudaFuncSetAttribute((const void *)kernel,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)shared_bytes),
                     err);
    void *params[] = {const_cast<Args *>(&args)};
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {1, grid.y, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = (size_t)shared_bytes;
    config.stream = queue->stream;
    config.attrs = attributes;
    config.numAttrs = !queue->can_overlap ? 0 : is_cluster ? 2 : 1;
    cudaError_t code = cudaLaunchKernelExC(&config, (const void *)kernel, params);
    if (code != cudaSuccess)
        return roped_cuda_fail(queue->backend, code, "cudaLaunchKernelExC", err);
    return ROPED_OK;
}
