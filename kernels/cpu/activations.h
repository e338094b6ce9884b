/*
 * activations.h - activations and their slopes of vectors and blocks of
 * float32: what activation_rows.c makes its loops of. Their relative error
 * stays below 1e-6 wherever the result is normal: what goes into an exponent is
 * two floats, a value and what float32 loses of it.
 */
#ifndef ROPED_CPU_ACTIVATIONS_H
#define ROPED_CPU_ACTIVATIONS_H

#include "cpu/rows_isa.h"
#include "ops/act_and_mul.h"

/* --------------------------------------------------------------- arithmetic */

INLINE vfloat within(float most, vfloat x)
{
    return at_least(splat(-most), at_most(splat(most), x));
}

/* What float32 loses of a * b, which is product then. */
INLINE vfloat lost_of(vfloat a, vfloat b, vfloat product)
{
    if (HAS_FUSED)
        return multiply_add(a, b, -product);
    vfloat lost;
    for (int i = 0; i < LANES; i++)
        lost[i] = (float)((double)a[i] * (double)b[i] - (double)product[i]);
    return lost;
}

/* What is known of x, and what is asked of the result. */
enum digits {
    OF_FLOATS, /* nothing, and all */
    OF_WORDS,  /* x has 11 digits at most, so that float32 has those of x * x */
    SHORT      /* the same, and what an exponent loses does not count: the
                * result becomes one of 16 bits, and nothing is rounded before */
};

/* Of x * x, which is square. */
INLINE vfloat lost_of_square(enum digits digits, vfloat x, vfloat square)
{
    return digits == OF_FLOATS ? lost_of(x, x, square) : splat(-0.0f);
}

/* ------------------------------------------------------------ exponentials */

/* e^z = p * 2^k, and k is a whole number. Where that leaves float32's normal
 * range a number times it may not: it comes between. */
struct exponential {
    vfloat p, k;
};
#define LEAST   (-170.0f)    /* nothing is left of float32 from there on */
#define NO_REST splat(-0.0f) /* which compilers need not add */

/* The same less 1 as p, of factor * (z + rest) from LEAST to 0: where k is 0
 * that has all of float32's digits. A factor of 1 or -1 goes into numbers that
 * are there anyway. */
