/*
 * reference_act_and_mul.c - act_and_mul, its gradients and its codes in
 * float64.
 */
#include "kernel/reference_codes.h"

#include "ops/act_and_mul_backward.h"
#include "ops/act_and_mul_quantize.h"

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
    case ACT_GELU_FAST:
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

/* Where an element's gate and up are, or their gradients: in x, or in tensors
 * of their own. */
struct places {
    const struct roped_tensor *gate, *up; /* up: NULL, there is none */
    int64_t gate_at, up_at;
};

static struct places places_of(const struct act_and_mul_params *params,
                               const struct roped_tensor *x,
                               const struct roped_tensor *gate,
                               const struct roped_tensor *up, int64_t h,
                               int64_t i)
{
    int64_t row = i / h, column = i % h;
    if (!roped_tensor_given(x))
        return (struct places){gate, up, i, i};
    if (!params->gated)
        return (struct places){x, NULL, i, 0};
    int64_t at = params->interleaved ? 2 * column : column;
    int64_t other = params->interleaved ? at + 1 : at + h;
    int64_t first = row * 2 * h + at, second = row * 2 * h + other;
    return params->gate_second ? (struct places){x, x, second, first}
                               : (struct places){x, x, first, second};
}

/* Those values, clamped, and with beta. */
struct operands {
    double gate, up;
    bool gate_is_beyond, up_is_beyond; /* the limit, or at it */
};

static struct operands operands_at(const struct act_and_mul_params *params,
                                   const struct places *at)
{
    const bool is_oai = params->activation == ACT_SWIGLU_OAI;
    double limit = isnan(params->limit) ? is_oai ? 7 : INFINITY
                                        : (double)(float)params->limit;
    double gate = reference_value(at->gate, at->gate_at);
    struct operands of = {.gate = gate > limit ? limit : gate,
                          .up = 1,
                          .gate_is_beyond = limit < INFINITY && gate >= limit};
    if (!at->up)
        return of;
    double up = reference_value(at->up, at->up_at);
    of.up_is_beyond = limit < INFINITY && fabs(up) >= limit;
    of.up = up > limit ? limit : up < -limit ? -limit : up;
    of.up += is_oai ? (double)(float)params->beta : 0;
    return of;
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
    if (isnan(low) != isnan(high)) /* Inf times what is rounded to 0, or not */
        return isnan(found) == isnan(low) ? low : high;
    return fabs(found - low) <= fabs(found - high) ? low : high;
}

/* What float32 worked at; below its normal range a factor has fewer digits. */
static double scale_of(double exact, double by)
{
    double scale = fmax(fabs(exact), fabs(by) * (double)FLT_MIN);
    return isfinite(scale) ? scale : 0;
}

/* ------------------------------------------------------------------- steps */

static double in_type(double x, enum roped_dtype dtype)
{
    return reference_round_float((double)(float)x, dtype);
}

/* The activation by steps, each rounded to T; slip is that of its one step that
 * is no product or sum. */
static double act_in_steps(int activation, double alpha, double x, double slip,
                           enum roped_dtype dtype)
{
    const double root = (double)0x1.988454p-1f;
    if (activation != ACT_GELU_TANH && activation != ACT_GELU_FAST) {
        double s = sigmoid(in_type(alpha * x, dtype)) * slip;
        return in_type(x * in_type(s, dtype), dtype);
    }
    double cube = in_type(in_type(x * x, dtype) * x, dtype);
    double z = in_type(x + in_type((double)0.044715f * cube, dtype), dtype);
    z = in_type(root * z, dtype);
    if (activation == ACT_GELU_FAST) {
        double square =
            in_type(in_type((double)0.044715f * x, dtype) * x, dtype);
        z = in_type(in_type(root * x, dtype) * in_type(1 + square, dtype),
                    dtype);
    }
    double t = in_type(tanh(z) * slip, dtype);
    return in_type(in_type(0.5 * x, dtype) * in_type(1 + t, dtype), dtype);
}

