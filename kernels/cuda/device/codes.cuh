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

// What two codes of 8 bits are, as float16, which has every value of theirs. For chips without the
// instruction: a code that is shifted into the place of a float16 is its value times a power of
// two.
template <bool is_e5m2>
__device__ __forceinline__ float2 fp8x2_values(uint32_t codes)
{
    using half = element<__half>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t pair;
    if constexpr (is_e5m2)
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)codes));
    else
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)codes));
    return half::to_float2(pair);
#else
    const uint32_t pair = (codes & 0xFFu) | (codes & 0xFF00u) << 8;
    if constexpr (is_e5m2)
        return half::to_float2(pair << 8);
    const float2 value = half::to_float2((pair & 0x7F007Fu) << 7 | (pair & 0x800080u) << 8);
    const float nan = __uint_as_float(0x7FC00000u);
    return make_float2((pair & 0x7Fu) == 0x7Fu ? nan : value.x * 0x1p8f,
                       (pair & 0x7F0000u) == 0x7F0000u ? nan : value.y * 0x1p8f);
#endif
}

// The values of codes i and i + 1 of a word, or of E2M1 i and i + 4: a float of 4 bits is one of 16
// whose exponent has another bias, and shifted into the place of a float16, it is its value times a
// power of two.
template <int element_kind>
__device__ __forceinline__ float2 code_values(uint32_t word, int i)
{
    if constexpr (element_kind == CODE_E2M1) {
        const uint32_t pair = word >> 4 * i;
        float2 value = element<__half>::to_float2((pair & 0x70007u) << 9 | (pair & 0x80008u) << 12);
        return make_float2(value.x * 0x1p14f, value.y * 0x1p14f);
    } else {
        const uint32_t codes = word >> 8 * i;
        if constexpr (element_kind == CODE_I8)
            return make_float2((float)(int8_t)codes, (float)(int8_t)(codes >> 8));
        else
            return fp8x2_values<element_kind == CODE_E5M2>(codes);
    }
}

