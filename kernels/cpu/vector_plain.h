/*
 * vector_plain.h - what cpu/vector.h asks for beyond what an instruction set
 * without masks and without permutations of a whole block has: parts of blocks
 * go by way of the stack, pairs by way of split32 and merge32.
 */
#ifndef ROPED_CPU_VECTOR_PLAIN_H
#define ROPED_CPU_VECTOR_PLAIN_H

typedef vint vmask; /* all bits of a lane, or none */

INLINE vmask is_less(vfloat a, vfloat b)
{
    return (vmask)(a < b);
}

INLINE vmask is_nan(vfloat x)
{
    return (vmask)(x != x);
}

INLINE vfloat pick_lanes(vmask mask, vfloat yes, vfloat no)
{
    return (vfloat)((mask & (vint)yes) | (~mask & (vint)no));
}

INLINE vfloat at_least(vfloat least, vfloat x)
{
    return pick_lanes(is_less(least, x), x, least);
}

INLINE vfloat at_most(vfloat most, vfloat x)
{
    return pick_lanes(is_less(most, x), most, x);
}

INLINE vfloat smaller_magnitude(vfloat x, float most)
{
    return at_most(splat(most), larger_magnitude(x, splat(0)));
}

INLINE vfloat largest_magnitude(block x)
{
    return larger_magnitude(x.lo, larger_magnitude(x.hi, splat(0)));
}

INLINE vfloat unless_negative(vfloat x)
{
    return pick_lanes(is_less(x, splat(0)), splat(-0.0f), x);
}

INLINE vfloat negative_magnitude(vfloat x)
{
    return (vfloat)((vint)x | INT32_MIN);
}

INLINE vfloat power_of_two(vint k)
{
    return (vfloat)((k + 127) << 23);
}

INLINE vfloat scaled(vfloat x, vfloat k)
{
    const vint whole = nearest_integers(k), half = whole >> 1;
    return x * power_of_two(half) * power_of_two(whole - half);
}

INLINE vfloat nearer_reciprocal(vfloat x, vfloat y)
{
    return multiply_add(y, negative_multiply_add(x, y, splat(1)), y);
}

INLINE vfloat reciprocal(vfloat x)
{
    const vfloat guess = (vfloat)(0x7EF311C7 - (vint)x); /* within 13 % */
    const vfloat second = nearer_reciprocal(x, guess);
    return nearer_reciprocal(x, nearer_reciprocal(x, second));
}

/* Where HAS_JOINED is 0 nothing reads it. */
INLINE raw16 joined(raw16 x, raw16 y, int64_t first)
{
    (void)y;
    (void)first;
    return x;
}

/* Where HAS_POWERS is 0 nothing reads it. */
INLINE vfloat power_of_part(vint k)
{
    return (vfloat)k;
}

INLINE vint larger_integers(vint a, vint b)
{
    const vint is_larger = (vint)(a > b);
    return (a & is_larger) | (b & ~is_larger);
}

INLINE vfloat look_up(const float table[32], vint k)
{
    return power_of_part(k) * splat(table[0]);
}

typedef uint8_t lane_bytes __attribute__((vector_size(LANES)));

INLINE raw8 low_bytes(vint lo, vint hi)
{
    const lane_bytes both[] = {__builtin_convertvector(lo, lane_bytes),
                               __builtin_convertvector(hi, lane_bytes)};
    raw8 all;
    memcpy(&all, both, sizeof all);
    return all;
}

INLINE vint load_bytes(const void *from)
{
    lane_bytes x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, vint);
}

INLINE void sums_of_doubles8(double *to, const doubles *x)
{
    for (int i = 0; i < 8; i++)
        to[i] = sum_of_doubles(x[i]);
}

INLINE block load32_part(const void *from, int64_t n)
{
    float x[BLOCK] = {0};
    memcpy(x, from, (size_t)n * sizeof *x);
    return load32(x);
}

INLINE block first_of(block x, int64_t n)
{
    float value[BLOCK];
    store32(value, x);
    return load32_part(value, n);
}

INLINE void store32_part(void *to, block x, int64_t n)
{
    float y[BLOCK];
    store32(y, x);
    memcpy(to, y, (size_t)n * sizeof *y);
}

INLINE raw16 load16_part(const void *from, int64_t n)
{
    uint16_t x[BLOCK] = {0};
    memcpy(x, from, (size_t)n * sizeof *x);
    return load16(x);
}

INLINE void store16_part(void *to, raw16 x, int64_t n)
{
    uint16_t y[BLOCK];
    store16(y, x);
    memcpy(to, y, (size_t)n * sizeof *y);
}

INLINE void store8_part(void *to, raw8 x, int64_t n)
{
    uint8_t y[BLOCK];
    store8(y, x);
    memcpy(to, y, (size_t)n);
}

INLINE block split_f16(raw16 x)
{
    return split32(widen_f16(x));
}

INLINE raw16 merge_f16(block x)
{
    return narrow_f16(merge32(x));
}

INLINE raw8 merge_fp8(block x, float scale, int m, int b, float max)
{
    return narrow_fp8(merge32(x), scale, m, b, max);
}

#endif