/* Whichever of two the result is nearer to, where the slip shows. */
static void judge_steps(struct reference_judge *judge,
                        const struct act_and_mul_params *params,
                        const struct operands *of, bool is_gated,
                        const struct roped_tensor *y, int64_t i)
{
    const bool is_oai = params->activation == ACT_SWIGLU_OAI;
    double alpha = (double)(is_oai ? (float)params->alpha : 1.702f);
    double up = is_gated ? in_type(of->up, y->dtype) : 1, exact[2];
    double found = reference_value(y, i);
    for (int j = 0; j < 2; j++)
        exact[j] = act_in_steps(params->activation, alpha, of->gate,
                                j ? 1 + 1e-6 : 1 - 1e-6, y->dtype) *
                   up;
    int nearer = fabs(found - exact[1]) < fabs(found - exact[0]);
    judge_float(judge, y, i, in_range(exact[nearer]),
                scale_of(in_range(exact[nearer]), up), "y");
}

static bool has_steps(const struct act_and_mul_params *params,
                      const struct roped_tensor *y)
{
    return params->rounding == ACT_ROUND_STEPS && y->dtype != ROPED_F32 &&
           (params->activation == ACT_GELU_TANH ||
            params->activation == ACT_QUICK_GELU ||
            params->activation == ACT_GELU_FAST ||
            params->activation == ACT_SWIGLU_OAI);
}

static bool rounds_between(const struct act_and_mul_params *params,
                           const struct roped_tensor *y)
{
    return params->rounding != ACT_ROUND_ONCE && params->gated &&
           y->dtype != ROPED_F32;
}

/* ------------------------------------------------------------------- xielu
 */

/* Its numbers as float32 has them, and where steps are rounded as T has. */
struct xielu_numbers {
    double alpha_p, alpha_n, slope, eps;
};

static struct xielu_numbers numbers_of(const struct act_and_mul_params *params,
                                       bool rounds, enum roped_dtype dtype)
{
    struct xielu_numbers of = {
        (double)(float)params->alpha_p, (double)(float)params->alpha_n,
        (double)(float)params->slope, (double)(float)params->eps};
    if (rounds)
        of = (struct xielu_numbers){
            in_type(of.alpha_p, dtype), in_type(of.alpha_n, dtype),
            in_type(of.slope, dtype), in_type(of.eps, dtype)};
    return of;
}

static double xielu_in_steps(const struct xielu_numbers *by, double x,
                             double slip, enum roped_dtype dtype)
{
    double line = in_type(by->slope * x, dtype);
    double square = in_type(in_type(by->alpha_p * x, dtype) * x, dtype);
    double e = in_type(expm1(x > by->eps ? by->eps : x) * slip, dtype);
    double below = in_type(in_type(e - x, dtype) * by->alpha_n, dtype);
    return in_type((x > 0 ? square : below) + line, dtype);
}

/* The terms are added in float32, which has digits of the larger one. */
static void judge_xielu(struct reference_judge *judge,
                        const struct act_and_mul_params *params, double x,
                        const struct roped_tensor *y, int64_t i)
{
    const bool rounds =
        params->rounding == ACT_ROUND_STEPS && y->dtype != ROPED_F32;
    const struct xielu_numbers by = numbers_of(params, rounds, y->dtype);
    double exact, scale, found = reference_value(y, i);
    if (rounds) {
        double low = xielu_in_steps(&by, x, 1 - 1e-6, y->dtype);
        double high = xielu_in_steps(&by, x, 1 + 1e-6, y->dtype);
        exact = fabs(found - high) < fabs(found - low) ? high : low;
        scale = fabs(exact);
    } else {
        double curve = x > 0 ? by.alpha_p * x * x
                             : by.alpha_n * expm1(x > by.eps ? by.eps : x);
        double line = (x > 0 ? by.slope : by.slope - by.alpha_n) * x;
        /* Inf stays Inf without a slope, too */
        exact =
            in_range(x > 0 ? x * (by.alpha_p * x + by.slope) : curve + line);
        scale = fabs(curve) + fabs(line);
    }
    judge_float(judge, y, i, exact, isfinite(scale) ? scale : 0, "y");
}

