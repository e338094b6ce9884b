// codes.cuh - values of codes. A float of 8 bits or fewer is one of 16 whose exponent has another
// bias: shifted into the place of a float16, it is its value times a power of two.
#pragma once

extern "C" {
#include "ops/codes.h"
}

#include "cuda/device/vector.cuh"

// Two values of codes in bits 0 to 7 and 16 to 23 of a word.
template <int format>
__device__ __forceinline__ float2 code_values(uint32_t pair)
{
    if constexpr (format == CODES_INT8)
        return make_float2((float)(int8_t)pair, (float)(int8_t)(pair >> 16));
    if constexpr (format == CODES_E5M2)
        return element<__half>::to_float2(pair << 8);
    float2 value = element<__half>::to_float2((pair & 0x7F007Fu) << 7 | (pair & 0x800080u) << 8);
    value.x = (pair & 0x7Fu) == 0x7Fu ? __uint_as_float(0x7FC00000u) : value.x * 0x1p8f;
    value.y = (pair & 0x7F0000u) == 0x7F0000u ? __uint_as_float(0x7FC00000u) : value.y * 0x1p8f;
    return value;
}

// n values of the codes in words, the first in the lowest bits.
template <int format, int n>
__device__ __forceinline__ void expand(const uint32_t (&word)[(n + 3) / 4], float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i += 2) {
        const uint32_t codes = word[i / 4] >> 8 * (i % 4);
        const float2 value = code_values<format>((codes & 0xFFu) | (codes & 0xFF00u) << 8);
        x[i] = value.x;
        if (i + 1 < n)
            x[i + 1] = value.y;
    }
}

// The format is the same for a whole launch: the branch never diverges.
template <int n>
__device__ __forceinline__ void expand(int format, const uint32_t (&word)[(n + 3) / 4],
                                       float (&x)[n])
{
    if (format == CODES_E4M3)
        expand<CODES_E4M3>(word, x);
    else if (format == CODES_E5M2)
        expand<CODES_E5M2>(word, x);
    else
        expand<CODES_INT8>(word, x);
}
