/*
 * vector_portable.h - cpu/vector.h for any machine: loops over arrays that
 * compilers vectorise. Nothing is streamed.
 */
#ifndef ROPED_CPU_VECTOR_PORTABLE_H
#define ROPED_CPU_VECTOR_PORTABLE_H

enum { LANES = 4, BLOCK = 2 * LANES };

typedef float vfloat __attribute__((vector_size(4 * sizeof(float))));
typedef struct {
    vfloat lo, hi;
} block;
typedef struct {
    uint16_t code[BLOCK];
} raw16;
typedef struct {
    uint8_t code[BLOCK];
} raw8;

/* -------------------------------------------------------------- arithmetic */

static inline vfloat splat(float x)
{
    return (vfloat){x, x, x, x};
}

static inline vfloat multiply_add(vfloat a, vfloat b, vfloat c)
{
    return a * b + c;
}

static inline vfloat multiply_subtract(vfloat a, vfloat b, vfloat c)
{
    return a * b - c;
}

static inline vfloat swap_neighbours(vfloat x)
{
    return (vfloat){x[1], x[0], x[3], x[2]};
}

/* ------------------------------------------------------------------ memory */

static inline block load32_part(const void *from, int64_t n)
{
    block x = {splat(0), splat(0)};
    memcpy(&x, from, (size_t)n * sizeof(float));
    return x;
}

static inline block load32(const void *from)
{
    return load32_part(from, BLOCK);
}

static inline void store32_part(void *to, block x, int64_t n)
{
    memcpy(to, &x, (size_t)n * sizeof(float));
}

static inline void store32(void *to, block x)
{
    store32_part(to, x, BLOCK);
}

static inline raw16 load16_part(const void *from, int64_t n)
{
    raw16 x = {{0}};
    memcpy(&x, from, (size_t)n * sizeof *x.code);
    return x;
}

static inline raw16 load16(const void *from)
{
    return load16_part(from, BLOCK);
}

static inline void store16_part(void *to, raw16 x, int64_t n)
{
    memcpy(to, &x, (size_t)n * sizeof *x.code);
}

static inline void store16(void *to, raw16 x)
{
    store16_part(to, x, BLOCK);
}

static inline void store8_part(void *to, raw8 x, int64_t n)
{
    memcpy(to, &x, (size_t)n);
}

static inline void store8(void *to, raw8 x)
{
    store8_part(to, x, BLOCK);
}

static inline void stream32(void *to, block x)
{
    store32(to, x);
}

static inline void stream16(void *to, raw16 x)
{
    store16(to, x);
}

static inline void stream8(void *to, raw8 x)
{
    store8(to, x);
}

static inline void stream64(void *to, const void *from)
{
    memcpy(to, from, 64);
}

static inline void fence(void)
{
}

/* ------------------------------------------------------------- conversions */

static inline block block_of(const float *x)
{
    block result;
    memcpy(&result, x, sizeof result);
    return result;
}

/* 2^112 moves the exponent from float16's bias to float32's. */
static inline block widen_f16(raw16 from)
{
    float x[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        uint32_t magnitude = (uint32_t)(from.code[i] & 0x7FFF) << 13;
        uint32_t sign = (uint32_t)(from.code[i] & 0x8000) << 16;
        uint32_t finite =
            roped_float_bits(roped_bits_float(magnitude) * 0x1p112f);
        uint32_t special = magnitude | 0x7F800000u; /* Inf, NaN */
        x[i] = roped_bits_float(
            sign | (magnitude >= 0x7C00u << 13 ? special : finite));
    }
    return block_of(x);
}

static inline block widen_bf16(raw16 from)
{
    float x[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        x[i] = roped_bf16_to_float(from.code[i]);
    return block_of(x);
}

static inline raw16 narrow_bf16(block x)
{
    raw16 to;
    float from[BLOCK];
    memcpy(from, &x, sizeof from);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits = roped_float_bits(from[i]);
        uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
        uint32_t nan = (bits >> 16) | 0x40u;
        to.code[i] =
            (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
    }
    return to;
}

/*
 * Codes of magnitudes, bits of a float, in a format with m mantissa bits and
 * bias b. Adding the power of two whose unit in the last place is the spacing
 * of codes at x rounds to nearest even; the low bits of the sum then count
 * codes from the start of the binade, and the exponent says which that is.
 */
static inline uint32_t small_code(uint32_t x, int m, int b)
{
    const uint32_t smallest = (uint32_t)(128 - b) << 23; /* normal */
    uint32_t binade = x & 0x7F800000u;
    binade = binade > smallest ? binade : smallest;
    uint32_t power = binade + ((uint32_t)(23 - m) << 23);
    uint32_t sum =
        roped_float_bits(roped_bits_float(x) + roped_bits_float(power));
    return sum - power + ((binade - smallest) >> (23 - m));
}

/* Beyond 65520 the next code is that of Inf. */
static inline raw16 narrow_f16(block x)
{
    raw16 to;
    float from[BLOCK];
    memcpy(from, &x, sizeof from);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits = roped_float_bits(from[i]);
        uint32_t magnitude = bits & 0x7FFFFFFFu;
        uint32_t clamped = magnitude < 0x47800000u ? magnitude : 0x47800000u;
        uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x1FFu);
        uint32_t code = small_code(clamped, 10, 15);
        code = magnitude > 0x7F800000u ? nan : code;
        to.code[i] = (uint16_t)(code | ((bits >> 16) & 0x8000u));
    }
    return to;
}

static inline raw8 narrow_fp8(block x, int m, int b, float max)
{
    raw8 to;
    float from[BLOCK];
    const uint32_t largest = roped_float_bits(max);
    memcpy(from, &x, sizeof from);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits = roped_float_bits(from[i]);
        uint32_t magnitude = bits & 0x7FFFFFFFu;
        uint32_t clamped = magnitude < largest ? magnitude : largest;
        uint32_t code = small_code(clamped, m, b) | ((bits >> 24) & 0x80u);
        to.code[i] = (uint8_t)(magnitude > 0x7F800000u ? 0x7Fu : code);
    }
    return to;
}

#endif
