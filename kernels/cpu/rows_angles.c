/*
 * rows_angles.c - sines and cosines.
 */
#include "cpu/rows_isa.h"

#include <math.h>

/*
 * An angle is reduced by the nearest multiple k of pi/2; sine and cosine of
 * the rest r, at most 0.81, are polynomials, and the quadrant k mod 4 says
 * which is which. Errors are below 7e-8, for an angle that is a float32 below
 * 2^18 and a double below 2^50 alike.
 */
struct reduced {
    vfloat r;
    vint k;
};

/* Exact products of a fused multiply-add take pi/2 off in three parts. */
INLINE struct reduced reduce_near(vfloat angle)
{
    struct reduced near;
    near.k = nearest_integers(angle * splat(0x1.45f306p-1f));
    const vfloat k = floats_of(near.k);
    near.r = negative_multiply_add(k, splat(0x1.921fb6p+0f), angle);
    near.r = negative_multiply_add(k, splat(-0x1.777a5cp-25f), near.r);
    near.r = negative_multiply_add(k, splat(-0x1.ee59dap-50f), near.r);
    return near;
}

/*
 * In double. Adding 1.5 * 2^52 leaves k in the sum's last bits. Below 2^24 it
 * has at most 24 bits and part1 28, so that their product is exact; beyond, the
 * product is fused with the difference, by the C library if need be.
 */
static NOINLINE void reduce_far(const double *angle, float *r, int32_t *k)
{
    const double two_over_pi = 0x1.45f306dc9c883p-1, shift = 0x1.8p52;
    const double part1 = 0x1.921fb54p+0, part2 = 0x1.10b4611a62633p-30;
    bool is_beyond = false;
    for (int i = 0; i < LANES; i++) {
        double shifted = angle[i] * two_over_pi + shift;
        double nearest = shifted - shift;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        r[i] = (float)((angle[i] - nearest * part1) - nearest * part2);
        k[i] = (int32_t)(bits & 3);
        is_beyond |= angle[i] >= 0x1p24;
    }
    for (int i = 0; is_beyond && i < LANES; i++) {
        double nearest = angle[i] * two_over_pi + shift - shift;
        r[i] = (float)fma(-nearest, part2, fma(-nearest, part1, angle[i]));
    }
}

INLINE struct reduced reduce_doubles(const double *angle)
{
    struct reduced far;
    float r[LANES];
    int32_t k[LANES];
    reduce_far(angle, r, k);
    memcpy(&far.r, r, sizeof r);
    memcpy(&far.k, k, sizeof k);
    return far;
}

INLINE struct reduced reduce_floats(vfloat angle)
{
    float from[LANES];
    double wide[LANES];
    if (HAS_FUSED && all_below(angle, 0x1p18f))
        return reduce_near(angle);
    memcpy(from, &angle, sizeof from);
    for (int i = 0; i < LANES; i++)
        wide[i] = (double)from[i];
    return reduce_doubles(wide);
}

/* Negative where bit 1 of k is set. */
INLINE vfloat with_sign(vfloat x, vint k)
{
    const vint sign_bit = (vint)splat(-0.0f);
    return (vfloat)((vint)x ^ ((k << 30) & sign_bit));
}

INLINE void sine_cosine(struct reduced angle, vfloat *sine, vfloat *cosine)
{
    const vfloat r = angle.r, z = r * r;
    vfloat s = multiply_add(splat(-0x1.9943f2p-13f), z, splat(0x1.11073cp-7f));
    s = multiply_add(s, z, splat(-0x1.555546p-3f));
    s = multiply_add(s, z * r, r);
    vfloat c = multiply_add(splat(0x1.99eb9cp-16f), z, splat(-0x1.6c0c34p-10f));
    c = multiply_add(c, z, splat(0x1.55554ap-5f));
    c = multiply_add(c, z, splat(-0.5f));
    c = multiply_add(c, z, splat(1));
    *sine = with_sign(where_odd(angle.k, c, s), angle.k);
    *cosine = with_sign(where_odd(angle.k, s, c), angle.k + 1);
}

static void angles_f32(float *c, float *s, float position,
                       const struct roped_angles *of, float sin_factor,
                       int64_t n_pairs)
{
    const float attention = of->attention_factor;
    for (int64_t i = 0; i < n_pairs; i += BLOCK) {
        int64_t n = n_pairs - i < BLOCK ? n_pairs - i : BLOCK;
        block angle = times(load(ROPED_F32, HALVES, of->frequency.f32 + i, n),
                            splat(position));
        block sine, cosine;
        sine_cosine(reduce_floats(angle.lo), &sine.lo, &cosine.lo);
        sine_cosine(reduce_floats(angle.hi), &sine.hi, &cosine.hi);
        store(ROPED_F32, HALVES, c + i, times(cosine, splat(attention)), 1, n,
              false);
        store(ROPED_F32, HALVES, s + i, times(sine, splat(sin_factor)), 1, n,
              false);
    }
}

static void angles_f64(float *c, float *s, double position,
                       const struct roped_angles *of, float sin_factor,
                       int64_t n_pairs)
{
    const float attention = of->attention_factor;
    for (int64_t i = 0; i < n_pairs; i += BLOCK) {
        int64_t n = n_pairs - i < BLOCK ? n_pairs - i : BLOCK;
        double angle[BLOCK] = {0};
        block sine, cosine;
        for (int64_t j = 0; j < n; j++)
            angle[j] = position * of->frequency.f64[i + j];
        sine_cosine(reduce_doubles(angle), &sine.lo, &cosine.lo);
        sine_cosine(reduce_doubles(angle + LANES), &sine.hi, &cosine.hi);
        store(ROPED_F32, HALVES, c + i, times(cosine, splat(attention)), 1, n,
              false);
        store(ROPED_F32, HALVES, s + i, times(sine, splat(sin_factor)), 1, n,
              false);
    }
}

void ISA(cpu_angles)(float *c, float *s, double position,
                     const struct roped_angles *of, float sin_sign,
                     int64_t n_pairs)
{
    float sin_factor = of->attention_factor * sin_sign;
    if (of->precision == ROPED_ANGLE_F64)
        angles_f64(c, s, position, of, sin_factor, n_pairs);
    else
        angles_f32(c, s, (float)position, of, sin_factor, n_pairs);
}
