// binary.cuh - terms of the gradients of binary functions.
#pragma once

#include "cuda/device/vector.cuh"
#include "ops/binary_backward.h"

#include <type_traits>

__device__ __forceinline__ float quotient_term_of_b(float g, float a, float b)
{
    return -(g * (a / b / b)); // b * b would leave float32's range where this does not
}

// ------------------------------------------------------------------------------------ quotients

// Quotients of what has 16 bits, by two instructions instead of a dozen and a branch, and yet
// rounded correctly. The inverse of a divisor is the sum of two floats: the upper one is less in
// magnitude, by 2^-22 to 2^-20 of it, and the lower one is what is missing, to 2^-41 of the
// inverse. So a quotient is known to 2^-40 of itself before its only rounding. That is enough: a
// quotient by a divisor of 11 bits is 2^-36 of itself or more away from the middle between two
// floats, whatever the 24 bits of the dividend are, and is never in the middle.
//
// Both floats have the sign of the divisor, and neither is 0 where it is finite and not 0. So Inf,
// NaN and zeros of either side come out as of a division. test_exact.c divides by every divisor.
struct inverse {
    float high, low;
};

__device__ __forceinline__ struct inverse inverse_of(float divisor)
{
    struct inverse of;
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(divisor)); // within 2^-23
    of.high = near * 0x1.fffffp-1f;
    // NaN of 0 and of Inf, whose inverse is near
    of.low = fmaxf(fmaf(-of.high, divisor, 1.0f), 0x1p-40f) * near;
    return of;
}

__device__ __forceinline__ float times_inverse(float dividend, const struct inverse &of)
{
    return fmaf(dividend, of.high, dividend * of.low);
}

// ------------------------------------------------------------------------------------ terms

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

// Is y the divisor?
template <int kKind>
__device__ __forceinline__ bool is_over_y(int kind)
{
    return kKind == kBinaryOver ? kind == kBinaryOverY : kKind == kBinaryOverY;
}

// The terms of both gradients. kBinaryOver has each division once: the quotients change places.
template <int kKind>
__device__ __forceinline__ void divided_terms(int kind, float g, float x, float y, float &of_x,
                                              float &of_y)
{
    if constexpr (kKind == kBinaryMul) {
        of_x = g * y;
        of_y = g * x;
    } else {
        const bool by_y = is_over_y<kKind>(kind);
        const float divided = by_y ? x : y, divisor = by_y ? y : x;
        const float of_divided = g / divisor, of_divisor = quotient_term_of_b(g, divided, divisor);
        of_x = by_y ? of_divided : of_divisor;
        of_y = by_y ? of_divisor : of_divided;
    }
}

// The same by the inverse of the divisor.
template <int kKind>
__device__ __forceinline__ void inverse_terms(int kind, float g, float x, float y,
                                              const struct inverse &of, float &of_x, float &of_y)
{
    const bool by_y = is_over_y<kKind>(kind);
    const float of_divided = times_inverse(g, of);
    const float of_divisor = -(g * times_inverse(times_inverse(by_y ? x : y, of), of));
    of_x = by_y ? of_divided : of_divisor;
    of_y = by_y ? of_divisor : of_divided;
}

// ------------------------------------------------------------------------------------ packets

// A quotient of bfloat16, or what is added to it, may be no normal number. Neither is so where the
// divisor is 2^-24 to 2^24 and the dividend 2^-64 or more, or 0: too large ones are Inf all the
// same. What a packet has is looked at in pairs.
struct range_of_pairs {
    uint32_t least = 0xFFFFFFFFu; // of dividends less 1, so that 0 is the largest
    uint32_t most = 0;            // of divisors less 2^-24

    static constexpr uint32_t kOne = 0x800080u; // in the exponent

    __device__ __forceinline__ void take_dividends(uint32_t pair)
    {
        least = __viaddmin_u16x2(pair & 0x7FFF7FFFu, 0xFFFFFFFFu, least);
    }
    __device__ __forceinline__ void take_divisors(uint32_t pair)
    {
        constexpr uint32_t kLess = (0x10000u - (127 - 24) * 0x80u) * 0x10001u;
        most = __viaddmax_u16x2(pair & 0x7FFF7FFFu, kLess, most);
    }
    __device__ __forceinline__ bool is_safe() const
    {
        constexpr uint32_t kLeast = (127 - 64) * kOne - 0x10001u, kMost = 48 * kOne;
        return __vminu2(least, kLeast) == kLeast && __vmaxu2(most, kMost) == kMost;
    }
};

// Two elements, each in the upper half of a float.
__device__ __forceinline__ uint32_t pair_of(float x, float y)
{
    return __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
}

// Elements of y that a thread keeps for several packets: one for each column, or one.
template <typename T, int kKind, int kSums>
struct kept_elements {
    static constexpr bool kHasInverses = kKind == kBinaryOverY && sizeof(T) == 2;
    float y[kSums];
    struct inverse inverses[kHasInverses ? kSums : 1];
    range_of_pairs range; // of bfloat16

    // Of y.
    __device__ __forceinline__ void begin(int kind)
    {
        if constexpr (kHasInverses)
#pragma unroll
            for (int j = 0; j < kSums; j++)
                inverses[j] = inverse_of(y[j]);
        if constexpr (kKind != kBinaryMul && std::is_same_v<T, __nv_bfloat16>)
#pragma unroll
            for (int j = 0; j < kSums; j++)
                if (is_over_y<kKind>(kind))
                    range.take_divisors(pair_of(y[j], y[j]));
                else
                    range.take_dividends(pair_of(y[j], y[j]));
    }

