// cluster.cuh - what blocks of a cluster tell each other.
#pragma once

#include "cuda/device/reduce.cuh"

#include <stdint.h>

// The largest value of all warps of a cluster's blocks, which are those of one blockIdx.x. Every
// warp sends its own to each block, and the barrier of a block counts what has come: barriers of
// the cluster would have every thread wait until all that it wrote is visible to the device, 0.3 us
// each.
struct cluster_exchange {
    static constexpr int kMost = 8 * 16; // warps
    uint64_t barrier;
    float largest[kMost];

    // Before wait_for_previous, by all threads: there are others to send to.
    __device__ __forceinline__ void begin()
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            const unsigned bytes = gridDim.y * (blockDim.x / 32) * (unsigned)sizeof(float);
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
                         "fence.mbarrier_init.release.cluster;\n\t"
                         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         :
                         : "r"(shared_address(&barrier)), "r"(bytes)
                         : "memory");
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\t"
                     "barrier.cluster.wait.aligned;" ::
                         : "memory");
#endif
    }
    __device__ __forceinline__ float largest_of(float x)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const unsigned lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
        x = largest_in_warp<32>(x);
        if (lane < gridDim.y)
            asm volatile("{\n\t"
                         ".reg .u32 to, barrier;\n\t"
                         "mapa.shared::cluster.u32 to, %0, %3;\n\t"
                         "mapa.shared::cluster.u32 barrier, %1, %3;\n\t"
                         "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %2, "
                         "[barrier];\n\t"
                         "}"
                         :
                         : "r"(shared_address(&largest[blockIdx.y * n_warps + threadIdx.x / 32])),
                           "r"(shared_address(&barrier)), "r"(__float_as_uint(x)), "r"(lane)
                         : "memory");
        unsigned has_come;
        do
            asm volatile("{\n\t"
                         ".reg .pred p;\n\t"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\t"
                         "selp.u32 %0, 1, 0, p;\n\t"
                         "}"
                         : "=r"(has_come)
                         : "r"(shared_address(&barrier))
                         : "memory");
        while (!has_come);
        x = 0.0f;
#pragma unroll
        for (unsigned i = 0; i < kMost; i += 32)
            if (i + lane < gridDim.y * n_warps)
                x = fmaxf(x, largest[i + lane]);
        x = largest_in_warp<32>(x);
#endif
        return x;
    }

  private:
    static __device__ __forceinline__ unsigned shared_address(const void *x)
    {
        return (unsigned)__cvta_generic_to_shared(x);
    }
};
