/*
 * quotients.h - correctly rounded quotients by a number that divides many, from
 * products with its inverse: a division takes as long as dozens of them.
 */
#ifndef ROPED_CPU_QUOTIENTS_H
#define ROPED_CPU_QUOTIENTS_H

#include "cpu/rows_isa.h"

#include <math.h>

/* What divides, its inverse, and what that lacks: inverse + rest is 1 / by to
 * twice as many bits. */
struct divisor {
    float by, inverse, rest;
};

/* The inverse is NaN where it, or a product below, could lose bits. */
INLINE struct divisor divisor_of(float by)
{
    const bool is_tame = HAS_FUSED && by >= 0x1p-60f && by <= 0x1p60f;
    const float inverse = is_tame ? 1 / by : NAN;
    const float lacking = HAS_FUSED ? fmaf(-by, inverse, 1) : 0;
    return (struct divisor){by, inverse, lacking * inverse};
}

/*
 * x / by: near is one of the two floats that the quotient is between, or beside
 * them where it is nearly a float, so what is left is exact. The last product
 * corrects near by half a unit with a smaller error than the distance of any
 * quotient from what is half-way between two floats. Quotients below 2^-20,
 * whose codes are 0, are not always correct but for their signs. What is
 * infinite or NaN, or becomes so, is NaN.
 */
INLINE vfloat near_quotient(vfloat x, vfloat by, vfloat inverse, vfloat rest)
{
    const vfloat near = multiply_add(x, rest, x * inverse);
    const vfloat left = negative_multiply_add(near, by, x);
    const vfloat q = multiply_add(left, inverse, near);
    return (vfloat)((vint)q | ((vint)x & INT32_MIN));
}

/* Quotients that become codes, of a block whose halves have divisors of their
 * own. */
INLINE block quotients(block x, block by, block inverse, block rest)
{
    const block q = {near_quotient(x.lo, by.lo, inverse.lo, rest.lo),
                     near_quotient(x.hi, by.hi, inverse.hi, rest.hi)};
    if (UNLIKELY(!HAS_FUSED || any_nan(q)))
        return (block){x.lo / by.lo, x.hi / by.hi};
    return q;
}

INLINE block lo_and_hi(float lo, float hi)
{
    return (block){splat(lo), splat(hi)};
}

INLINE block quotients_by(block x, struct divisor lo, struct divisor hi)
{
    return quotients(x, lo_and_hi(lo.by, hi.by),
                     lo_and_hi(lo.inverse, hi.inverse),
                     lo_and_hi(lo.rest, hi.rest));
}

#endif
