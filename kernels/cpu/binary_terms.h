/*
 * binary_terms.h - the terms of gradients of binary functions, by blocks: what
 * the inner loops of binary_backward share. Private to them.
 */
#ifndef ROPED_CPU_BINARY_TERMS_H
#define ROPED_CPU_BINARY_TERMS_H

#include "cpu/binary_rows.h"
#include "cpu/rows_isa.h"
#include "ops/binary_backward.h"

/* The arithmetic, with x the full operand and y the summed one. */
enum kind {
    LINEAR, /* add, sub: no values, but signs */
    MUL,
    OVER_SUM,  /* div, y is the divisor */
    OVER_FULL, /* div, x is the divisor */
    PRODUCT,   /* div, y is -1 / divisor^2; of sums alone */
};

struct signs {
    float full, sum;
};

/* Divided twice: divisor * divisor would leave float32's range where that does
 * not. */
INLINE vfloat quotient_term(vfloat g, vfloat over, vfloat divisor)
{
    return -(g * (over / divisor / divisor));
}

INLINE vfloat sum_term(enum kind kind, struct signs sign, vfloat g, vfloat x,
                       vfloat y)
{
    if (kind == LINEAR)
        return g * splat(sign.sum);
    if (kind == MUL)
        return g * x;
    if (kind == PRODUCT)
        return g * (x * y);
    return kind == OVER_SUM ? quotient_term(g, x, y) : (vfloat)(g / x);
}

INLINE block sum_terms(enum kind kind, struct signs sign, block g, block x,
                       block y)
{
    return (block){sum_term(kind, sign, g.lo, x.lo, y.lo),
                   sum_term(kind, sign, g.hi, x.hi, y.hi)};
}

INLINE enum kind kind_of(const struct cpu_binary *binary)
{
    if (binary->function == BINARY_MUL)
        return MUL;
    if (binary->function == BINARY_DIV)
        return binary->sums_a ? OVER_FULL : OVER_SUM;
    return LINEAR;
}

INLINE struct signs signs_of(const struct cpu_binary *binary)
{
    float sign_b = binary->function == BINARY_SUB ? -1.0f : 1.0f;
    return (struct signs){.full = binary->sums_a ? sign_b : 1.0f,
                          .sum = binary->sums_a ? 1.0f : sign_b};
}

/* Calls work(dtype, kind, ...) with both as constants. */
#define WITH_KIND(kind, work, dtype, ...)                                      \
    switch (kind) {                                                            \
    case LINEAR:                                                               \
        work(dtype, LINEAR, __VA_ARGS__);                                      \
        break;                                                                 \
    case MUL:                                                                  \
        work(dtype, MUL, __VA_ARGS__);                                         \
        break;                                                                 \
    case OVER_SUM:                                                             \
        work(dtype, OVER_SUM, __VA_ARGS__);                                    \
        break;                                                                 \
    case OVER_FULL:                                                            \
        work(dtype, OVER_FULL, __VA_ARGS__);                                   \
        break;                                                                 \
    case PRODUCT:                                                              \
        break;                                                                 \
    }
#define WITH_TYPE_AND_KIND(dtype, kind, work, ...)                             \
    if ((dtype) == ROPED_F32)                                                  \
        WITH_KIND(kind, work, ROPED_F32, __VA_ARGS__)                          \
    else if ((dtype) == ROPED_F16)                                             \
        WITH_KIND(kind, work, ROPED_F16, __VA_ARGS__)                          \
    else                                                                       \
        WITH_KIND(kind, work, ROPED_BF16, __VA_ARGS__)

INLINE block load_floats(const float *from, int64_t n)
{
    return load(ROPED_F32, HALVES, from, n);
}

INLINE block load_at(enum roped_dtype dtype, const void *base, int64_t i,
                     int64_t n)
{
    return load(dtype, HALVES, at(dtype, base, i), n);
}

INLINE void store_at(enum roped_dtype dtype, void *base, int64_t i, block x,
                     int64_t n, bool is_streamed)
{
    store(dtype, HALVES, place(dtype, base, i), x, 1, n, is_streamed);
}

/*
 * Inputs are asked for so many bytes ahead: three to five streams at once are
 * more than the processor's own prefetching keeps up with.
 */
INLINE void prefetch_block(enum roped_dtype dtype, const void *base, int64_t i)
{
    enum { NEAR_AHEAD = 2048, LINE = 64 };
    const char *from = at(dtype, base, i);
    for (size_t byte = 0; byte < BLOCK * size_of(dtype); byte += LINE)
        __builtin_prefetch(from + NEAR_AHEAD + byte, 0, 2);
}

INLINE doubles add_floats(doubles sum, block x)
{
    doubles more = widen_floats(x.lo + x.hi);
    return (doubles){sum.lo + more.lo, sum.hi + more.hi};
}

INLINE void add(double *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)x[i];
}

/* binary_sum_rows.c: see struct cpu_binary_rows. */
extern const struct cpu_binary_sum_rows ISA(cpu_binary_sum_rows);

#endif
