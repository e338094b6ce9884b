/*
 * activation_rows.c - activations of a block of float32; built once per
 * instruction set, as rows.c is. The functions are of one element, without
 * branches, and the compiler makes vectors of them. Their relative error stays
 * below 1e-6 wherever the result is normal: far below 0 a result is p * 2^k
 * until the last multiplication, and exponents carry what float32 loses of
 * them.
 */
#include "cpu/activation_rows.h"
#include "cpu/rows_isa.h"

/* ------------------------------------------------------------ exponentials */

/* e^z = p * up * down, for z in [LEAST, 0]; up and down are powers of two. */
struct exponential {
    float p, up, down;
};
#define LEAST (-170.0f) /* any float32 times e^LEAST is 0 */

INLINE float power_of_two(int k)
{
    union {
        int32_t bits;
        float value;
    } power = {.bits = (k + 127) << 23};
    return power.value;
}

/* Of z + rest; z below LEAST or NaN counts as LEAST. */
INLINE struct exponential exponential_of(float z, float rest)
{
    const float to_integer = 0x1.8p23f;
    z = z > LEAST ? z : LEAST;
    const float k = (z * 0x1.715476p+0f + to_integer) - to_integer;
    const float r = z - k * 0.693359375f - k * -2.12194440e-4f + rest;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const int whole = (int)k, half = whole >> 1;
    return (struct exponential){p, power_of_two(half),
                                power_of_two(whole - half)};
}

/* m / (1 + e^-(z + rest)); m and z have one sign, or m is 1. */
INLINE float times_sigmoid(float m, float z, float rest)
{
    const float a = z < 0 ? z : -z;
    const struct exponential e = exponential_of(a, z < 0 ? rest : -rest);
    const float over = m / (1.0f + e.p * e.up * e.down);
    const float zero = m < 0 ? -0.0f : 0.0f;
    const float below = a > LEAST ? over * e.p * e.up * e.down : zero;
    return z < 0 ? below : over;
}

/* The same for a z that float32 does not hold. */
INLINE float times_sigmoid_of(float m, double z)
{
    const double a = z < -400 ? -400 : z;
    const double b = a > 400 ? 400 : a;
    const float high = (float)b;
    return times_sigmoid(m, high, (float)(b - (double)high));
}

/* ------------------------------------------------------------- activations */

/*
 * x * Phi(x): Phi(-a) = e^(-a^2 / 2) * erfcx(y) / 2 with y = a / sqrt(2).
 * (1 + 2 y) * erfcx(y) - 1 is a polynomial of 1.4 - 4.8 / (y + 2), to 1e-8 for
 * y up to 10.
 */
INLINE float gelu(float x)
{
    const float a = x < 0 ? -x : x;
    const double square = -0.5 * (double)a * (double)a;
    const double exponent = square < -400 ? -400 : square;
    const float high = (float)exponent;
    const struct exponential e =
        exponential_of(high, (float)(exponent - (double)high));
    const float scaled = a * 0x1.6a09e6p-1f;
    const float y = scaled < 10 ? scaled : 10;
    const float s = 1.4f - 4.8f / (y + 2);
    float w = 0x1.6da732p-17f * s + 0x1.00230ep-18f;
    w = w * s - 0x1.cb0774p-14f;
    w = w * s - 0x1.45fe5cp-13f;
    w = w * s + 0x1.875582p-11f;
    w = w * s + 0x1.157750p-9f;
    w = w * s - 0x1.9d1b64p-8f;
    w = w * s - 0x1.5cfdbcp-6f;
    w = w * s + 0x1.d3715ap-4f;
    w = w * s - 0x1.6cf9ecp-3f;
    w = w * s - 0x1.370fccp-6f;
    w = w * s + 0x1.25ea64p-2f;
    const float tail = 0.5f * (1 + w) / (1 + 2 * y) * e.p; /* over 2^k */
    const float below = high > LEAST ? x * tail * e.up * e.down : -0.0f;
    const float above = x * (1 - tail * e.up * e.down);
    return x < 0 ? below : above;
}

/* x * (1 + tanh(u)) / 2 = x * sigmoid(2 u) */
INLINE float gelu_tanh(float x)
{
    const double wide = (double)x;
    const double twice = 1.5957691216057308 * wide;
    return times_sigmoid_of(x, twice + twice * (0.044715 * (wide * wide)));
}

INLINE float act(enum activation activation, float alpha, float x)
{
    float y = x < 0 ? 0 : x;
    if (activation == ACT_SILU)
        y = times_sigmoid(x, x, 0);
    else if (activation == ACT_GELU)
        y = gelu(x);
    else if (activation == ACT_GELU_TANH)
        y = gelu_tanh(x);
    else if (activation == ACT_RELU2)
        y = y * y;
    else if (activation == ACT_QUICK_GELU)
        y = times_sigmoid_of(x, (double)alpha * (double)x);
    else if (activation == ACT_SIGMOID)
        y = times_sigmoid(1, x, 0);
    return x != x ? x : y; /* NaN */
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
