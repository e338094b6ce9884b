// binary.cuh - terms of the gradients of binary functions.
#pragma once

#include "ops/binary_backward.h"

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
