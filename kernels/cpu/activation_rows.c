/*
 * activation_rows.c - activations of a block; built once per
 * instruction set, as rows.c is. Their relative error stays below 1e-6 wherever
 * the result is normal: what goes into an exponent is two floats, a value and
 * what float32 loses of it.
 */
#include "cpu/activation_rows.h"
#include "cpu/rows_isa.h"

#include <math.h>

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

/* ------------------------------------------------------------ exponentials */

/* e^z = p * 2^k, and k is a whole number. Where that leaves float32's normal
 * range a number times it may not: it comes between. */
struct exponential {
    vfloat p, k;
};
#define LEAST   (-170.0f)    /* nothing is left of float32 from there on */
#define NO_REST splat(-0.0f) /* which compilers need not add */

/* The same less 1 as p, of z + rest, z from LEAST to 0: where k is 0 that has
 * all of float32's digits. */
INLINE struct exponential exponential_less_1(vfloat z, vfloat rest)
{
    const vfloat to_integer = splat(0x1.8p23f);
    const vfloat k =
        multiply_add(z, splat(0x1.715476p+0f), to_integer) - to_integer;
    vfloat r = multiply_add(k, splat(-0.693359375f), z);
    r = multiply_add(k, splat(2.12194440e-4f), r) + rest;
    vfloat p =
        multiply_add(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
    p = multiply_add(p, r, splat(8.3334519073e-3f));
    p = multiply_add(p, r, splat(4.1665795894e-2f));
    p = multiply_add(p, r, splat(1.6666665459e-1f));
    p = multiply_add(p, r, splat(5.0000001201e-1f));
    return (struct exponential){multiply_add(p, r * r, r), k};
}

/* Of z + rest, z from LEAST to 0. */
INLINE struct exponential exponential_of(vfloat z, vfloat rest)
{
    const struct exponential e = exponential_less_1(z, rest);
    return (struct exponential){e.p + splat(1), e.k};
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
    const struct exponential e = exponential_of(z, rest);
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

INLINE struct pair gelu_tanh_exponent(vfloat x)
{
    const vfloat c = splat(0x1.988454p+0f), c_rest = splat(-0x1.857936p-25f);
    const vfloat d = splat(0x1.2444f2p-4f), d_rest = splat(0x1.49b16ap-29f);
    const vfloat square = x * x, square_rest = lost_of(x, x, square);
    const vfloat sum = multiply_add(d, square, c), of_square = sum - c;
    vfloat rest = (c - (sum - of_square)) + lost_of(d, square, of_square);
    rest = rest +
           multiply_add(d, square_rest, multiply_add(d_rest, square, c_rest));
    const vfloat z = x * sum;
    return (struct pair){z, multiply_add(x, rest, lost_of(x, sum, z))};
}

INLINE vfloat gelu_tanh(vfloat x)
{
    const vfloat near = within(12.5f, x); /* 2 u is 159 there */
    const struct pair z = gelu_tanh_exponent(near);
    const vmask is_low = is_less(x, splat(0));
    return times_sigmoid(pick_lanes(is_low, near, x), is_low,
                         pick_lanes(is_low, z.value, -z.value),
                         pick_lanes(is_low, z.rest, -z.rest));
}

/*
 * Phi(-a) = e^(-a^2 / 2) * erfcx(y) / 2 with y = a / sqrt(2).
 * (1 + 2 y) * erfcx(y) - 1 is a polynomial of 1.4 - 4.8 / (y + 2), to 1e-8 for
 * y up to 10.
 */
struct normal_tail {
    vfloat a;             /* |x|, up to where nothing is left */
    vfloat p;             /* p times the power of e is Phi(-a), */
    struct exponential e; /* and e is e^(-a^2 / 2) */
};

INLINE struct normal_tail normal_tail_of(vfloat x)
{
    const vfloat magnitude = pick_lanes(is_less(x, splat(0)), -x, x);
    const vfloat a = pick_lanes(is_less(magnitude, splat(18)), magnitude,
                                splat(18)), /* of NaN too */
        square = a * a;
    const struct exponential e = exponential_of(
        splat(-0.5f) * square, splat(-0.5f) * lost_of(a, a, square));
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
    const vfloat p = multiply_add(splat(0.5f), w, splat(0.5f)) *
                     reciprocal(multiply_add(splat(2), y, splat(1))) * e.p;
    return (struct normal_tail){a, p, e};
}

/* x * Phi(x) */
INLINE vfloat gelu(vfloat x)
{
    const struct normal_tail tail = normal_tail_of(x);
    const vfloat below = -scaled(tail.a * tail.p, tail.e.k);
    return pick_lanes(is_less(x, splat(0)), below,
                      x * (splat(1) - scaled(tail.p, tail.e.k)));
}

/* (1 - e^(-2 |x|)) / (1 + e^(-2 |x|)), or a series where that is 0 / 2. */
INLINE vfloat tanh_of(vfloat x)
{
    const vmask is_low = is_less(x, splat(0));
    const vfloat a = pick_lanes(is_low, -x, x), square = x * x;
    const vfloat power = power_of(
        exponential_of(at_least(splat(LEAST), splat(-2) * a), NO_REST));
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
        exponential_less_1(at_least(splat(LEAST), x), NO_REST);
    const vfloat y = scaled(e.p, e.k) + (scaled(splat(1), e.k) - splat(1));
    return pick_lanes(is_nan(x), x, y);
}

INLINE vfloat act(enum activation activation, vfloat alpha, vfloat x)
{
    const vfloat y = pick_lanes(is_less(x, splat(0)), splat(0), x);
    if (activation == ACT_SILU)
        return silu(x);
    if (activation == ACT_GELU)
        return gelu(x);
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

/* ------------------------------------------------------------------ slopes */

/* sigmoid(z) * (1 + w * sigmoid(-z)), the slope of x * sigmoid(z) where z is a
 * function of x and w is x times its slope; w is finite. The others are those
 * of times_sigmoid, word for word, so that the compiler finds what a value and
 * its slope share: an exponential and a reciprocal. */
INLINE vfloat slope_of_sigmoid(vmask is_low, vfloat low, vfloat rest, vfloat w)
{
    const struct exponential e = exponential_of(low, rest);
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
    const struct pair z = gelu_tanh_exponent(near);
    const vmask is_low = is_less(x, splat(0));
    const vfloat w = near * multiply_add(splat(3 * 0x1.2444f2p-4f), near * near,
                                         splat(0x1.988454p+0f));
    return slope_of_sigmoid(is_low, pick_lanes(is_low, z.value, -z.value),
                            pick_lanes(is_low, z.rest, -z.rest), w);
}

/* Phi(x) + x * e^(-x^2 / 2) / sqrt(2 pi) */
INLINE vfloat slope_of_gelu(vfloat x)
{
    const struct normal_tail tail = normal_tail_of(x);
    const vfloat p =
        multiply_add(splat(-0x1.988454p-2f) * tail.a, tail.e.p, tail.p);
    const vfloat below = scaled(p, tail.e.k);
    return pick_lanes(is_less(x, splat(0)), below, splat(1) - below);
}

INLINE vfloat slope_of_one_side(vfloat x, vfloat above)
{
    return pick_lanes(is_less(splat(0), x), above, splat(0));
}

INLINE vfloat slope_of_number(enum activation activation, vfloat alpha,
                              vfloat x)
{
    if (activation == ACT_SILU)
        return slope_of_silu(x);
    if (activation == ACT_GELU)
        return slope_of_gelu(x);
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
INLINE vfloat slope_of(enum activation activation, vfloat alpha, vfloat x)
{
    return pick_lanes(is_nan(x), x, slope_of_number(activation, alpha, x));
}

/* ------------------------------------------------------------------ blocks */

/* What the values with a slope are at most: those at the limit have none any
 * more, as in PyTorch. */
INLINE float below_limit(const struct act_and_mul_plan *plan)
{
    return plan->limit < INFINITY ? nextafterf(plan->limit, -INFINITY)
                                  : INFINITY;
}

/* A loop for each activation. */
#define FOR_ACTIVATION(kind, loop, ...)                                        \
    switch ((enum activation)(kind)) {                                         \
    case ACT_SILU:                                                             \
        loop(ACT_SILU, __VA_ARGS__);                                           \
        break;                                                                 \
    case ACT_GELU:                                                             \
        loop(ACT_GELU, __VA_ARGS__);                                           \
        break;                                                                 \
    case ACT_GELU_TANH:                                                        \
        loop(ACT_GELU_TANH, __VA_ARGS__);                                      \
        break;                                                                 \
    case ACT_RELU:                                                             \
        loop(ACT_RELU, __VA_ARGS__);                                           \
        break;                                                                 \
    case ACT_RELU2:                                                            \
        loop(ACT_RELU2, __VA_ARGS__);                                          \
        break;                                                                 \
    case ACT_SIGMOID:                                                          \
        loop(ACT_SIGMOID, __VA_ARGS__);                                        \
        break;                                                                 \
    case ACT_QUICK_GELU:                                                       \
    case ACT_SWIGLU_OAI:                                                       \
        loop(ACT_QUICK_GELU, __VA_ARGS__);                                     \
        break;                                                                 \
    case ACT_GELU_FAST: /* of act_values.c */                                  \
    case ACT_XIELU:                                                            \
        break;                                                                 \
    }

/* Elements [i, i + n), at most a block, of any type. */
INLINE block load_any(enum roped_dtype dtype, const void *from, int64_t i,
                      int64_t n)
{
    if (dtype == ROPED_F16)
        return load(ROPED_F16, HALVES, at(ROPED_F16, from, i), n);
    if (dtype == ROPED_BF16)
        return load(ROPED_BF16, HALVES, at(ROPED_BF16, from, i), n);
    return load(ROPED_F32, HALVES, at(ROPED_F32, from, i), n);
}

INLINE void store_any(enum roped_dtype dtype, void *to, int64_t i, block x,
                      int64_t n, bool is_streamed)
{
    if (dtype == ROPED_F16)
        store(ROPED_F16, HALVES, place(ROPED_F16, to, i), x, 1, n, is_streamed);
    else if (dtype == ROPED_BF16)
        store(ROPED_BF16, HALVES, place(ROPED_BF16, to, i), x, 1, n,
              is_streamed);
    else
        store(ROPED_F32, HALVES, place(ROPED_F32, to, i), x, 1, n, is_streamed);
}

INLINE void prefetch_any(enum roped_dtype dtype, const void *x, int64_t i)
{
    const int64_t size = dtype == ROPED_F32 ? 4 : 2;
    prefetch_ahead(ROPED_U8, at(ROPED_U8, x, i * size), BLOCK * size);
}

INLINE block round_any(enum roped_dtype dtype, block x)
{
    if (dtype == ROPED_F16)
        return round_to(ROPED_F16, x);
    return dtype == ROPED_BF16 ? round_to(ROPED_BF16, x) : x;
}

/* A beta of 0 is not added: it would make a -0 a +0. */
INLINE vfloat up_of(const struct act_and_mul_plan *plan, vfloat up)
{
    const vfloat most = splat(plan->limit), least = splat(-plan->limit);
    const vfloat u = at_most(most, up);
    const vfloat v = pick_lanes(is_less(u, least), least, u);
    if (plan->beta == 0)
        return v;
    return v + splat(plan->beta);
}

/* Elements [i, i + n), at most a block. */
INLINE void gate_block(enum activation activation,
                       const struct act_and_mul_plan *plan,
                       const struct cpu_gated *of, int64_t i, int64_t n)
{
    const vfloat limit = splat(plan->limit), alpha = splat(plan->alpha);
    const block gate = load_any(of->dtype, of->gate, i, n);
    block x = {act(activation, alpha, at_most(limit, gate.lo)),
               act(activation, alpha, at_most(limit, gate.hi))};
    x = round_any(of->rounds, x);
    if (of->up) {
        const block up = load_any(of->up_dtype, of->up, i, n);
        x = product(x, (block){up_of(plan, up.lo), up_of(plan, up.hi)});
    }
    store_any(of->to_dtype, of->to, i, x, n, of->is_streamed);
}

INLINE void gate_all(enum activation activation,
                     const struct act_and_mul_plan *given_plan,
                     const struct cpu_gated *given, int64_t n)
{
    const struct act_and_mul_plan plan = *given_plan; /* no store changes it */
    struct cpu_gated of = *given;
    int64_t i = 0;
    of.is_streamed = given->is_streamed && is_aligned(ROPED_U8, of.to, 0);
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_any(of.dtype, of.gate, i);
        if (of.up)
            prefetch_any(of.up_dtype, of.up, i);
        gate_block(activation, &plan, &of, i, BLOCK);
    }
    if (i < n)
        gate_block(activation, &plan, &of, i, n - i);
}

static void gate(const struct act_and_mul_plan *plan,
                 const struct cpu_gated *of, int64_t n){
    FOR_ACTIVATION(plan->activation, gate_all, plan, of, n)}

/* --------------------------------------------------------------- gradients */

/* x, but 0 where that is 0. */
INLINE vfloat unless_zero(vfloat that, vfloat x)
{
    return (vfloat)((vint)x & ~(vint)(that == splat(0)));
}

/* x, but 0 where that is beyond what the plan lets through. */
INLINE vfloat unless_beyond(vfloat most, vfloat that, vfloat x)
{
    return pick_lanes(is_less(most, that), splat(0),
                      pick_lanes(is_less(that, -most), splat(0), x));
}

INLINE void descend_block(enum activation activation,
                          const struct act_and_mul_plan *plan, vfloat most,
                          const struct cpu_gated_gradient *of, int64_t i,
                          int64_t n)
{
    const vfloat limit = splat(plan->limit), alpha = splat(plan->alpha);
    const block g = load_any(of->dtype, of->grad_y, i, n);
    const block x = load_any(of->dtype, of->gate, i, n);
    const block near = {at_most(limit, x.lo), at_most(limit, x.hi)};
    const block slope = {pick_lanes(is_less(most, x.lo), splat(0),
                                    slope_of(activation, alpha, near.lo)),
                         pick_lanes(is_less(most, x.hi), splat(0),
                                    slope_of(activation, alpha, near.hi))};
    block to_act = g;
    if (of->up) {
        const block up = load_any(of->dtype, of->up, i, n);
        block value = {act(activation, alpha, near.lo),
                       act(activation, alpha, near.hi)};
        to_act = product(g, (block){up_of(plan, up.lo), up_of(plan, up.hi)});
        value = product(round_any(of->rounds, value), g);
        value = (block){unless_beyond(most, up.lo, value.lo),
                        unless_beyond(most, up.hi, value.hi)};
        store_any(of->dtype, of->grad_up, i, value, n, of->is_streamed);
    }
    to_act = product(round_any(of->rounds, to_act), slope);
    to_act = (block){unless_zero(slope.lo, to_act.lo),
                     unless_zero(slope.hi, to_act.hi)};
    store_any(of->dtype, of->grad_gate, i, to_act, n, of->is_streamed);
}

INLINE void descend_all(enum activation activation,
                        const struct act_and_mul_plan *given_plan,
                        const struct cpu_gated_gradient *given, int64_t n)
{
    const struct act_and_mul_plan plan = *given_plan; /* no store changes it */
    const vfloat most = splat(below_limit(&plan));
    struct cpu_gated_gradient of = *given;
    int64_t i = 0;
    of.is_streamed = given->is_streamed &&
                     is_aligned(ROPED_U8, of.grad_gate, 0) &&
                     (!of.up || is_aligned(ROPED_U8, of.grad_up, 0));
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_any(of.dtype, of.grad_y, i);
        prefetch_any(of.dtype, of.gate, i);
        if (of.up)
            prefetch_any(of.dtype, of.up, i);
        descend_block(activation, &plan, most, &of, i, BLOCK);
    }
    if (i < n)
        descend_block(activation, &plan, most, &of, i, n - i);
}

static void descend(const struct act_and_mul_plan *plan,
                    const struct cpu_gated_gradient *of, int64_t n)
{
    FOR_ACTIVATION(plan->activation, descend_all, plan, of, n)
}

/* ------------------------------------------------------------------ others */

static void tanh_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_lanes(x + i, tanh_of(load_lanes(x + i)));
}

static void expm1_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_lanes(x + i, expm1_of(load_lanes(x + i)));
}

static void weave(float *restrict to, const float *restrict even,
                  const float *restrict odd, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[2 * i] = even[i];
        to[2 * i + 1] = odd[i];
    }
}

static void pick(float *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[2 * i];
}

extern const struct cpu_activation_rows ISA(cpu_activation_rows);
const struct cpu_activation_rows ISA(cpu_activation_rows) = {
    .gate = gate,
    .descend = descend,
    .tanh = tanh_all,
    .expm1 = expm1_all,
    .pick = pick,
    .weave = weave,
};
