// codes.cuh - values that share a scale to codes and back: what quantize, dequantize and whatever
// else makes codes share on CUDA. Formats are the same for a whole launch, so that branches on them
// never diverge.
#pragma once

extern "C" {
#include "ops/quantize.h"
}

#include "cuda/device/fp8.cuh"
#include "cuda/device/vector.cuh"

#include <float.h>

// ------------------------------------------------------------------------------------ values

// Two values of codes, in the low bits of both halves of a word. A float of 8 bits or fewer is one
// of 16 whose exponent has another bias: shifted into the place of a float16, it is its value times
// a power of two.
template <int element_kind>
__device__ __forceinline__ float2 code_values(uint32_t pair)
{
    using half = element<__half>;
    if constexpr (element_kind == CODE_I8) {
        return make_float2((float)(int8_t)pair, (float)(int8_t)(pair >> 16));
    } else if constexpr (element_kind == CODE_E5M2) {
        return half::to_float2(pair << 8);
    } else if constexpr (element_kind == CODE_E2M1) {
        float2 value = half::to_float2((pair & 0x70007u) << 9 | (pair & 0x80008u) << 12);
        return make_float2(value.x * 0x1p14f, value.y * 0x1p14f);
    } else {
        float2 value = half::to_float2((pair & 0x7F007Fu) << 7 | (pair & 0x800080u) << 8);
        const float nan = __uint_as_float(0x7FC00000u);
        return make_float2((pair & 0x7Fu) == 0x7Fu ? nan : value.x * 0x1p8f,
                           (pair & 0x7F0000u) == 0x7F0000u ? nan : value.y * 0x1p8f);
    }
}

// n values of the codes in words, the first in the lowest bits.
template <int element_kind, int n>
__device__ __forceinline__ void expand(const uint32_t (&word)[(n + 3) / 4], float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i += 2) {
        float2 value;
        if constexpr (element_kind == CODE_E2M1) {
            const uint32_t codes = word[i / 8] >> 4 * (i % 8);
            value = code_values<element_kind>((codes & 0xFu) | (codes & 0xF0u) << 12);
        } else {
            const uint32_t codes = word[i / 4] >> 8 * (i % 4);
            value = code_values<element_kind>((codes & 0xFFu) | (codes & 0xFF00u) << 8);
        }
        x[i] = value.x;
        if (i + 1 < n)
            x[i + 1] = value.y;
    }
}

template <int n>
__device__ __forceinline__ void expand(int element_kind, const uint32_t (&word)[(n + 3) / 4],
                                       float (&x)[n])
{
    if (element_kind == CODE_E4M3)
        expand<CODE_E4M3>(word, x);
    else if (element_kind == CODE_E5M2)
        expand<CODE_E5M2>(word, x);
    else if (element_kind == CODE_I8)
        expand<CODE_I8>(word, x);
    else
        expand<CODE_E2M1>(word, x);
}

// ------------------------------------------------------------------------------------ scales

// Where scales are.
struct code_scales {
    void *data;
    int64_t row, tile; // elements to the scale of the tile below, and of that beside it
    int32_t quads;     // swizzled: groups of 4 beside each other; 0: not swizzled
};

static inline code_scales code_scales_of(const struct code_tiles &tiles, void *data)
{
    return {data, tiles.scale_row, tiles.scale_tile,
            tiles.is_swizzled ? (int32_t)((tiles.n_tiles + 3) / 4) : 0};
}

__device__ __forceinline__ int64_t scale_at(const code_scales &scales, int64_t strip, int64_t tile)
{
    if (scales.quads == 0)
        return strip * scales.row + tile * scales.tile;
    return (strip / 128 * scales.quads + tile / 4) * 512 + strip % 32 * 16 + strip / 32 % 4 * 4 +
           tile % 4;
}

__device__ __forceinline__ float e8m0_value(uint32_t code)
{
    return __uint_as_float(code == 0xFFu ? 0x7FC00000u : code == 0 ? 0x00400000u : code << 23);
}

__device__ __forceinline__ float scale_value(int kind, const code_scales &scales, int64_t at)
{
    if (kind == CODE_SCALE_F32)
        return load_float(static_cast<const float *>(scales.data) + at);
    const uint32_t code = static_cast<const uint8_t *>(scales.data)[at];
    return kind == CODE_SCALE_E8M0 ? e8m0_value(code) : code_values<CODE_E4M3>(code).x;
}

// A scale as it is stored, and by what it says that values are divided.
struct code_scale_made {
    uint32_t bits;
    float factor; // first; 1 where it is not NVFP4's
    float divisor;
};

__device__ __forceinline__ float finished(const code_rule &rule, float scale)
{
    if (scale == 0.0f)
        scale = 1.0f;
    if (rule.power_of_two)
        scale = __uint_as_float((__float_as_uint(scale) + 0x7FFFFFu) & 0x7F800000u);
    return scale;
}