INLINE struct exponential exponential_less_1(float factor, vfloat z,
                                             vfloat rest)
{
    const vfloat to_integer = splat(0x1.8p23f);
    const vfloat k =
        multiply_add(z, splat(factor * 0x1.715476p+0f), to_integer) -
        to_integer;
    vfloat r = multiply_add(k, splat(-0.693359375f / factor), z);
    r = multiply_add(k, splat(2.12194440e-4f / factor), r) + rest;
    r = splat(factor) * r;
    vfloat p =
        multiply_add(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
    p = multiply_add(p, r, splat(8.3334519073e-3f));
    p = multiply_add(p, r, splat(4.1665795894e-2f));
    p = multiply_add(p, r, splat(1.6666665459e-1f));
    p = multiply_add(p, r, splat(5.0000001201e-1f));
    return (struct exponential){multiply_add(p, r * r, r), k};
}

/* Of factor * (z + rest) from LEAST to 0 or, where its power is a float, above.
 * Where a table of 32 powers is one instruction, k counts parts of 1 / 32: the
 * table has the fraction, scaled takes what is below, and two steps do for the
 * rest. What ln 2 loses in float32 is 3e-9 of it. A factor, 1 or a power of two
 * below, costs nothing. */
INLINE struct exponential exponential_of(float factor, vfloat z, vfloat rest)
{
    if (!HAS_POWERS) {
        const struct exponential e = exponential_less_1(factor, z, rest);
        return (struct exponential){e.p + splat(1), e.k};
    }
    const vfloat to_part = splat(0x1.8p18f);
    const vfloat index =
        multiply_add(z, splat(factor * 0x1.715476p+0f), to_part);
    const vfloat k = index - to_part;
    const vfloat r = multiply_add(k, splat(-0x1.62e43p-1f / factor), z) + rest;
    const vfloat q = r * multiply_add(splat(0.5f * factor * factor), r,
                                      splat(factor * 0x1.0000f6p+0f));
    const vfloat power = power_of_part((vint)index);
    return (struct exponential){multiply_add(power, q, power), k};
}

/* m * e^z */
INLINE vfloat times_power(vfloat m, struct exponential e)
{
    return scaled(m * e.p, e.k);
}

INLINE vfloat power_of(struct exponential e)
{
    return scaled(e.p, e.k);
}

/* m * sigmoid(z) for z = -|z| where that is low, |z| else; m has its sign, or
 * is 1. */
INLINE vfloat times_sigmoid(vfloat m, vmask is_low, vfloat z, vfloat rest)
{
    const struct exponential e = exponential_of(1, z, rest);
    const vmask is_left = is_less(splat(LEAST), z);
    const vfloat low = times_power(pick_lanes(is_left, m, splat(-0.0f)), e);
    return pick_lanes(is_low, low, m) * reciprocal(splat(1) + power_of(e));
}

/* ------------------------------------------------------------- activations */

/* -|z|, and what is left of it */
INLINE vfloat low_of(vfloat z)
{
    return at_least(splat(LEAST), negative_magnitude(z));
}

INLINE vfloat silu(vfloat x)
{
    const vmask is_low = is_less(x, splat(0));
    return times_sigmoid(x, is_low, low_of(x), NO_REST);
}

INLINE vfloat sigmoid(vfloat x)
{
    const vmask is_low = is_less(x, splat(0));
    const vfloat one = pick_lanes(is_nan(x), x, splat(1));
    return times_sigmoid(one, is_low, low_of(x), NO_REST) +
           splat(0); /* never -0 */
}

/* What alpha * x, which is z, loses, where something is left of e^-|z|. */
INLINE vfloat rest_of(vfloat alpha, vfloat x, vfloat z)
{
    const vmask is_left = is_less(splat(LEAST), negative_magnitude(z));
    return pick_lanes(is_left, lost_of(alpha, x, z), splat(0));
}

/* x * sigmoid(alpha * x) */
INLINE vfloat quick_gelu(vfloat x, vfloat alpha)
{
    const vfloat z = alpha * x, rest = rest_of(alpha, x, z);
    const vmask is_low = is_less(z, splat(0));
    return times_sigmoid(x, is_low, low_of(z), pick_lanes(is_low, rest, -rest));
}

/* x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), 2 u = x * (c + d * x^2): a value
 * and what it loses. */
struct pair {
    vfloat value, rest;
};

INLINE struct pair gelu_tanh_exponent(enum digits digits, vfloat x)
{
    /* c ends with so many zeros that sum - c is exact */
    const vfloat c = splat(0x1.98845p+0f), c_rest = splat(0x1.9ea1b2p-23f);
    const vfloat d = splat(0x1.2444f2p-4f), d_rest = splat(0x1.49b16ap-29f);
    const vfloat square = x * x,
                 square_rest = lost_of_square(digits, x, square);
    if (digits == SHORT)
        return (struct pair){x * multiply_add(d, square, c + c_rest), NO_REST};
    const vfloat sum = multiply_add(d, square, c), z = x * sum;
    vfloat rest = multiply_add(d_rest, square, c_rest);
    if (digits == OF_FLOATS)
        rest = multiply_add(d, square_rest, rest);
    rest = rest + lost_of(d, square, sum - c);
    return (struct pair){z, multiply_add(x, rest, lost_of(x, sum, z))};
}

INLINE vfloat gelu_tanh(vfloat x)
{
    const vfloat near = within(12.5f, x); /* 2 u is 159 there */
    const struct pair z = gelu_tanh_exponent(OF_FLOATS, near);
    const vmask is_low = is_less(x, splat(0));
    return times_sigmoid(pick_lanes(is_low, near, x), is_low,
                         pick_lanes(is_low, z.value, -z.value),
                         pick_lanes(is_low, z.rest, -z.rest));
}

/*
 * erfcx(a / sqrt(2)) / 2, which is Phi(-a) * e^(a^2 / 2), by pieces: one for
 * each eighth of a binade of a + 2, the numbers from 2 on. The first row is
 * what they are in the middle of their piece, then come the factors of the
 * powers of what a is beyond it, to 1.6e-7 of the whole.
 */
enum { RATIO_STEPS = 5, RATIO_PIECES = 32 };
static const _Alignas(64) float ratio_pieces[RATIO_STEPS][RATIO_PIECES] = {
    {0x1.d0af2cp-2f, 0x1.84b706p-2f, 0x1.4b1de2p-2f, 0x1.1e7c2ep-2f,
     0x1.f6704ep-3f, 0x1.bdb9f2p-3f, 0x1.8f6846p-3f, 0x1.690b32p-3f,
     0x1.3aaddep-3f, 0x1.0bb968p-3f, 0x1.d0b31cp-4f, 0x1.99c2b6p-4f,
     0x1.6e040ap-4f, 0x1.4a724ap-4f, 0x1.2d01fep-4f, 0x1.1445a6p-4f,
     0x1.eba5fep-5f, 0x1.ac6292p-5f, 0x1.7b5f34p-5f, 0x1.545298p-5f,
     0x1.34805ap-5f, 0x1.1a1574p-5f, 0x1.03cf06p-5f, 0x1.e18ddcp-6f,
     0x1.b1d706p-6f, 0x1.7f2b7p-6f,  0x1.5711bp-6f,  0x1.368cc8p-6f,
     0x1.1ba6c6p-6f, 0x1.0508d4p-6f, 0x1.e381bap-7f, 0x1.c23e4p-7f},
    {-0x1.5e6e08p-2f,  -0x1.06bf76p-2f,  -0x1.932308p-3f,  -0x1.3baf2ep-3f,
     -0x1.f7946cp-4f,  -0x1.9851d2p-4f,  -0x1.4ffe52p-4f,  -0x1.18274p-4f,
     -0x1.b404d8p-5f,  -0x1.432aa2p-5f,  -0x1.ef2c4ep-6f,  -0x1.85dc3cp-6f,
     -0x1.3a006ep-6f,  -0x1.01c9a8p-6f,  -0x1.ae368p-7f,   -0x1.6c06a8p-7f,
     -0x1.21ae02p-7f,  -0x1.b9f9e4p-8f,  -0x1.5bcafap-8f,  -0x1.188fc8p-8f,
     -0x1.cdee82p-9f,  -0x1.82bdd4p-9f,  -0x1.486da4p-9f,  -0x1.1a50f8p-9f,
     -0x1.cabc2cp-10f, -0x1.662ce8p-10f, -0x1.1f522p-10f,  -0x1.d71896p-11f,
     -0x1.892abep-11f, -0x1.4d102ap-11f, -0x1.1dbddap-11f, -0x1.efa532p-12f},
    {0x1.a4e18cp-3f,  0x1.222f34p-3f,  0x1.9a45bep-4f,  0x1.28befp-4f,
     0x1.b65968p-5f,  0x1.4a0336p-5f,  0x1.f9a646p-6f,  0x1.899962p-6f,
     0x1.15aa3ap-6f,  0x1.6c5e04p-7f,  0x1.f2f592p-8f,  0x1.621fecp-8f,
     0x1.031b54p-8f,  0x1.852b66p-9f,  0x1.2ae27cp-9f,  0x1.d419e8p-10f,
     0x1.4ea482p-10f, 0x1.c0f96p-11f,  0x1.3ae7dp-11f,  0x1.c9eb2ap-12f,
     0x1.56ee22p-12f, 0x1.073c52p-12f, 0x1.9ca83ep-13f, 0x1.494a46p-13f,
     0x1.e2fce4p-14f, 0x1.4db05ep-14f, 0x1.dff698p-15f, 0x1.6486cap-15f,
     0x1.0ff9fep-15f, 0x1.a84c0cp-16f, 0x1.5146bap-16f, 0x1.107df4p-16f},
    {-0x1.b1c34p-4f,   -0x1.16b296p-4f,  -0x1.6fa486p-5f,  -0x1.f0eab6p-6f,
     -0x1.577a84p-6f,  -0x1.e4d79cp-7f,  -0x1.5cd9ap-7f,   -0x1.ff042ap-8f,
     -0x1.4ba5b2p-8f,  -0x1.8566a4p-9f,  -0x1.e0ac72p-10f, -0x1.35a9b6p-10f,
     -0x1.9dfa18p-11f, -0x1.1daf6cp-11f, -0x1.956584p-12f, -0x1.26b3c4p-12f,
     -0x1.7da43ep-13f, -0x1.c376fp-14f,  -0x1.1acb3ep-14f, -0x1.732dacp-15f,
     -0x1.fa4de4p-16f, -0x1.64a232p-16f, -0x1.022f1ap-16f, -0x1.7eb85ap-17f,
     -0x1.fd12bep-18f, -0x1.3723cep-18f, -0x1.91283ep-19f, -0x1.0df88ep-19f,
     -0x1.7875b6p-20f, -0x1.0e5e3ap-20f, -0x1.8e3da4p-21f, -0x1.2bb49ap-21f},
    {0x1.8a9b56p-5f,  0x1.dd0f7cp-6f,  0x1.283afep-6f,  0x1.7945fcp-7f,
     0x1.ebf0fcp-8f,  0x1.47dd0cp-8f,  0x1.be142p-9f,   0x1.35509ap-9f,
     0x1.726bd6p-10f, 0x1.8938dcp-11f, 0x1.b9499p-12f,  0x1.03dcd6p-12f,
     0x1.3f32bep-13f, 0x1.96c3dp-14f,  0x1.0bad7cp-14f, 0x1.6a77a8p-15f,
     0x1.a8cd2cp-16f, 0x1.bd51eep-17f, 0x1.f4129ap-18f, 0x1.290a08p-18f,
     0x1.71c5f4p-19f, 0x1.decdc4p-20f, 0x1.409132p-20f, 0x1.b9d4a8p-21f,
     0x1.09b9b4p-21f, 0x1.1ff048p-22f, 0x1.4d4336p-23f, 0x1.96d292p-24f,
     0x1.037492p-24f, 0x1.575886p-25f, 0x1.d4cb98p-26f, 0x1.48c428p-26f},
};

INLINE vfloat ratio_by_pieces(vfloat a)
{
    enum { PIECE = 20 }; /* bits below its number */
    const vint bits = (vint)(a + splat(2));
    const vint piece = bits >> PIECE;
    const vint middle = (piece << PIECE) | (1 << (PIECE - 1));
    const vfloat r = (vfloat)bits - (vfloat)middle;
    vfloat p = look_up(ratio_pieces[RATIO_STEPS - 1], piece);
    for (int i = RATIO_STEPS - 2; i >= 0; i--)
        p = multiply_add(p, r, look_up(ratio_pieces[i], piece));
    return p;
}

/* The same of y = a / sqrt(2): (1 + 2 y) * erfcx(y) - 1 is a polynomial of
 * 1.4 - 4.8 / (y + 2), to 1e-8 for y up to 10. */
INLINE vfloat ratio_by_quotients(vfloat a)
{
    const vfloat y = at_most(splat(10), a * splat(0x1.6a09e6p-1f));
    const vfloat s =
        multiply_add(splat(-4.8f), reciprocal(y + splat(2)), splat(1.4f));
    vfloat w = multiply_add(splat(0x1.6da732p-17f), s, splat(0x1.00230ep-18f));
    w = multiply_add(w, s, splat(-0x1.cb0774p-14f));
    w = multiply_add(w, s, splat(-0x1.45fe5cp-13f));
    w = multiply_add(w, s, splat(0x1.875582p-11f));
    w = multiply_add(w, s, splat(0x1.157750p-9f));
    w = multiply_add(w, s, splat(-0x1.9d1b64p-8f));
    w = multiply_add(w, s, splat(-0x1.5cfdbcp-6f));
    w = multiply_add(w, s, splat(0x1.d3715ap-4f));
    w = multiply_add(w, s, splat(-0x1.6cf9ecp-3f));
    w = multiply_add(w, s, splat(-0x1.370fccp-6f));
    w = multiply_add(w, s, splat(0x1.25ea64p-2f));
    return multiply_add(splat(0.5f), w, splat(0.5f)) *
           reciprocal(multiply_add(splat(2), y, splat(1)));
}

struct normal_tail {
    vfloat a; /* |x|, up to where nothing is left; of NaN a number */
    vfloat p; /* p times the power of e is Phi(-a), */
    struct exponential e; /* and e is e^(-a^2 / 2) */
};

INLINE struct normal_tail normal_tail_of(enum digits digits, vfloat x)
{
    const vfloat a = smaller_magnitude(x, 18), square = a * a;
    const struct exponential e =
        exponential_of(-0.5f, square, lost_of_square(digits, a, square));
    const vfloat ratio =
        HAS_POWERS ? ratio_by_pieces(a) : ratio_by_quotients(a);
    return (struct normal_tail){a, ratio * e.p, e};
}

/* x * Phi(x), which is -a * Phi(-a), and x more above 0. */
INLINE vfloat gelu(enum digits digits, vfloat x)
{
    const struct normal_tail tail = normal_tail_of(digits, x);
    const vfloat above = unless_negative(x);
    if (digits == SHORT)
        return negative_multiply_add(tail.a, scaled(tail.p, tail.e.k), above);
    /* a tail of 1e-39 has lost digits that a multiple of it has */
    return above - scaled(tail.a * tail.p, tail.e.k);
}

/* (1 - e^(-2 |x|)) / (1 + e^(-2 |x|)), or a series where that is 0 / 2. */
INLINE vfloat tanh_of(vfloat x)
{
    const vmask is_low = is_less(x, splat(0));
    const vfloat a = pick_lanes(is_low, -x, x), square = x * x;
    const vfloat power = power_of(
        exponential_of(1, at_least(splat(LEAST), splat(-2) * a), NO_REST));
    const vfloat far = (splat(1) - power) * reciprocal(splat(1) + power);
    vfloat p =
        multiply_add(splat(0x1.664f48p-6f), square, splat(-0x1.ba1ba2p-5f));
    p = multiply_add(p, square, splat(0x1.111112p-3f));
    p = multiply_add(p, square, splat(-0x1.555556p-2f));
    const vfloat near = multiply_add(x * square, p, x);
    const vfloat y = pick_lanes(is_less(a, splat(0.25f)), near,
                                pick_lanes(is_low, -far, far));
    return pick_lanes(is_nan(x), x, y);
}

/* 2^k * p + (2^k - 1) */
INLINE vfloat expm1_of(vfloat x)
{
    const struct exponential e =
        exponential_less_1(1, at_least(splat(LEAST), x), NO_REST);
    const vfloat y = scaled(e.p, e.k) + (scaled(splat(1), e.k) - splat(1));
    return pick_lanes(is_nan(x), x, y);
}

INLINE vfloat act_anywhere(enum activation activation, enum digits digits,
                           vfloat alpha, vfloat x)
{
    const vfloat y = pick_lanes(is_less(x, splat(0)), splat(0), x);
    if (activation == ACT_SILU)
        return silu(x);
    if (activation == ACT_GELU)
        return gelu(digits, x);
    if (activation == ACT_GELU_TANH)
        return gelu_tanh(x);
    if (activation == ACT_RELU2)
        return y * y;
    if (activation == ACT_QUICK_GELU)
        return quick_gelu(x, alpha);
    if (activation == ACT_SIGMOID)
        return sigmoid(x);
    return y;
}

/* ----------------------------------------------------- values near 0 */

/* Are there act_near and slope_near of this activation? They are act_anywhere
 * and slope_of but for the lanes whose result is all but x or 0, and take half
 * the operations: all of these are sigmoid(z), x times that but for sigmoid. */
INLINE bool has_near(enum activation activation)
{
    return activation == ACT_SILU || activation == ACT_SIGMOID ||
           activation == ACT_QUICK_GELU || activation == ACT_GELU_TANH;
}

/* Of what is_near compares with most_near: x, or z. */
INLINE vfloat distance_of(enum activation activation, vfloat alpha, vfloat x)
{
    if (activation == ACT_QUICK_GELU)
        x = alpha * x;
    return x;
}

INLINE float most_near(enum activation activation)
{
    return activation == ACT_GELU_TANH ? 9.25f : 87; /* z is 72 there */
}

INLINE vmask is_near(enum activation activation, vfloat alpha, vfloat x)
{
    const vfloat distance = distance_of(activation, alpha, x);
    return is_less(larger_magnitude(distance, splat(0)),
                   splat(most_near(activation)));
}

INLINE bool are_near(enum activation activation, vfloat alpha, block x)
{
    const block distance = {distance_of(activation, alpha, x.lo),
                            distance_of(activation, alpha, x.hi)};
    return all_below(largest_magnitude(distance), most_near(activation));
}

/* Does SHORT take fewer operations? */
INLINE bool has_short(enum activation activation)
{
    return activation == ACT_QUICK_GELU || activation == ACT_GELU_TANH ||
           activation == ACT_GELU;
}

INLINE struct pair exponent_of(enum activation activation, enum digits digits,
                               vfloat alpha, vfloat x)
{
    if (activation == ACT_QUICK_GELU) {
        const vfloat z = alpha * x;
        return (struct pair){z,
                             digits == SHORT ? NO_REST : lost_of(alpha, x, z)};
    }
    if (activation == ACT_GELU_TANH)
        return gelu_tanh_exponent(digits, x);
    return (struct pair){x, NO_REST};
}

/* e^-z, a normal number. Lanes that are not near have any number; without
 * tables their k must be an integer too, and NaN is none. */
INLINE vfloat power_near(struct pair z)
{
    const vfloat value = HAS_POWERS ? z.value : within(88, z.value);
    return power_of(exponential_of(-1, value, z.rest));
}

/* What sigmoid(z) is multiplied by. */
INLINE vfloat factor_of(enum activation activation, vfloat x)
{
    if (activation != ACT_SIGMOID)
        return x;
    return HAS_POWERS ? splat(1) : pick_lanes(is_nan(x), x, splat(1));
}

INLINE vfloat act_near(enum activation activation, enum digits digits,
                       vfloat alpha, vfloat x)
{
    const struct pair z = exponent_of(activation, digits, alpha, x);
    return factor_of(activation, x) / (splat(1) + power_near(z));
}

INLINE vfloat act_far(enum activation activation, vfloat alpha, vfloat x,
                      vfloat near)
{
    return pick_lanes(is_near(activation, alpha, x), near,
                      act_anywhere(activation, OF_FLOATS, alpha, x));
}

/* A lane's value is the same whatever the others are. */
INLINE block act(enum activation activation, enum digits digits, vfloat alpha,
                 block x)
{
    if (!has_near(activation))
        return (block){act_anywhere(activation, digits, alpha, x.lo),
                       act_anywhere(activation, digits, alpha, x.hi)};
    const block y = {act_near(activation, digits, alpha, x.lo),
                     act_near(activation, digits, alpha, x.hi)};
    if (UNLIKELY(!are_near(activation, alpha, x)))
        return (block){act_far(activation, alpha, x.lo, y.lo),
                       act_far(activation, alpha, x.hi, y.hi)};
    return y;
}

/* ------------------------------------------------------------------ slopes */

/* sigmoid(z) * (1 + w * sigmoid(-z)), the slope of x * sigmoid(z) where z is a
 * function of x and w is x times its slope; w is finite. The others are those
 * of times_sigmoid, word for word, so that the compiler finds what a value and
 * its slope share: an exponential and a reciprocal. */
INLINE vfloat slope_of_sigmoid(vmask is_low, vfloat low, vfloat rest, vfloat w)
{
    const struct exponential e = exponential_of(1, low, rest);
    const vfloat power = power_of(e), r = reciprocal(splat(1) + power);
    const vfloat p = pick_lanes(is_less(splat(LEAST), low), e.p, splat(0)) * r;
    const vfloat t =
        multiply_add(w, pick_lanes(is_low, r, power * r), splat(1));
    return pick_lanes(is_low, scaled(t * p, e.k), t * r);
}

INLINE vfloat slope_of_silu(vfloat x)
{
    const vmask is_low = is_less(x, splat(0));
    return slope_of_sigmoid(is_low, low_of(x), NO_REST, within(-LEAST, x));
}

INLINE vfloat slope_of_quick_gelu(vfloat x, vfloat alpha)
{
    const vfloat z = alpha * x, rest = rest_of(alpha, x, z);
    const vmask is_low = is_less(z, splat(0));
    return slope_of_sigmoid(is_low, low_of(z), pick_lanes(is_low, rest, -rest),
                            within(-LEAST, z));
}

INLINE vfloat slope_of_gelu_tanh(vfloat x)
{
    const vfloat near = within(12.5f, x); /* as gelu_tanh, whose z this is */
    const struct pair z = gelu_tanh_exponent(OF_FLOATS, near);
    const vmask is_low = is_less(x, splat(0));
    const vfloat w = near * multiply_add(splat(3 * 0x1.2444f2p-4f), near * near,
                                         splat(0x1.988454p+0f));
    return slope_of_sigmoid(is_low, pick_lanes(is_low, z.value, -z.value),
                            pick_lanes(is_low, z.rest, -z.rest), w);
}

/* Phi(x) + x * e^(-x^2 / 2) / sqrt(2 pi) */
INLINE vfloat slope_of_gelu(enum digits digits, vfloat x)
{
    const struct normal_tail tail = normal_tail_of(digits, x);
    const vfloat p =
        multiply_add(splat(-0x1.988454p-2f) * tail.a, tail.e.p, tail.p);
    const vfloat below = scaled(p, tail.e.k);
    return pick_lanes(is_less(x, splat(0)), below, splat(1) - below);
}

INLINE vfloat slope_of_one_side(vfloat x, vfloat above)
{
    return pick_lanes(is_less(splat(0), x), above, splat(0));
}

INLINE vfloat slope_of_number(enum activation activation, enum digits digits,
                              vfloat alpha, vfloat x)
{
    if (activation == ACT_SILU)
        return slope_of_silu(x);
    if (activation == ACT_GELU)
        return slope_of_gelu(digits, x);
    if (activation == ACT_GELU_TANH)
        return slope_of_gelu_tanh(x);
    if (activation == ACT_RELU2)
        return slope_of_one_side(x, splat(2) * x);
    if (activation == ACT_QUICK_GELU)
        return slope_of_quick_gelu(x, alpha);
    if (activation == ACT_SIGMOID)
        return sigmoid(x) * sigmoid(-x);
    return slope_of_one_side(x, splat(1));
}

/* NaN stays. */
INLINE vfloat slope_of(enum activation activation, enum digits digits,
                       vfloat alpha, vfloat x)
{
    return pick_lanes(is_nan(x), x,
                      slope_of_number(activation, digits, alpha, x));
}

/* ------------------------------------------------- values and their slopes */

struct act_and_slope {
    vfloat value, slope;
};

/* s = sigmoid(z) has the slope s * sigmoid(-z) * z', and sigmoid(-z) is
 * s * e^-z. */
INLINE struct act_and_slope slope_near(enum activation activation,
                                       enum digits digits, vfloat alpha,
                                       vfloat x)
{
    const struct pair z = exponent_of(activation, digits, alpha, x);
    const vfloat power = power_near(z);
    const vfloat s = splat(1) / (splat(1) + power), opposite = power * s;
    const vfloat value = factor_of(activation, x) * s;
    vfloat by = value; /* x * z' * s */
    if (activation == ACT_SIGMOID)
        return (struct act_and_slope){value, value * opposite};
    if (activation == ACT_QUICK_GELU)
        by = z.value * s;
    if (activation == ACT_GELU_TANH)
        by = value * multiply_add(splat(3 * 0x1.2444f2p-4f), x * x,
                                  splat(0x1.988454p+0f));
    return (struct act_and_slope){value, multiply_add(by, opposite, s)};
}

INLINE struct act_and_slope slope_anywhere(enum activation activation,
                                           enum digits digits, vfloat alpha,
                                           vfloat x)
{
    return (struct act_and_slope){act_anywhere(activation, digits, alpha, x),
                                  slope_of(activation, digits, alpha, x)};
}

INLINE struct act_and_slope slope_far(enum activation activation, vfloat alpha,
                                      vfloat x, struct act_and_slope near)
{
    const vmask is = is_near(activation, alpha, x);
    const struct act_and_slope any =
        slope_anywhere(activation, OF_FLOATS, alpha, x);
    return (struct act_and_slope){pick_lanes(is, near.value, any.value),
                                  pick_lanes(is, near.slope, any.slope)};
}

/* Of a block, to value and slope. */
INLINE void act_with_slope(enum activation activation, enum digits digits,
                           vfloat alpha, block x, block *value, block *slope)
{
    struct act_and_slope lo, hi;
    if (!has_near(activation)) {
        lo = slope_anywhere(activation, digits, alpha, x.lo);
        hi = slope_anywhere(activation, digits, alpha, x.hi);
    } else {
        lo = slope_near(activation, digits, alpha, x.lo);
        hi = slope_near(activation, digits, alpha, x.hi);
        if (UNLIKELY(!are_near(activation, alpha, x))) {
            lo = slope_far(activation, alpha, x.lo, lo);
            hi = slope_far(activation, alpha, x.hi, hi);
        }
    }
    *value = (block){lo.value, hi.value};
    *slope = (block){lo.slope, hi.slope};
}

#endif
