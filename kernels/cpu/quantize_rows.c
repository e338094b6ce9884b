/*
 * quantize_rows.c - largest values, quotients and int8 of a block; built once
 * per instruction set, as rows.c is. The compiler makes vectors of these loops:
 * of largest because magnitudes have the order of their bits.
 */
#include "cpu/quantize_rows.h"
#include "cpu/rows_isa.h"

static int32_t largest(const float *x, int64_t n, int32_t least)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7FFFFFFF;
        bits = bits > 0x7F800000 ? 0 : bits;
        least = bits > least ? bits : least;
    }
    return least;
}

static void divide(float *x, int64_t n, float divisor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] /= divisor;
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

extern const struct cpu_quantize_rows ISA(cpu_quantize_rows);
const struct cpu_quantize_rows ISA(cpu_quantize_rows) = {
    .largest = largest,
    .divide = divide,
    .to_i8 = to_i8,
};
