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

// The operand whose gradient is summed is y, the other one x.
enum binary_kind {
    kBinaryLinear, // add, sub: g or -g, no values
    kBinaryMul,    //
    kBinaryOverY,  // div, y is the divisor
    kBinaryOverX,  // div, x is
    kBinaryAny     // known at run time
};

struct binary_signs {
    float x, y; // kBinaryLinear: 1 or -1
};

// The terms of both gradients. kBinaryAny has each division once: the quotients change places.
template <int kKind>
__device__ __forceinline__ void both_terms(int kind, float g, float x, float y,
                                           const binary_signs &sign, float &of_x, float &of_y)
{
    if (kKind != kBinaryAny)
        kind = kKind;
    if (kind == kBinaryLinear) {
        of_x = g * sign.x;
        of_y = g * sign.y;
    } else if (kind == kBinaryMul) {
        of_x = g * y;
        of_y = g * x;
    } else {
        bool is_over_y = kind == kBinaryOverY;
        float divided = is_over_y ? x : y, divisor = is_over_y ? y : x;
        float of_divided = g / divisor, of_divisor = quotient_term_of_b(g, divided, divisor);
        of_x = is_over_y ? of_divided : of_divisor;
        of_y = is_over_y ? of_divisor : of_divided;
    }
}

// That of y's gradient, whatever the kind.
__device__ __forceinline__ float term_of_y(int kind, float g, float x, float y,
                                           const binary_signs &sign)
{
    if (kind == kBinaryLinear)
        return g * sign.y;
    if (kind == kBinaryMul)
        return g * x;
    bool is_over_y = kind == kBinaryOverY;
    float quotient = (is_over_y ? x : g) / (is_over_y ? y : x);
    return is_over_y ? -(g * (quotient / y)) : quotient;
}
