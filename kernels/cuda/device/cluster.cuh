// cluster.cuh - what blocks of a cluster tell each other.
#pragma once

#include "cuda/device/reduce.cuh"
#include "cuda/device/stage.cuh"

#include <stdint.h>

// A value of every warp of a cluster's blocks, which are those of one blockIdx.x, to all of them.
// A warp sends its own to each block, and the barrier of a block counts what has come: barriers of
// the cluster would have every thread wait until all that it wrote is visible to the device, 0.3 us
// each. Of one exchange, of so many warps at most.
template <typename Value, int kMost>
struct cluster_values {
    uint64_t barrier;
    Value of_warp[kMost];

    // Before wait_for_previous, by all threads: there are others to send to. Several exchanges meet
    // once, all but the last one are only prepared. n_warps: those of a block that have a value.
    __device__ __forceinline__ void prepare(unsigned n_warps = blockDim.x / 32)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            const unsigned bytes = gridDim.y * n_warps * (unsigned)sizeof(Value);
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
                         "fence.mbarrier_init.release.cluster;\n\t"
                         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         :
                         : "r"(shared_address(&barrier)), "r"(bytes)
                         : "memory");
        }
#endif
    }
    __device__ __forceinline__ void begin(unsigned n_warps = blockDim.x / 32)
    {
        prepare(n_warps);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\t"
                     "barrier.cluster.wait.aligned;" ::
                         : "memory");
#endif
    }
    // x is the value of a warp. of_warp has those of all, by the number of their block and in it.
    __device__ __forceinline__ void exchange_of_warp(Value x)
    {
        send_of_warp(x, blockDim.x / 32);
        wait();
    }
    // By one of the first n_warps.
    __device__ __forceinline__ void send_of_warp(Value x, unsigned n_warps)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const unsigned lane = threadIdx.x % 32;
        const uint32_t to = shared_address(&of_warp[blockIdx.y * n_warps + threadIdx.x / 32]);
        if (lane < gridDim.y)
            send(to, lane, x);
#endif
    }
    // By all warps.
    __device__ __forceinline__ void wait()
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
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
#endif
    }
    // The largest value of all threads.
    __device__ __forceinline__ float largest_of(float x)
    {
        exchange_of_warp(largest_in_warp<32>(x));
        const unsigned lane = threadIdx.x % 32;
        x = 0.0f;
#pragma unroll
        for (unsigned i = 0; i < kMost; i += 32)
            if (i + lane < gridDim.y * (blockDim.x / 32))
                x = fmaxf(x, of_warp[i + lane]);
        return largest_in_warp<32>(x);
    }
    // The sum, in the order of a block that has as many warps, 32 at most.
    __device__ __forceinline__ Value sum_of(Value x)
    {
        exchange_of_warp(sum_in_warp<32>(x));
        return sum_leaves(of_warp, gridDim.y * (blockDim.x / 32));
    }
    // The same of the first n_warps of each block alone.
    __device__ __forceinline__ Value sum_of(Value x, unsigned n_warps)
    {
        x = sum_in_warp<32>(x);
        if (threadIdx.x < 32 * n_warps)
            send_of_warp(x, n_warps);
        wait();
        return sum_leaves(of_warp, gridDim.y * n_warps);
    }

  private:
    // To the same place of a block of the cluster.
    __device__ __forceinline__ void send(uint32_t to, unsigned block, Value x) const
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        uint32_t remote, remote_barrier;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(to), "r"(block));
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(remote_barrier)
            : "r"(shared_address(&barrier)), "r"(block));
        if constexpr (sizeof(Value) == 4) {
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                    remote),
                "r"(__float_as_uint(x)), "r"(remote_barrier)
                : "memory");
        } else {
            unsigned long long word[sizeof(Value) / 8];
            memcpy(word, &x, sizeof x);
#pragma unroll
            for (int i = 0; i < (int)sizeof(Value) / 8; i++)
                asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, "
                             "[%2];" ::"r"(remote + 8 * i),
                             "l"(word[i]), "r"(remote_barrier)
                             : "memory");
        }
#endif
    }
};

using cluster_exchange = cluster_values<float, 8 * 16>;