void reference_act_and_mul(const struct roped_call *call,
                           struct reference_judge *judge)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    int64_t h = y->dims[y->rank - 1];
    for (int64_t i = 0; i < roped_tensor_elements(y); i++) {
        struct places at = places_of(params, &call->in[ACT_AND_MUL_X],
                                     &call->in[ACT_AND_MUL_GATE],
                                     &call->in[ACT_AND_MUL_UP], h, i);
        struct operands of = operands_at(params, &at);
        if (params->activation == ACT_XIELU) {
            judge_xielu(judge, params, of.gate, y, i);
            continue;
        }
        if (has_steps(params, y)) {
            judge_steps(judge, params, &of, at.up != NULL, y, i);
            continue;
        }
        double activated = in_range(
            act(params->activation, (double)(float)params->alpha, of.gate));
        double exact = in_range(
            product(activated, of.up, rounds_between(params, y), y, i));
        judge_float(judge, y, i, exact, scale_of(exact, of.up), "y");
    }
}

/* ------------------------------------------------------------------- codes */

/* The product before it is rounded, of an activation that is off by as much as
 * float32 may be, and how far the product may then be off again. */
static double product_off(const struct act_and_mul_params *params,
                          const struct roped_tensor *like,
                          const struct operands *of, bool is_gated, double slip,
                          double *share)
{
    double up = of->up, activated;
    if (has_steps(params, like)) {
        const bool is_oai = params->activation == ACT_SWIGLU_OAI;
        up = is_gated ? in_type(up, like->dtype) : 1;
        activated =
            act_in_steps(params->activation,
                         (double)(is_oai ? (float)params->alpha : 1.702f),
                         of->gate, 1 + slip, like->dtype);
    } else {
        activated = in_range(act(params->activation,
                                 (double)(float)params->alpha, of->gate)) *
                    (1 + slip);
        if (rounds_between(params, like))
            activated = reference_round_float(activated, like->dtype);
    }
    double exact = in_range(activated * up);
    *share = isfinite(exact)
                 ? 0x1p-24 * scale_of(exact, up) + 0x1p-148 * (1 + fabs(up))
                 : 0;
    return exact;
}

static void bounds_of_product(const struct reference_coded *of, int64_t i,
                              double bounds[2])
{
    const struct act_and_mul_quantize_params *all =
        (const void *)of->call->params;
    const struct act_and_mul_params *params = &all->act;
    const struct roped_tensor *in = of->call->in;
    const struct roped_tensor *like = roped_tensor_given(&in[ACT_AND_MUL_X])
                                          ? &in[ACT_AND_MUL_X]
                                          : &in[ACT_AND_MUL_GATE];
    struct places at =
        places_of(params, &in[ACT_AND_MUL_X], &in[ACT_AND_MUL_GATE],
                  &in[ACT_AND_MUL_UP], of->width, i);
    struct operands operands = operands_at(params, &at);
    double share[2], a = product_off(params, like, &operands, at.up != NULL,
                                     -1e-6, &share[0]);
    double b =
        product_off(params, like, &operands, at.up != NULL, 1e-6, &share[1]);
    bounds[0] = a < b ? a - share[0] : b - share[1];
    bounds[1] = a < b ? b + share[1] : a + share[0];
    if (isnan(a) || isnan(b))
        bounds[0] = bounds[1] = NAN;
    for (int j = 0; j < 2 && params->rounding != ACT_ROUND_ONCE; j++)
        bounds[j] = reference_round_float(bounds[j], like->dtype);
}

void reference_act_and_mul_quantize(const struct roped_call *call,
                                    struct reference_judge *judge)
{
    const struct act_and_mul_quantize_params *params =
        (const void *)call->params;
    const struct roped_tensor *y = &call->out[QUANTIZE_Y];
    const int64_t last = y->dims[y->rank - 1];
    const bool is_packed = params->quantize.codes.format >= CODES_MXFP4;
    const struct reference_coded of = {
        .call = call,
        .params = &params->quantize,
        .y = y,
        .scales = &call->out[QUANTIZE_SCALES],
        .n_rows = roped_tensor_elements(y) / last,
        .width = is_packed ? 2 * last : last,
        .global_scale = reference_global_scale(
            call, ACT_AND_MUL_QUANTIZE_GLOBAL_SCALE, &params->quantize.codes),
        .bounds = bounds_of_product};
    reference_codes(&of, judge);
}

/* --------------------------------------------------------------- gradients */

/* A slope, and the magnitudes of the terms that it is the sum of. */
struct slope {
    double value, scale;
};

