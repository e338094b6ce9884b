/*
 * reference_act_and_mul.c - act_and_mul in float64.
 */
#include "kernel/reference_internal.h"

#include "ops/act_and_mul.h"

#include <float.h>
#include <math.h>

static double sigmoid(double z)
{
    return z < 0 ? exp(z) / (1 + exp(z)) : 1 / (1 + exp(-z));
}

/* Inf beyond what float32 holds, which all arithmetic is in, and 0 below it. */
static double in_range(double x)
{
    if (fabs(x) < 0x1p-150)
        return copysign(0, x);
    return fabs(x) >= 0x1.ffffffp127 ? copysign(INFINITY, x) : x;
}

/* Every one of these is 0 at -Inf, where its formula is NaN. */
static double act(int activation, double alpha, double x)
{
    const double root = sqrt(2 / acos(-1));
    if (x == -INFINITY && activation != ACT_SIGMOID)
        return 0;
    switch (activation) {
    case ACT_SILU:
        return x * sigmoid(x);
    case ACT_GELU:
        return x * erfc(-x / sqrt(2)) / 2;
    case ACT_GELU_TANH:
        return x * sigmoid(2 * root * (x + 0.044715 * x * x * x));
    case ACT_RELU:
        return x < 0 ? 0 : x;
    case ACT_RELU2:
        return x < 0 ? 0 : x * x;
    case ACT_QUICK_GELU:
        return x * sigmoid((double)1.702f * x);
    case ACT_SIGMOID:
        return sigmoid(x);
    default:
        return x * sigmoid(alpha * x);
    }
}

/* The elements of y's element i in x, or in gate and up. */
static void operands(const struct roped_call *call, int64_t i, double *gate,
                     double *up)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[ACT_AND_MUL_X];
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    const int64_t h = y->dims[y->rank - 1], row = i / h, column = i % h;
    *up = 1;
    if (!roped_tensor_given(x)) {
        *gate = reference_value(&call->in[ACT_AND_MUL_GATE], i);
        *up = reference_value(&call->in[ACT_AND_MUL_UP], i);
    } else if (!params->gated) {
        *gate = reference_value(x, i);
    } else {
        int64_t at = params->interleaved ? 2 * column : column;
        int64_t other = params->interleaved ? at + 1 : at + h;
        double first = reference_value(x, row * 2 * h + at);
        double second = reference_value(x, row * 2 * h + other);
        *gate = params->gate_second ? second : first;
        *up = params->gate_second ? first : second;
    }
}

/* A rounded activation is that of the exact value or, near a midpoint, its
 * neighbour: whichever the result is nearer to. */
static double product(double activated, double up, bool rounds,
                      const struct roped_tensor *y, int64_t i)
{
    if (!rounds)
        return activated * up;
    double low = reference_round_float(activated * (1 - 1e-6), y->dtype) * up;
    double high = reference_round_float(activated * (1 + 1e-6), y->dtype) * up;
    double found = reference_value(y, i);
    return fabs(found - low) <= fabs(found - high) ? low : high;
}

void reference_act_and_mul(const struct roped_call *call,
                           struct reference_judge *judge)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    const bool is_oai = params->activation == ACT_SWIGLU_OAI;
    const bool rounds = params->rounding == ACT_ROUND_TYPE && params->gated &&
                        y->dtype != ROPED_F32;
    double limit = isnan(params->limit) ? is_oai ? 7 : INFINITY
                                        : (double)(float)params->limit;
    for (int64_t i = 0; i < roped_tensor_elements(y); i++) {
        double gate, up;
        operands(call, i, &gate, &up);
        gate = gate > limit ? limit : gate;
        if (params->gated) {
            up = up > limit ? limit : up < -limit ? -limit : up;
            up += is_oai ? (double)(float)params->beta : 0;
        }
        double activated = in_range(
            act(params->activation, (double)(float)params->alpha, gate));
        double exact = in_range(product(activated, up, rounds, y, i));
        /* an activation below float32's normal range has fewer digits */
        double least = fabs(up) * (double)FLT_MIN;
        double scale = fabs(exact) > least ? fabs(exact) : least;
        judge_float(judge, y, i, exact, isfinite(scale) ? scale : 0, "y");
    }
}
