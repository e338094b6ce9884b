/*
 * activation_rows.c - activations of a block of float32; built once per
 * instruction set, as rows.c is. The functions are of one element, without
 * branches, and the compiler makes vectors of them. Their relative error stays
 * below 1e-6 wherever the result is normal: what goes into an exponent is two
 * floats, a value and what float32 loses of it.
 */
#include "cpu/activation_rows.h"
#include "cpu/rows_isa.h"

#include <math.h>

/* ------------------------------------------------------- products, quotients
 */

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define mul_add(a, b, c) __builtin_fmaf(a, b, c)
#else
#define mul_add(a, b, c) ((a) * (b) + (c))
#endif

/* What float32 loses of a * b, which is product then. */
INLINE float lost_of(float a, float b, float product)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, -product);
#else
    return (float)((double)a * (double)b - (double)product);
#endif
}

union float_bits {
    float value;
    uint32_t bits;
};

INLINE float nearer_reciprocal(float x, float y)
{
    return mul_add(y, mul_add(-x, y, 1.0f), y);
}

/* Of a positive normal number, to 1.2e-7: vectors are divided in the time of
 * twenty other operations. */
INLINE float reciprocal(float x)
{
    union float_bits guess = {x};
    guess.bits = 0x7EF311C7u - guess.bits; /* within 13 % */
    const float second = nearer_reciprocal(x, guess.value);
    return nearer_reciprocal(x, nearer_reciprocal(x, second));
}

/* ------------------------------------------------------------ exponentials */

/* e^z = p * up * down; up and down are powers of two. Where e^z leaves
 * float32's normal range a number times it may not have: it comes between. */
struct exponential {
    float p, up, down;
};
#define LEAST   (-170.0f) /* nothing is left of float32 from there on */
#define NO_REST (-0.0f)   /* which compilers need not add */

INLINE float power_of_two(int32_t k)
{
    const union float_bits power = {.bits = (uint32_t)(k + 127) << 23};
    return power.value;
}