// n values of the codes in words, the first in the lowest bits.
template <int element_kind, int n>
__device__ __forceinline__ void expand(const uint32_t (&word)[(n + 3) / 4], float (&x)[n])
{
    constexpr int kApart = element_kind == CODE_E2M1 ? 4 : 1,
                  kOfWord = element_kind == CODE_E2M1 ? 8 : 4;
#pragma unroll
    for (int i = 0; i < n; i++) {
        if (i / kApart % 2 == 1)
            continue;
        const float2 value = code_values<element_kind>(word[i / kOfWord], i % kOfWord);
        x[i] = value.x;
        if (i + kApart < n)
            x[i + kApart] = value.y;
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

// Where the scales of a strip are, and how far from there that of a tile is.
__device__ __forceinline__ int64_t scales_of_strip(const code_scales &scales, int64_t strip)
{
    if (scales.quads == 0)
        return strip * scales.row;
    const uint32_t of_128 = (uint32_t)strip % 128;
    return (strip >> 7) * scales.quads * 512 + (of_128 % 32 * 16 + of_128 / 32 * 4);
}

__device__ __forceinline__ int64_t scale_of_tile(const code_scales &scales, int64_t tile)
{
    return scales.quads == 0 ? tile * scales.tile : (tile >> 2) * 512 + ((uint32_t)tile & 3);
}

__device__ __forceinline__ int64_t scale_at(const code_scales &scales, int64_t strip, int64_t tile)
{
    return scales_of_strip(scales, strip) + scale_of_tile(scales, tile);
}

__device__ __forceinline__ float e8m0_value(uint32_t code)
{
    return __uint_as_float(code == 0xFFu ? 0x7FC00000u : code == 0 ? 0x00400000u : code << 23);
}

__device__ __forceinline__ const char *scale_address(int kind, const code_scales &scales,
                                                     int64_t at)
{
    return static_cast<const char *>(scales.data) + (kind == CODE_SCALE_F32 ? at * 4 : at);
}

// A scale as it came, and the number that it is.
__device__ __forceinline__ uint32_t load_scale(int kind, const char *from)
{
    if (kind == CODE_SCALE_F32)
        return __float_as_uint(load_float(reinterpret_cast<const float *>(from)));
    return *reinterpret_cast<const uint8_t *>(from);
}

__device__ __forceinline__ float scale_of(int kind, uint32_t raw)
{
    if (kind == CODE_SCALE_F32)
        return __uint_as_float(raw);
    return kind == CODE_SCALE_E8M0 ? e8m0_value(raw) : code_values<CODE_E4M3>(raw, 0).x;
}

// What a scale says that values are multiplied by, and then divided: by a shared_divisor (fp8.cuh),
// whose first factor is part of the one here. Of E8M0 they are multiplied alone, which is exact,
// and of E4M3 by high alone (e2m1_codes_of).
struct code_divisor {
    float factor;
    float high, low;
};

__device__ __forceinline__ code_divisor code_divisor_of(float scale)
{
    const shared_divisor divisor = divisor_of(scale);
    return {divisor.first, divisor.high, divisor.low};
}

// A scale as it is stored, and what it says.
struct code_scale_made {
    uint32_t bits;
    code_divisor divisor;
};

__device__ __forceinline__ float finished(const code_rule &rule, float scale)
{
    if (scale == 0.0f)
        scale = 1.0f;
    return rule.power_of_two ? power_from(scale) : scale;
}

// Of a tensor, whose part's scales compete: without what is not monotonic, see finished.
__device__ __forceinline__ float raw_scale_of(const code_rule &rule, float largest)
{
    return fmaxf(fminf(largest, rule.scale_ub) / rule.largest, rule.least_scale);
}

// The larger of two magnitudes: of E8M0 NaN counts, of others it does not.
__device__ __forceinline__ float larger_of(const code_rule &rule, float a, float b)
{
    return rule.scale == CODE_SCALE_E8M0 ? larger_or_nan(a, b) : fmaxf(a, b);
}

template <int n>
__device__ __forceinline__ float largest_magnitude(const code_rule &rule, const float (&x)[n])
{
    float largest = rule.scale == CODE_SCALE_E8M0 ? fabsf(x[0]) : fmaxf(fabsf(x[0]), 0.0f);
#pragma unroll
    for (int i = 1; i < n; i++)
        largest = larger_of(rule, largest, fabsf(x[i]));
    return largest;
}

// What a scale is made of: the largest magnitude. Of E8M0 half of it, so that there are two numbers
// beyond, the largest float for Inf, and Inf for NaN. A maximum of these is that of all values,
// whoever takes it.
__device__ __forceinline__ float without_nan(const code_rule &rule, float largest)
{
    if (rule.scale != CODE_SCALE_E8M0)
        return largest;
    return largest != largest ? __uint_as_float(0x7F800000u) : fminf(largest * 0.5f, FLT_MAX);
}

template <int n>
__device__ __forceinline__ float largest_of(const code_rule &rule, const float (&x)[n])
{
    return without_nan(rule, largest_magnitude(rule, x));
}

__device__ __forceinline__ uint32_t e8m0_of(const code_rule &rule, float half)
{
    if (half >= FLT_MAX)
        return half > FLT_MAX || rule.infinity == INFINITY_IS_NAN ? 0xFFu : 0xFEu;
    const int exponent = (int)((__float_as_uint(half) + rule.round_bits) >> 23) + 1;
    return (uint32_t)max(exponent - (int)(__float_as_uint(rule.largest) >> 23) + 127, 0);
}

// The power of two that E2M1's values are multiplied by to be numbers of float16 whose bits are
// codes (e2m1_codes_of).
constexpr float kE2m1Unit = 0x1p-14f;

// The float below the nearest one to 1 / scale, of a code of E4M3 above 0. A magnitude times that,
// rounded up, is on the same side of every midpoint of E2M1 as the quotient, and where the quotient
// is one, on it or on the side to which it is rounded (test_exact.c tries them all).
__device__ __forceinline__ float inverse_of_e4m3(uint32_t code)
{
    const float scale = element<__half>::to_float2(code << 7).x * 0x1p8f; // no NaN
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale)); // within 2^-23
    inverse = fmaf(inverse, fmaf(-inverse, scale, 1.0f), inverse);
    return __uint_as_float(__float_as_uint(inverse) - 1);
}

