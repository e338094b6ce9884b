/*
 * numeric.h - scalar conversions between float32 and the narrow types, as
 * every backend must make them: round to nearest even, subnormals and -0
 * kept, NaN stays NaN. FP8 saturates to its largest finite value; its NaN is
 * 0x7F. The definition: backends have faster ones and are tested against it.
 */
#ifndef ROPED_NUMERIC_H
#define ROPED_NUMERIC_H

#include <stdint.h>
#include <string.h>

#define ROPED_E4M3_MAX 448.0f
#define ROPED_E5M2_MAX 57344.0f
#define ROPED_E2M1_MAX 6.0f

static inline uint32_t roped_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float roped_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float roped_bf16_to_float(uint16_t code)
{
    return roped_bits_float((uint32_t)code << 16);
}

static inline uint16_t roped_float_to_bf16(float x)
{
    uint32_t bits = roped_float_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static inline float roped_f16_to_float(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000u) << 16;
    uint32_t magnitude = code & 0x7FFFu;
    if (magnitude >= 0x7C00u) /* Inf, NaN */
        return roped_bits_float(sign | 0x7F800000u | (magnitude << 13));
    if (magnitude < 0x0400u) { /* subnormal: an integer times 2^-24 */
        float x = (float)magnitude * (1.0f / 16777216);
        return roped_bits_float(sign | roped_float_bits(x));
    }
    return roped_bits_float(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

/*
 * Rounds the magnitude of a finite float32 to a format with mantissa bits m
 * and exponent bias b, where it does not overflow. A normal result comes from
 * adding half a unit to the bits; a subnormal one from adding a constant whose
 * unit in the last place is the format's smallest step.
 */
static inline uint32_t roped_round_magnitude(float magnitude, int m, int b)
{
    uint32_t bits = roped_float_bits(magnitude);
    if (bits < (uint32_t)(127 - b + 1) << 23) {
        float step = roped_bits_float((uint32_t)(127 + 1 - b - m + 23) << 23);
        return roped_float_bits(magnitude + step) - roped_float_bits(step);
    }
    bits += (1u << (22 - m)) - 1u + ((bits >> (23 - m)) & 1u);
    return (bits >> (23 - m)) - ((uint32_t)(127 - b) << m);
}

static inline uint16_t roped_float_to_f16(float x)
{
    uint32_t bits = roped_float_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x1FFu));
    if (magnitude >= 0x477FF000u) /* 65520 and above round to Inf */
        return (uint16_t)(sign | 0x7C00u);
    return (uint16_t)(sign | roped_round_magnitude(roped_bits_float(magnitude),
                                                   10, 15));
}

static inline uint8_t roped_float_to_fp8(float x, int m, int b, float max)
{
    uint32_t bits = roped_float_bits(x);
    uint32_t sign = (bits >> 24) & 0x80u;
    float magnitude = roped_bits_float(bits & 0x7FFFFFFFu);
    if (magnitude != magnitude)
        return 0x7F;
    if (magnitude > max)
        magnitude = max;
    return (uint8_t)(sign | roped_round_magnitude(magnitude, m, b));
}

static inline uint8_t roped_float_to_e4m3(float x)
{
    return roped_float_to_fp8(x, 3, 7, ROPED_E4M3_MAX);
}

static inline uint8_t roped_float_to_e5m2(float x)
{
    return roped_float_to_fp8(x, 2, 15, ROPED_E5M2_MAX);
}

static inline float roped_e5m2_to_float(uint8_t code)
{
    return roped_f16_to_float((uint16_t)((uint16_t)code << 8));
}

static inline float roped_e4m3_to_float(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t magnitude = code & 0x7Fu;
    float x;
    if (magnitude == 0x7Fu)
        return roped_bits_float(sign | 0x7FC00000u);
    if (magnitude < 8u)
        x = (float)magnitude * (1.0f / 512);
    else
        x = roped_bits_float((magnitude << 20) + ((127u - 7u) << 23));
    return roped_bits_float(sign | roped_float_bits(x));
}

/* Four bits, of which NaN has none: it becomes the largest, as PTX's cvt makes
 * it. */
static inline uint8_t roped_float_to_e2m1(float x)
{
    uint32_t bits = roped_float_bits(x);
    float magnitude = roped_bits_float(bits & 0x7FFFFFFFu);
    if (magnitude != magnitude)
        return 7;
    if (magnitude > ROPED_E2M1_MAX)
        magnitude = ROPED_E2M1_MAX;
    return (uint8_t)((bits >> 28 & 8u) |
                     roped_round_magnitude(magnitude, 1, 1));
}

/* Of the low four bits. */
static inline float roped_e2m1_to_float(uint8_t code)
{
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float x = values[code & 7];
    return code & 8 ? -x : x;
}

/* 2^(code - 127); 0xFF is NaN. */
static inline float roped_e8m0_to_float(uint8_t code)
{
    return roped_bits_float(code == 0xFF ? 0x7FC00000u
                            : code == 0  ? 0x00400000u
                                         : (uint32_t)code << 23);
}

#endif
