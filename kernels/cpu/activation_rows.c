/*
 * activation_rows.c - activations of a block of float32; built once per
 * instruction set, as rows.c is. The functions are of one element, without
 * branches, and the compiler makes vectors of them. Their relative error stays
 * below 1e-6 wherever the result is normal: what goes into an exponent is two
 * floats, a value and what float32 loses of it.
 */
#include "cpu/activation_rows.h"
#include "cpu/rows_isa.h"

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

/* x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), 2 u = x * (c + d * x^2) in pairs
 * of floats. */
INLINE float gelu_tanh(float x)
{
    const float c = 0x1.988454p+0f, c_rest = -0x1.857936p-25f;
    const float d = 0x1.2444f2p-4f, d_rest = 0x1.49b16ap-29f;
    const float most = 12.5f; /* 2 u is 159 there */
    const float near = at_least(-most, x > most ? most : x);
    const float square = near * near, square_rest = lost_of(near, near, square);
    const float sum = mul_add(d, square, c), of_square = sum - c;
    float rest = (c - (sum - of_square)) + lost_of(d, square, of_square);
    rest += mul_add(d, square_rest, mul_add(d_rest, square, c_rest));
    const float z = near * sum;
    rest = mul_add(near, rest, lost_of(near, sum, z));
    return times_sigmoid(x < 0 ? near : x, x < 0, x < 0 ? z : -z,
                         x < 0 ? rest : -rest);
}

/*
 * x * Phi(x): Phi(-a) = e^(-a^2 / 2) * erfcx(y) / 2 with y = a / sqrt(2).
 * (1 + 2 y) * erfcx(y) - 1 is a polynomial of 1.4 - 4.8 / (y + 2), to 1e-8 for
 * y up to 10.
 */
INLINE float gelu(float x)
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
    const float tail =
        mul_add(0.5f, w, 0.5f) * reciprocal(mul_add(2, y, 1)) * e.p;
    const float below = -a * tail * e.up * e.down;
    return x < 0 ? below : x * (1 - tail * e.up * e.down);
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

static void activate(const struct act_and_mul_plan *plan, float *gate,
                     int64_t n)
{
    switch ((enum activation)plan->activation) {
    case ACT_SILU:
        activate_all(ACT_SILU, plan, gate, n);
        break;
    case ACT_GELU:
        activate_all(ACT_GELU, plan, gate, n);
        break;
    case ACT_GELU_TANH:
        activate_all(ACT_GELU_TANH, plan, gate, n);
        break;
    case ACT_RELU:
        activate_all(ACT_RELU, plan, gate, n);
        break;
    case ACT_RELU2:
        activate_all(ACT_RELU2, plan, gate, n);
        break;
    case ACT_SIGMOID:
        activate_all(ACT_SIGMOID, plan, gate, n);
        break;
    case ACT_QUICK_GELU:
    case ACT_SWIGLU_OAI:
        activate_all(ACT_QUICK_GELU, plan, gate, n);
        break;
    }
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

static void pick(float *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[2 * i];
}

extern const struct cpu_activation_rows ISA(cpu_activation_rows);
const struct cpu_activation_rows ISA(cpu_activation_rows) = {
    .activate = activate,
    .multiply = multiply,
    .pick = pick,
};