/* Of z + rest, z from LEAST to 0. */
INLINE struct exponential exponential_of(float z, float rest)
{
    const float to_integer = 0x1.8p23f;
    const float k = mul_add(z, 0x1.715476p+0f, to_integer) - to_integer;
    float r = mul_add(k, -0.693359375f, z);
    r = mul_add(k, 2.12194440e-4f, r) + rest;
    float p = mul_add(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = mul_add(p, r, 8.3334519073e-3f);
    p = mul_add(p, r, 4.1665795894e-2f);
    p = mul_add(p, r, 1.6666665459e-1f);
    p = mul_add(p, r, 5.0000001201e-1f);
    p = mul_add(p, r * r, r) + 1.0f;
    const int32_t whole = (int32_t)k, half = whole >> 1;
    return (struct exponential){p, power_of_two(half),
                                power_of_two(whole - half)};
}

/* m * sigmoid(z) for z = -|z| where that is low, |z| else; m has its sign, or
 * is 1. */
INLINE float times_sigmoid(float m, bool is_low, float z, float rest)
{
    const struct exponential e = exponential_of(z, rest);
    const float low = (z > LEAST ? m : -0.0f) * e.p * e.up * e.down;
    return (is_low ? low : m) * reciprocal(mul_add(e.p * e.up, e.down, 1.0f));
}

INLINE float at_least(float least, float x)
{
    return x > least ? x : least; /* and least for NaN */
}

/* ------------------------------------------------------------- activations */

INLINE float silu(float x)
{
    return times_sigmoid(x, x < 0, at_least(LEAST, x < 0 ? x : -x), NO_REST);
}

INLINE float sigmoid(float x)
{
    const float one = x != x ? x : 1, low = at_least(LEAST, x < 0 ? x : -x);
    return times_sigmoid(one, x < 0, low, NO_REST) + 0.0f; /* never -0 */
}

/* x * sigmoid(alpha * x) */
INLINE float quick_gelu(float x, float alpha)
{
    const float z = alpha * x, low = z < 0 ? z : -z;
    const float rest = low > LEAST ? lost_of(alpha, x, z) : 0;
    return times_sigmoid(x, z < 0, at_least(LEAST, low), z < 0 ? rest : -rest);
}

/* x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), 2 u = x * (c + d * x^2): a value
 * and what it loses. */
struct pair {
    float value, rest;
};

INLINE struct pair gelu_tanh_exponent(float x)
{
    const float c = 0x1.988454p+0f, c_rest = -0x1.857936p-25f;
    const float d = 0x1.2444f2p-4f, d_rest = 0x1.49b16ap-29f;
    const float square = x * x, square_rest = lost_of(x, x, square);
    const float sum = mul_add(d, square, c), of_square = sum - c;
    float rest = (c - (sum - of_square)) + lost_of(d, square, of_square);
    rest += mul_add(d, square_rest, mul_add(d_rest, square, c_rest));
    const float z = x * sum;
    return (struct pair){z, mul_add(x, rest, lost_of(x, sum, z))};
}

INLINE float gelu_tanh(float x)
{
    const float most = 12.5f; /* 2 u is 159 there */
    const float near = at_least(-most, x > most ? most : x);
    const struct pair z = gelu_tanh_exponent(near);
    return times_sigmoid(x < 0 ? near : x, x < 0, x < 0 ? z.value : -z.value,
                         x < 0 ? z.rest : -z.rest);
}

/*
 * Phi(-a) = e^(-a^2 / 2) * erfcx(y) / 2 with y = a / sqrt(2).
 * (1 + 2 y) * erfcx(y) - 1 is a polynomial of 1.4 - 4.8 / (y + 2), to 1e-8 for
 * y up to 10.
 */
struct normal_tail {
    float a;              /* |x|, up to where nothing is left */
    float p;              /* p * e.up * e.down is Phi(-a), */
    struct exponential e; /* and e is e^(-a^2 / 2) */
};

INLINE struct normal_tail normal_tail_of(float x)
{
    const float magnitude = x < 0 ? -x : x;
    const float a = magnitude < 18 ? magnitude : 18, square = a * a;
    const struct exponential e =
        exponential_of(-0.5f * square, -0.5f * lost_of(a, a, square));
    const float scaled = a * 0x1.6a09e6p-1f;
    const float y = scaled < 10 ? scaled : 10;
    const float s = mul_add(-4.8f, reciprocal(y + 2), 1.4f);
    float w = mul_add(0x1.6da732p-17f, s, 0x1.00230ep-18f);
    w = mul_add(w, s, -0x1.cb0774p-14f);
    w = mul_add(w, s, -0x1.45fe5cp-13f);
    w = mul_add(w, s, 0x1.875582p-11f);
    w = mul_add(w, s, 0x1.157750p-9f);
    w = mul_add(w, s, -0x1.9d1b64p-8f);
    w = mul_add(w, s, -0x1.5cfdbcp-6f);
    w = mul_add(w, s, 0x1.d3715ap-4f);
    w = mul_add(w, s, -0x1.6cf9ecp-3f);
    w = mul_add(w, s, -0x1.370fccp-6f);
    w = mul_add(w, s, 0x1.25ea64p-2f);
    const float p = mul_add(0.5f, w, 0.5f) * reciprocal(mul_add(2, y, 1)) * e.p;
    return (struct normal_tail){a, p, e};
}

/* x * Phi(x) */
INLINE float gelu(float x)
{
    const struct normal_tail tail = normal_tail_of(x);
    const float below = -tail.a * tail.p * tail.e.up * tail.e.down;
    return x < 0 ? below : x * (1 - tail.p * tail.e.up * tail.e.down);
}

/* (1 - e^(-2 |x|)) / (1 + e^(-2 |x|)), or a series where that is 0 / 2. */
INLINE float tanh_of(float x)
{
    const float a = x < 0 ? -x : x, square = x * x;
    const struct exponential e =
        exponential_of(at_least(LEAST, -2 * a), NO_REST);
    const float power = e.p * e.up * e.down;
    const float far = (1 - power) * reciprocal(1 + power);
    float p = mul_add(0x1.664f48p-6f, square, -0x1.ba1ba2p-5f);
    p = mul_add(p, square, 0x1.111112p-3f);
    p = mul_add(p, square, -0x1.555556p-2f);
    const float near = mul_add(x * square, p, x);
    const float y = a < 0.25f ? near : x < 0 ? -far : far;
    return x != x ? x : y;
}

INLINE float act(enum activation activation, float alpha, float x)
{
    float y = x < 0 ? 0 : x;
    if (activation == ACT_SILU)
        y = silu(x);
    else if (activation == ACT_GELU)
        y = gelu(x);
    else if (activation == ACT_GELU_TANH)
        y = gelu_tanh(x);
    else if (activation == ACT_RELU2)
        y = y * y;
    else if (activation == ACT_QUICK_GELU)
        y = quick_gelu(x, alpha);
    else if (activation == ACT_SIGMOID)
        y = sigmoid(x);
    return y;
}

/* ------------------------------------------------------------------ slopes */

/* sigmoid(z) * (1 + w * sigmoid(-z)), the slope of x * sigmoid(z) where z is a
 * function of x and w is x times its slope; w is finite. */
INLINE float slope_of_sigmoid(float z, float rest, float w)
{
    const bool is_low = z < 0;
    const float low = at_least(LEAST, is_low ? z : -z);
    const struct exponential e = exponential_of(low, is_low ? rest : -rest);
    const float p = low > LEAST ? e.p : 0;
    const float r = reciprocal(mul_add(e.p * e.up, e.down, 1.0f));
    const float t = mul_add(w, is_low ? r : p * e.up * e.down * r, 1.0f);
    return is_low ? t * p * e.up * e.down * r : t * r;
}

INLINE float within(float most, float x)
{
    return at_least(-most, x > most ? most : x);
}

INLINE float slope_of_silu(float x)
{
    return slope_of_sigmoid(x, NO_REST, within(-LEAST, x));
}

INLINE float slope_of_quick_gelu(float x, float alpha)
{
    const float z = alpha * x, low = z < 0 ? z : -z;
    const float rest = low > LEAST ? lost_of(alpha, x, z) : 0;
    return slope_of_sigmoid(z, rest, within(-LEAST, z));
}

INLINE float slope_of_gelu_tanh(float x)
{
    const float near = within(12.5f, x); /* as gelu_tanh, whose z this is */
    const struct pair z = gelu_tanh_exponent(near);
    const float w =
        near * mul_add(3 * 0x1.2444f2p-4f, near * near, 0x1.988454p+0f);
    return slope_of_sigmoid(z.value, z.rest, w);
}

/* Phi(x) + x * e^(-x^2 / 2) / sqrt(2 pi) */
INLINE float slope_of_gelu(float x)
{
    const struct normal_tail tail = normal_tail_of(x);
    const float p = mul_add(-0x1.988454p-2f * tail.a, tail.e.p, tail.p);
    const float below = p * tail.e.up * tail.e.down;
    return x < 0 ? below : 1 - below;
}

INLINE float slope_of_one_side(float x, float above)
{
    return x > 0 ? above : 0;
}

/* NaN stays. */
INLINE float slope_of(enum activation activation, float alpha, float x)
{
    float slope = slope_of_one_side(x, 1);
    if (activation == ACT_SILU)
        slope = slope_of_silu(x);
    else if (activation == ACT_GELU)
        slope = slope_of_gelu(x);
    else if (activation == ACT_GELU_TANH)
        slope = slope_of_gelu_tanh(x);
    else if (activation == ACT_RELU2)
        slope = slope_of_one_side(x, 2 * x);
    else if (activation == ACT_QUICK_GELU)
        slope = slope_of_quick_gelu(x, alpha);
    else if (activation == ACT_SIGMOID)
        slope = sigmoid(x) * sigmoid(-x);
    return x != x ? x : slope;
}

/* ------------------------------------------------------------------ blocks */

INLINE void activate_all(enum activation activation,
                         const struct act_and_mul_plan *plan,
                         float *restrict gate, int64_t n)
{
    const float limit = plan->limit, alpha = plan->alpha;
    for (int64_t i = 0; i < (n & -CPU_LANES); i++) {
        const float x = gate[i] > limit ? limit : gate[i];
        gate[i] = act(activation, alpha, x);
    }
}

/* The limit, at which a clamped value has no slope any more, as in PyTorch;
 * where there is none, NaN: nothing is at it, or beyond. */
INLINE float end_of(const struct act_and_mul_plan *plan)
{
    return plan->limit < INFINITY ? plan->limit : NAN;
}

INLINE void differentiate_all(enum activation activation,
                              const struct act_and_mul_plan *plan,
                              float *restrict gate, float *restrict slope,
                              int64_t n)
{
    const float limit = plan->limit, alpha = plan->alpha;
    const float end = end_of(plan);
    for (int64_t i = 0; i < (n & -CPU_LANES); i++) {
        const float x = gate[i] > limit ? limit : gate[i];
        const float s = slope_of(activation, alpha, x);
        slope[i] = gate[i] >= end ? 0 : s;
        gate[i] = act(activation, alpha, x);
    }
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
    }

static void activate(const struct act_and_mul_plan *plan, float *gate,
                     int64_t n)
{
    FOR_ACTIVATION(plan->activation, activate_all, plan, gate, n)
}

static void differentiate(const struct act_and_mul_plan *plan, float *gate,
                          float *slope, int64_t n)
{
    FOR_ACTIVATION(plan->activation, differentiate_all, plan, gate, slope, n)
}

static void tanh_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < (n & -CPU_LANES); i++)
        x[i] = tanh_of(x[i]);
}

/* A beta of 0 is not added: it would make a -0 a +0. */
static void multiply(const struct act_and_mul_plan *plan, float *restrict gate,
                     const float *restrict up, int64_t n)
{
    const float limit = plan->limit, beta = plan->beta;
    for (int64_t i = 0; i < n; i++) {
        const float most = up[i] > limit ? limit : up[i];
        const float u = most < -limit ? -limit : most;
        gate[i] *= beta == 0 ? u : u + beta;
    }
}

static void descend(float *restrict slope, const float *restrict to_act,
                    int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        slope[i] = slope[i] == 0 ? 0 : slope[i] * to_act[i];
}

static void multiply_within(const struct act_and_mul_plan *plan,
                            float *restrict act, const float *restrict g,
                            const float *restrict up, int64_t n)
{
    const float end = end_of(plan);
    for (int64_t i = 0; i < n; i++) {
        const bool is_beyond = up[i] >= end || up[i] <= -end;
        act[i] = is_beyond ? 0 : act[i] * g[i];
    }
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
    .activate = activate,
    .tanh = tanh_all,
    .multiply = multiply,
    .differentiate = differentiate,
    .descend = descend,
    .multiply_within = multiply_within,
    .pick = pick,
    .weave = weave,
};