/* x * sigmoid(z), w: x times the slope of z */
static struct slope slope_of_sigmoid(double z, double w)
{
    double s = sigmoid(z), term = w * s * sigmoid(-z);
    if (fabs(z) > 700)
        return (struct slope){z > 0, z > 0};
    return (struct slope){s + term, s + fabs(term)};
}

static struct slope slope_of(int activation, double alpha, double x)
{
    const double pi = acos(-1), root = sqrt(2 / pi);
    double one_sided = x > 0 ? activation == ACT_RELU2 ? 2 * x : 1 : 0;
    double tail = erfc(-x / sqrt(2)) / 2;
    double term = fabs(x) < 50 ? x * exp(-x * x / 2) / sqrt(2 * pi) : 0;
    double near = fmax(fmin(x, 1000), -1000);
    if (isnan(x))
        return (struct slope){x, x};
    switch (activation) {
    case ACT_SILU:
        return slope_of_sigmoid(x, x);
    case ACT_GELU:
        return (struct slope){tail + term, tail + fabs(term)};
    case ACT_GELU_TANH:
    case ACT_GELU_FAST:
        return slope_of_sigmoid(
            2 * root * (near + 0.044715 * near * near * near),
            2 * root * (near + 3 * 0.044715 * near * near * near));
    case ACT_RELU:
    case ACT_RELU2:
        return (struct slope){one_sided, one_sided};
    case ACT_SIGMOID:
        return (struct slope){sigmoid(x) * sigmoid(-x), 0};
    default:
        alpha = activation == ACT_QUICK_GELU ? (double)1.702f : alpha;
        return slope_of_sigmoid(alpha * x, alpha * x);
    }
}

/* grad_y * up, or the slope, may leave float32 although their product does not;
 * where the slope is 0, so is the gradient. */
static void judge_gate(struct reference_judge *judge,
                       const struct roped_call *call, double g,
                       const struct operands *of, const struct places *to)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    struct slope slope =
        slope_of(params->activation, (double)(float)params->alpha, of->gate);
    double to_act = g * of->up, exact = 0, scale = 0;
    if (!of->gate_is_beyond && in_range(slope.value) != 0) {
        exact = in_range(product(to_act, slope.value,
                                 rounds_between(params, to->gate), to->gate,
                                 to->gate_at));
        scale = fmax(scale_of(exact, to_act), fabs(to_act) * slope.scale);
        scale += 1e6 * 0x1p-149 * fabs(slope.value);
        if (2 * fmax(fabs(to_act), fabs(slope.value)) > (double)FLT_MAX)
            scale = fmax(scale, (double)FLT_MAX);
    }
    judge_float(judge, to->gate, to->gate_at, exact,
                isfinite(scale) ? scale : 0, "grad_gate");
}

static void judge_up(struct reference_judge *judge,
                     const struct roped_call *call, double g,
                     const struct operands *of, const struct places *to)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    double activated = in_range(
        act(params->activation, (double)(float)params->alpha, of->gate));
    double exact =
        of->up_is_beyond
            ? 0
            : in_range(product(activated, g, rounds_between(params, to->up),
                               to->up, to->up_at));
    judge_float(judge, to->up, to->up_at, exact, scale_of(exact, g), "grad_up");
}

void reference_act_and_mul_backward(const struct roped_call *call,
                                    struct reference_judge *judge)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    const struct roped_tensor *grad_y = &call->in[ACT_BACKWARD_GRAD_Y];
    int64_t h = grad_y->dims[grad_y->rank - 1];
    for (int64_t i = 0; i < roped_tensor_elements(grad_y); i++) {
        struct places at = places_of(params, &call->in[ACT_BACKWARD_X],
                                     &call->in[ACT_BACKWARD_GATE],
                                     &call->in[ACT_BACKWARD_UP], h, i);
        struct places to = places_of(params, &call->out[ACT_BACKWARD_GRAD_X],
                                     &call->out[ACT_BACKWARD_GRAD_GATE],
                                     &call->out[ACT_BACKWARD_GRAD_UP], h, i);
        struct operands of = operands_at(params, &at);
        double g = reference_value(grad_y, i);
        judge_gate(judge, call, g, &of, &to);
        if (to.up)
            judge_up(judge, call, g, &of, &to);
    }
}