// Of what largest_of has found.
__device__ __forceinline__ code_scale_made make_scale(const code_rule &rule, float largest)
{
    if (rule.scale == CODE_SCALE_E8M0) {
        const uint32_t code = e8m0_of(rule, largest);
        return {code, {e8m0_value(code == 0xFFu ? code : 254u - code), 1.0f, 0.0f}};
    }
    if (rule.scale == CODE_SCALE_E4M3) {
        const uint32_t code =
            fp8x2_of<false>(largest / rule.largest * rule.global_scale, 0.0f) & 0xFFu;
        const float inverse = inverse_of_e4m3(code) * kE2m1Unit;
        return {code, {rule.global_scale, code == 0 ? 0.0f : inverse, 0.0f}};
    }
    const float scale = finished(rule, raw_scale_of(rule, largest));
    return {__float_as_uint(scale), code_divisor_of(scale)};
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

// The magnitude of what is in E2M1's units, rounded to what E2M1 has: three bits, as
// roped/numeric.h defines them. From 2^e to 2^(e + 1) they are steps of 2^(e - 1), and below 1
// those of e = 0: a sum with a number from 2^(e + 22) to 2^(e + 23) rounds to such a step. These
// are 1.75, 2.5 and 4 times 2^22.
__device__ __forceinline__ float rounded_to_e2m1(float x)
{
    const float power = __uint_as_float(__float_as_uint(x) & 0x7F800000u);
    const float large = fmaf(power, 0.75f * 0x1p22f, kE2m1Unit * 0x1p22f);
    return __fadd_rn(fabsf(x), large) - large;
}

// The codes of two of them, without signs, each in three bits from the tenth of a half. As float16
// the units' values have their codes' bits there. NaN, as Inf, becomes 6.
__device__ __forceinline__ uint32_t e2m1_pair(float low, float high)
{
    const __half2 both = __hmin2(__floats2half2_rn(rounded_to_e2m1(low), rounded_to_e2m1(high)),
                                 __float2half2_rn(6 * kE2m1Unit));
    uint32_t pair;
    memcpy(&pair, &both, sizeof pair);
    return pair;
}

// The signs of four values, each as often as a byte has bits; __byte_perm repeats none.
__device__ __forceinline__ uint32_t signs_of(float a, float b, float c, float d)
{
    uint32_t low, high;
    asm("prmt.b32 %0, %1, %2, 0xFBFB;" : "=r"(low) : "f"(a), "f"(b));
    asm("prmt.b32 %0, %1, %2, 0xFBFB;" : "=r"(high) : "f"(c), "f"(d));
    return __byte_perm(low, high, 0x5410);
}

// Codes of values, two a byte. Products with a factor have the sign of the value, and a NaN that
// has none here. What E4M3 divides by is left for the magnitude, whose product is rounded up.
template <int n>
__device__ __forceinline__ fp8_codes<n / 2> e2m1_codes_of(const code_rule &rule, float (&x)[n],
                                                          const code_divisor &by)
{
    const bool is_nv = rule.scale == CODE_SCALE_E4M3;
    fp8_codes<n / 2> codes;
    multiply(x, is_nv ? by.factor : by.factor * kE2m1Unit);
#pragma unroll
    for (int word = 0; word < (n + 7) / 8; word++) {
        float value[8] = {}, size[8] = {};
#pragma unroll
        for (int i = 0; i < 8 && i < n; i++) {
            value[i] = x[8 * word + i];
            size[i] = is_nv ? __fmul_ru(fabsf(value[i]), by.high) : value[i];
        }
        const uint32_t low = e2m1_pair(size[0], size[4]) + e2m1_pair(size[1], size[5]) * 16,
                       high = e2m1_pair(size[2], size[6]) + e2m1_pair(size[3], size[7]) * 16;
        const uint32_t even = signs_of(value[0], value[2], value[4], value[6]),
                       odd = signs_of(value[1], value[3], value[5], value[7]);
        codes.word[word] = low >> 9 | high >> 1 | (even & 0x08080808u) | (odd & 0x80808080u);
    }
    return codes;
}

// How codes are stored: in one access, aligned to all of them, or in halves that are each aligned,
// of which the second may be another row's.
enum code_store { kStoresWhole, kStoresHalves, kStoresFirst };

template <int n>
__device__ __forceinline__ void store_fp8(uint8_t *to, const fp8_codes<n> &codes, code_store how)
{
    if (how == kStoresWhole) {
        store_fp8(to, codes);
    } else if constexpr (n >= 2) {
        fp8_codes<n / 2> half = {};
        constexpr int kWords = (n / 2 + 3) / 4;
#pragma unroll
        for (int i = 0; i < kWords; i++)
            half.word[i] = codes.word[i];
        store_fp8(to, half);
#pragma unroll
        for (int i = 0; i < kWords; i++)
            half.word[i] = n >= 8 ? codes.word[kWords + i] : codes.word[0] >> 4 * n;
        if (how == kStoresHalves)
            store_fp8(to + n / 2, half);
    }
}

// What codes of 8 bits are made of: x is divided.
template <int n>
__device__ __forceinline__ void divide_codes(const code_rule &rule, float (&x)[n],
                                             const code_divisor &by)
{
    multiply(x, by.factor);
    if (rule.scale != CODE_SCALE_E8M0) {
#pragma unroll
        for (float &value : x)
            value = quotient(value, by.high, by.low);
    }
}

// Codes of 8 bits of what was divided.
template <int n>
__device__ __forceinline__ fp8_codes<n> byte_codes_of(const code_rule &rule, float (&x)[n])
{
    if (rule.element == CODE_E4M3)
        return fp8_codes_of<false>(x);
    if (rule.element == CODE_E5M2)
        return fp8_codes_of<true>(x);
    return int8_codes_of(x, rule.least_code);
}

// One of them.
template <int n>
__device__ __forceinline__ uint8_t byte_of(const fp8_codes<n> &codes, int i)
{
    return (uint8_t)(codes.word[i / 4] >> i % 4 * 8);
}

// Codes of values; to is where the first one is.
template <int n>
__device__ __forceinline__ void store_codes(const code_rule &rule, uint8_t *to, float (&x)[n],
                                            const code_divisor &by, code_store how = kStoresWhole)
{
    if (rule.element == CODE_E2M1) {
        if constexpr (n % 2 == 0)
            store_fp8(to, e2m1_codes_of(rule, x, by), how);
        return;
    }
    divide_codes(rule, x, by);
    if (rule.element == CODE_E4M3)
        store_fp8(to, fp8_codes_of<false>(x), how);
    else if (rule.element == CODE_E5M2)
        store_fp8(to, fp8_codes_of<true>(x), how);
    else
        store_fp8(to, int8_codes_of(x, rule.least_code), how);
}