    // Of two elements: so many are the first one, the others the second one.
    __device__ __forceinline__ void begin_of_two(int kind, int n_first, float first, float second)
    {
        kept_elements<T, kKind, 1> one, other;
        one.y[0] = first;
        other.y[0] = second;
        one.begin(kind);
        other.range = one.range;
        other.begin(kind);
        range = other.range;
#pragma unroll
        for (int j = 0; j < kSums; j++) {
            y[j] = j < n_first ? first : second;
            if constexpr (kHasInverses)
                inverses[j] = j < n_first ? one.inverses[0] : other.inverses[0];
        }
    }
};

// A quotient of rare values. Out of line, for divisions are long.
static __device__ __noinline__ float2 divide_rare_one(bool by_y, float g, float x, float y)
{
    float2 terms;
    divided_terms<kBinaryOver>(by_y ? kBinaryOverY : kBinaryOverX, g, x, y, terms.x, terms.y);
    return terms;
}

// The terms of an element of T beside the j-th of y. Quotients of float16 stay far from the ends of
// float32's range.
template <typename T, int kKind, int kSums>
__device__ __forceinline__ void kept_terms(int kind, float g, float x,
                                           const kept_elements<T, kKind, kSums> &kept, int j,
                                           float &of_x, float &of_y)
{
    const float y = kept.y[j];
    if constexpr (kKind == kBinaryMul || sizeof(T) == 4) {
        divided_terms<kKind>(kind, g, x, y, of_x, of_y);
    } else {
        const bool by_y = is_over_y<kKind>(kind);
        if constexpr (kKind == kBinaryOverY)
            inverse_terms<kKind>(kind, g, x, y, kept.inverses[j], of_x, of_y);
        else
            inverse_terms<kKind>(kind, g, x, y, inverse_of(by_y ? y : x), of_x, of_y);
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
            range_of_pairs range = kept.range;
            range.take_dividends(by_y ? pair_of(g, x) : pair_of(g, g));
            if (!by_y)
                range.take_divisors(pair_of(x, x));
            if (!range.is_safe()) {
                const float2 terms = divide_rare_one(by_y, g, x, y);
                of_x = terms.x;
                of_y = terms.y;
            }
        }
    }
}

// The terms of an element of T by itself.
template <typename T, int kKind>
__device__ __forceinline__ void both_terms(int kind, float g, float x, float y, float &of_x,
                                           float &of_y)
{
    kept_elements<T, kKind, 1> kept;
    kept.y[0] = y;
    kept.begin(kind);
    kept_terms<T, kKind>(kind, g, x, kept, 0, of_x, of_y);
}

// Divides a packet of rare values: g and x become the terms of x and of y. Out of line, for its
// divisions are most of what a kernel would be.
template <int kVec>
static __device__ __noinline__ void divide_rare(bool by_y, float (&g)[kVec], float (&x)[kVec],
                                                const float (&y)[kVec])
{
#pragma unroll 1
    for (int j = 0; j < kVec; j++) {
        float of_x, of_y;
        divided_terms<kBinaryOver>(by_y ? kBinaryOverY : kBinaryOverX, g[j], x[j], y[j], of_x,
                                   of_y);
        g[j] = of_x;
        x[j] = of_y;
    }
}

// The terms of a packet. x_is_one: all of x is its first element, and raw_x is none.
template <typename T, int kKind, int kSums, int kVec>
__device__ __forceinline__ void packet_terms(int kind, const uint4 &raw_g, const uint4 &raw_x,
                                             bool x_is_one, const float (&x)[kVec],
                                             const kept_elements<T, kKind, kSums> &kept,
                                             float (&of_x)[kVec], float (&of_y)[kVec])
{
    float g[kVec];
    unpack<T>(raw_g, g);
    const bool by_y = is_over_y<kKind>(kind);
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        const float y = kept.y[kSums == kVec ? j : 0];
        if constexpr (kKind == kBinaryMul || sizeof(T) == 4)
            divided_terms<kKind>(kind, g[j], x[j], y, of_x[j], of_y[j]);
        else if constexpr (kKind == kBinaryOverY)
            inverse_terms<kKind>(kind, g[j], x[j], y, kept.inverses[kSums == kVec ? j : 0], of_x[j],
                                 of_y[j]);
        else
            inverse_terms<kKind>(kind, g[j], x[j], y, inverse_of(by_y ? y : x[j]), of_x[j],
                                 of_y[j]);
    }
    if constexpr (kKind != kBinaryMul && std::is_same_v<T, __nv_bfloat16>) {
        range_of_pairs range = kept.range;
        const uint32_t one = pair_of(x[0], x[0]);
        const uint32_t of_g[4] = {raw_g.x, raw_g.y, raw_g.z, raw_g.w};
        const uint32_t pair_x[4] = {x_is_one ? one : raw_x.x, x_is_one ? one : raw_x.y,
                                    x_is_one ? one : raw_x.z, x_is_one ? one : raw_x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            range.take_dividends(of_g[i]);
            if (by_y)
                range.take_dividends(pair_x[i]);
            else
                range.take_divisors(pair_x[i]);
        }
        if (range.is_safe())
            return;
        float rare_g[kVec], rare_x[kVec], rare_y[kVec];
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            rare_g[j] = g[j];
            rare_x[j] = x[j];
            rare_y[j] = kept.y[kSums == kVec ? j : 0];
        }
        divide_rare(by_y, rare_g, rare_x, rare_y);
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            of_x[j] = rare_g[j];
            of_y[j] = rare_x[j];
        }
    }
}
