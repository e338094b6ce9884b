/*
 * quantize_rows.c - largest values, quotients and int8 of a block, and values
 * of codes; built once per instruction set, as rows.c is. The compiler makes
 * vectors of these loops: of largest because magnitudes have the order of their
 * bits.
 */
#include "cpu/quantize_rows.h"
#include "cpu/rows_isa.h"

static int32_t largest(const float *x, int64_t n, int32_t bound, int32_t least)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7FFFFFFF;
        bits = bits > bound ? 0 : bits;
        least = bits > least ? bits : least;
    }
    return least;
}

static void divide(float *x, int64_t n, struct cpu_quotient by)
{
    if (by.factor == 1) {
        for (int64_t i = 0; i < n; i++)
            x[i] /= by.divisor;
    } else {
        for (int64_t i = 0; i < n; i++)
            x[i] = x[i] * by.factor / by.divisor;
    }
}

static void to_i8(int8_t *restrict to, const float *restrict x, int64_t n,
                  float least)
{
    const float to_integer = 0x1.8p23f;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] < least ? least : x[i];
        v = v > 127 ? 127 : v;
        v = v != v ? 0 : v;
        to[i] = (int8_t)(int32_t)((v + to_integer) - to_integer);
    }
}

/* How many midpoints are below a magnitude; one that is even belongs to the
 * code above it. NaN is beyond all of them. */
static inline int32_t e2m1_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const float a = x < 0 ? -x : x;
    const int32_t code = !(a <= 0.25f) + !(a < 0.75f) + !(a <= 1.25f) +
                         !(a < 1.75f) + !(a <= 2.5f) + !(a < 3.5f) + !(a <= 5);
    return code | (x != x ? 0 : bits >> 28 & 8);
}

static void to_e2m1(uint8_t *restrict to, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++)
        to[i] = (uint8_t)(e2m1_of(x[2 * i]) | e2m1_of(x[2 * i + 1]) << 4);
}

/* The value of a float of few bits: so many of the mantissa, a bias, and the
 * first magnitude that is Inf or NaN. */
static inline float value_of(int32_t magnitude, int32_t sign, int mantissa,
                             int bias, int32_t first_special)
{
    const float step =
        roped_bits_float((uint32_t)(128 - bias - mantissa) << 23);
    const float small = (float)magnitude * step;
    const int32_t digits = magnitude << (23 - mantissa);
    int32_t bits;
    memcpy(&bits, &small, sizeof bits);
    if (magnitude >= 1 << mantissa)
        bits = digits + ((127 - bias) << 23);
    if (magnitude >= first_special)
        bits = digits | 0x7F800000;
    return roped_bits_float((uint32_t)bits | (uint32_t)sign << 24);
}

static void expand(enum code_element element, float *restrict to,
                   const void *from, int64_t n)
{
    const uint8_t *restrict code = from;
    const int8_t *restrict number = from;
    switch (element) {
    case CODE_E4M3:
        for (int64_t i = 0; i < n; i++)
            to[i] = value_of(code[i] & 0x7F, code[i] & 0x80, 3, 7, 0x7F);
        break;
    case CODE_E5M2:
        for (int64_t i = 0; i < n; i++)
            to[i] = value_of(code[i] & 0x7F, code[i] & 0x80, 2, 15, 0x7C);
        break;
    case CODE_I8:
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)number[i];
        break;
    case CODE_E2M1:
        for (int64_t i = 0; i < n / 2; i++) {
            to[2 * i] = value_of(code[i] & 7, code[i] << 4 & 0x80, 1, 1, 8);
            to[2 * i + 1] = value_of(code[i] >> 4 & 7, code[i] & 0x80, 1, 1, 8);
        }
        break;
    }
}

static void multiply(float *x, int64_t n, int64_t tile, const float *scale)
{
    for (; n > 0; x += tile, n -= tile, scale++) {
        const int64_t n_here = n < tile ? n : tile;
        const float factor = *scale;
        for (int64_t i = 0; i < n_here; i++)
            x[i] *= factor;
    }
}

extern const struct cpu_quantize_rows ISA(cpu_quantize_rows);
const struct cpu_quantize_rows ISA(cpu_quantize_rows) = {
    .largest = largest,
    .divide = divide,
    .to_i8 = to_i8,
    .to_e2m1 = to_e2m1,
    .expand = expand,
    .multiply = multiply,
};
