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

// One operand is full (x), the other is summed (y), whichever of them is a.
enum sweep_kind {
    kSweepLinear,   // add, sub: g or -g, no values
    kSweepMul,      //
    kSweepOverSum,  // div, the summed operand is the divisor
    kSweepOverFull, // div, the full operand is
};

struct sweep_signs {
    float full, sum; // kSweepLinear: 1 or -1
};

template <int kKind>
__device__ __forceinline__ float full_term(float g, float x, float y, const sweep_signs &sign)
{
    if constexpr (kKind == kSweepLinear)
        return g * sign.full;
    else if constexpr (kKind == kSweepMul)
        return g * y;
    else if constexpr (kKind == kSweepOverSum)
        return g / y;
    else
        return quotient_term_of_b(g, y, x);
}

template <int kKind>
__device__ __forceinline__ float sum_term(float g, float x, float y, const sweep_signs &sign)
{
    if constexpr (kKind == kSweepLinear)
        return g * sign.sum;
    else if constexpr (kKind == kSweepMul)
        return g * x;
    else if constexpr (kKind == kSweepOverSum)
        return quotient_term_of_b(g, x, y);
    else
        return g / x;
}

// The term of one side's gradient, function known at run time.
__device__ __forceinline__ float binary_term(int function, int side, float g, float a, float b)
{
    bool is_a = side == BINARY_IN_A;
    if (function == BINARY_MUL)
        return g * (is_a ? b : a);
    if (function == BINARY_DIV)
        return is_a ? g / b : quotient_term_of_b(g, a, b);
    return function == BINARY_SUB && !is_a ? -g : g;
}
