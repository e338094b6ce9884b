// binary.cuh - terms of the gradients of binary functions, and the memory accesses of kernels that
// move a packet per thread: 16 bytes where everything is aligned to them, else one element.
#pragma once

#include "cuda/device/vector.cuh"
#include "ops/binary_backward.h"

// ------------------------------------------------------------------------------------ packets

template <typename T, int kVec>
struct packet {
    static_assert(kVec == kVecOf<T>, "16 bytes");
    using raw = uint4;
    template <bool kKeeps = false>
    static __device__ __forceinline__ raw load(const T *from)
    {
        return kKeeps ? load_16_to_keep(from) : load_16(from);
    }
    static __device__ __forceinline__ void widen(const raw &from, float (&x)[kVec])
    {
        unpack<T>(from, x);
    }
    static __device__ __forceinline__ void store(T *to, const float (&x)[kVec])
    {
        *reinterpret_cast<uint4 *>(to) = pack<T>(x);
    }
};

template <typename T>
struct packet<T, 1> {
    using raw = T;
    template <bool kKeeps = false>
    static __device__ __forceinline__ raw load(const T *from)
    {
        return *from;
    }
    static __device__ __forceinline__ void widen(const raw &from, float (&x)[1])
    {
        x[0] = element<T>::to_float(from);
    }
    static __device__ __forceinline__ void store(T *to, const float (&x)[1])
    {
        *to = element<T>::from_float(x[0]);
    }
};

// ------------------------------------------------------------------------------------ terms

__device__ __forceinline__ float quotient_term_of_b(float g, float a, float b)
{
    return -(g * (a / b / b)); // b * b would leave float32's range where this does not
}

// The operand whose gradient is summed is y, the other one x. add and sub are products whose x and
// y are 1 or -1.
enum binary_kind {
    kBinaryMul,   //
    kBinaryOverY, // div, y is the divisor
    kBinaryOverX, // div, x is
    kBinaryOver   // div, either, known at run time
};

struct binary_ones {
    float x, y;
};

// The terms of both gradients. kBinaryOver has each division once: the quotients change places.
template <int kKind>
__device__ __forceinline__ void both_terms(int kind, float g, float x, float y, float &of_x,
                                           float &of_y)
{
    if constexpr (kKind == kBinaryMul) {
        of_x = g * y;
        of_y = g * x;
    } else {
        const bool is_over_y = kKind == kBinaryOver ? kind == kBinaryOverY : kKind == kBinaryOverY;
        const float divided = is_over_y ? x : y, divisor = is_over_y ? y : x;
        const float of_divided = g / divisor, of_divisor = quotient_term_of_b(g, divided, divisor);
        of_x = is_over_y ? of_divided : of_divisor;
        of_y = is_over_y ? of_divisor : of_divided;
    }
}

// ------------------------------------------------------------------------------------ counting

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