// Of a tensor, whose part's scales compete: without what is not monotonic, see finished.
__device__ __forceinline__ float raw_scale_of(const code_rule &rule, float largest)
{
    return fmaxf(fminf(largest, rule.scale_ub) / rule.largest, rule.least_scale);
}

// The largest magnitude of values that is not NaN. Of E8M0, where NaN counts: half of it, so that
// there are two numbers beyond, the largest float for Inf, and Inf for NaN. A maximum of these is
// that of all values, whoever takes it.
template <int n>
__device__ __forceinline__ float largest_of(const code_rule &rule, const float (&x)[n])
{
    float largest = 0.0f;
    bool has_nan = false;
#pragma unroll
    for (float value : x) {
        largest = fmaxf(largest, fabsf(value));
        has_nan |= value != value;
    }
    if (rule.scale != CODE_SCALE_E8M0)
        return largest;
    return has_nan ? __uint_as_float(0x7F800000u) : fminf(largest * 0.5f, FLT_MAX);
}

__device__ __forceinline__ uint32_t e8m0_of(const code_rule &rule, float half)
{
    if (half >= FLT_MAX)
        return half > FLT_MAX || rule.infinity == INFINITY_IS_NAN ? 0xFFu : 0xFEu;
    const int exponent = (int)((__float_as_uint(half) + rule.round_bits) >> 23) + 1;
    return (uint32_t)max(exponent - (int)(__float_as_uint(rule.largest) >> 23) + 127, 0);
}

// Of what largest_of has found.
__device__ __forceinline__ code_scale_made make_scale(const code_rule &rule, float largest)
{
    if (rule.scale == CODE_SCALE_E8M0) {
        const uint32_t code = e8m0_of(rule, largest);
        return {code, 1.0f, e8m0_value(code)};
    }
    if (rule.scale == CODE_SCALE_E4M3) {
        const uint32_t code =
            fp8x2_of<false>(largest / rule.largest * rule.global_scale, 0.0f) & 0xFFu;
        if (code == 0)
            return {0, 0.0f, 1.0f};
        return {code, rule.global_scale, code_values<CODE_E4M3>(code).x};
    }
    const float scale = finished(rule, raw_scale_of(rule, largest));
    return {__float_as_uint(scale), 1.0f, scale};
}

__device__ __forceinline__ void store_scale(const code_rule &rule, const code_scales &scales,
                                            int64_t at, const code_scale_made &scale)
{
    if (rule.scale == CODE_SCALE_F32)
        static_cast<uint32_t *>(scales.data)[at] = scale.bits;
    else
        static_cast<uint8_t *>(scales.data)[at] = (uint8_t)scale.bits;
}

// ------------------------------------------------------------------------------------ codes

struct code_divisor {
    float factor;
    shared_divisor divisor;
};

__device__ __forceinline__ code_divisor divisor_of(const code_scale_made &scale)
{
    return {scale.factor, divisor_of(scale.divisor)};
}

__device__ __forceinline__ uint32_t int8_of(float x, float least)
{
    return x != x ? 0 : (uint32_t)__float2int_rn(fminf(fmaxf(x, least), 127.0f)) & 0xFFu;
}

// Four bits, as roped/numeric.h defines them. Below 1 they are steps of a half, to which a float
// that is as large as 2^22 rounds.
__device__ __forceinline__ uint32_t e2m1_of(float x)
{
    const float magnitude = fminf(fabsf(x), 6.0f); // of NaN too
    const uint32_t bits = __float_as_uint(magnitude);
    const uint32_t normal = ((bits + 0x1FFFFFu + (bits >> 22 & 1u)) >> 22) - 252u;
    const uint32_t code = magnitude < 1.0f ? __float_as_uint(magnitude + 0x1p22f) & 3u : normal;
    return code | (x != x ? 0u : __float_as_uint(x) >> 28 & 8u);
}

// Codes of values; to is where the first one is, aligned to all of them.
template <int n>
__device__ __forceinline__ void store_codes(const code_rule &rule, uint8_t *to, float (&x)[n],
                                            const code_divisor &by)
{
    if (rule.scale == CODE_SCALE_E4M3)
        multiply(x, by.factor);
#pragma unroll
    for (float &value : x)
        value = divide(value, by.divisor);
    if (rule.element <= CODE_E5M2) {
        store_fp8(to, x, rule.element == CODE_E5M2);
    } else if (rule.element == CODE_I8) {
        fp8_codes<n> codes = {};
#pragma unroll
        for (int i = 0; i < n; i++)
            codes.word[i / 4] |= int8_of(x[i], rule.least_code) << 8 * (i % 4);
        store_fp8(to, codes);
    } else if constexpr (n % 2 == 0) {
        fp8_codes<n / 2> codes = {};
#pragma unroll
        for (int i = 0; i < n; i++)
            codes.word[i / 8] |= e2m1_of(x[i]) << 4 * (i % 8);
        store_fp8(to, codes);
    }
}
