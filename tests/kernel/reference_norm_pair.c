/*
 * reference_norm_pair.c - RMS norms, alone, of heads, and beside a residual or
 * a gate, in float64.
 *
 * What float32 makes of a step is not known to the last bit, and where it is
 * rounded to T in between, a tie may fall either way. So each result is held to
 * an interval, which goes through the same steps.
 */
#include "kernel/reference_internal.h"

#include "ops/gated_rmsnorm.h"
#include "ops/rmsnorm_add.h"

#include <float.h>
#include <math.h>

static const double slip = 1e-6, least = 0x1p-149;

struct pair_view {
    const struct roped_tensor *x, *second, *weight, *out;
    const struct rmsnorm_params *params;
    enum norm_pair pair;
    bool is_sigmoid;
    bool rounds_product, rounds_norm; /* to T, before and after the weight */
    bool rounds_scale;                /* 1 / rms to T */
    int64_t width, size;              /* of a row, of a group of it */
};

struct interval {
    double low, high;
};

/* Inf beyond what float32 holds. */
static double in_range(double x)
{
    return fabs(x) >= 0x1.ffffffp127 ? copysign(INFINITY, x) : x;
}

static struct interval between(double a, double b)
{
    if (isnan(a) || isnan(b))
        return (struct interval){NAN, NAN};
    return (struct interval){in_range(fmin(a, b)), in_range(fmax(a, b))};
}

static double moved(double x, double by)
{
    return isfinite(x) ? x + by : x;
}

static struct interval widened(struct interval x, double share, double lost)
{
    return between(moved(x.low, -share * fabs(x.low) - lost),
                   moved(x.high, share * fabs(x.high) + lost));
}

static struct interval rounded(struct interval x, enum roped_dtype dtype)
{
    return (struct interval){reference_round_float(x.low, dtype),
                             reference_round_float(x.high, dtype)};
}

static struct interval times(struct interval x, double by)
{
    return widened(between(x.low * by, x.high * by), slip / 10, least);
}

/* In float32, which has nothing left of it far below 0. */
static double act(const struct pair_view *view, int64_t i)
{
    double x = reference_value(view->second, i);
    double sigmoid = x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
    if (view->is_sigmoid)
        return (double)(float)sigmoid;
    return x == -INFINITY ? 0 : (double)(float)(x * sigmoid);
}

/* What is normalised, in float32. */
static double value_at(const struct pair_view *view, int64_t i)
{
    double x = reference_value(view->x, i);
    return view->pair == GATE_THEN_NORM ? (double)(float)(x * act(view, i)) : x;
}

static double gain_at(const struct pair_view *view, int64_t i)
{
    return roped_tensor_given(view->weight)
               ? (double)(float)view->params->weight_bias +
                     reference_value(view->weight, i % view->width)
               : 1;
}

/* 1 / sqrt(mean square + eps) of a group; Inf where float32 has no other. */
static double scale_of(const struct pair_view *view, int64_t first)
{
    double sum = 0;
    for (int64_t i = first; i < first + view->size; i++)
        sum += value_at(view, i) * value_at(view, i);
    double s = 1 / sqrt(sum / (double)view->size + view->params->eps);
    return s > (double)FLT_MAX ? INFINITY : s;
}

/* The norm has 1 / rms in the type of x. A tie of that may fall either way. */
static struct interval scale_places(const struct pair_view *view, double s)
{
    struct interval of = {s, s};
    return view->rounds_scale ? rounded(widened(of, slip, 0), view->x->dtype)
                              : of;
}

/* Where an element lies before it is rounded to the type of the result. */
static struct interval place_of(const struct pair_view *view, int64_t i,
                                double s)
{
    const enum roped_dtype dtype = view->x->dtype;
    double z = value_at(view, i), gain = gain_at(view, i);
    struct interval scales = scale_places(view, s);
    struct interval y = between(z * scales.low, z * scales.high);
    /* of x * s, and of an activation below float32's range before that */
    double of_act =
        view->pair == GATE_THEN_NORM ? fabs(reference_value(view->x, i)) : 0;
    double lost = isfinite(s) ? least * (1 + s + s * of_act) : 0;
    y = widened(y, view->pair == GATE_THEN_NORM ? 2 * slip : slip, lost);
    if (isnan(z * s))
        return (struct interval){NAN, NAN};
    if (view->rounds_product)
        y = rounded(y, dtype);
    y = times(y, gain);
    if (view->pair == NORM_ALONE)
        return y;
    if (view->rounds_norm)
        y = rounded(y, dtype);
    if (view->pair == NORM_THEN_ADD) {
        double by = reference_value(view->second, i);
        return widened(between(y.low + by, y.high + by), slip / 10, 0);
    }
    if (view->pair == NORM_THEN_GATE)
        y = widened(times(y, act(view, i)), slip,
                    least * fmin(fmax(fabs(y.low), fabs(y.high)), 0x1p127));
    return y;
}

static void judge_element(struct reference_judge *judge,
                          const struct pair_view *view, int64_t i, double s)
{
    const char *what = view->pair == NORM_THEN_ADD ? "residual" : "y";
    double found = reference_value(view->out, i);
    struct interval y = place_of(view, i, s);
    y = rounded(y, view->out->dtype);
    bool is_between = found >= y.low && found <= y.high;
    judge_value(judge, found, is_between ? found : (y.low + y.high) / 2, 0,
                what, i);
}

static void judge_pair(struct reference_judge *judge,
                       const struct pair_view *view)
{
    const int64_t n = roped_tensor_elements(view->x);
    for (int64_t first = 0; first < n; first += view->size) {
        double s = scale_of(view, first);
        for (int64_t i = first; i < first + view->size; i++)
            judge_element(judge, view, i, s);
    }
}

void reference_heads_rmsnorm(const struct roped_call *call,
                             struct reference_judge *judge)
{
    const struct heads_norm_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    const bool is_narrow = x->dtype != ROPED_F32;
    const int64_t width = x->dims[x->rank - 1];
    const struct pair_view view = {
        .x = x,
        .weight = &call->in[RMSNORM_WEIGHT],
        .out = &call->out[RMSNORM_Y],
        .params = &params->norm,
        .pair = NORM_ALONE,
        .rounds_product =
            is_narrow && params->norm.rounding != RMSNORM_ROUND_ONCE,
        .rounds_scale =
            is_narrow && params->norm.rounding == RMSNORM_ROUND_SCALE,
        .width = width,
        .size = width / params->heads};
    judge_pair(judge, &view);
}

void reference_rmsnorm_add(const struct roped_call *call,
                           struct reference_judge *judge)
{
    const struct rmsnorm_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[RMSNORM_ADD_X];
    const bool is_narrow = x->dtype != ROPED_F32;
    const int64_t width = x->dims[x->rank - 1];
    const struct pair_view view = {
        .x = x,
        .second = &call->in[RMSNORM_ADD_RESIDUAL],
        .weight = &call->in[RMSNORM_ADD_WEIGHT],
        .out = &call->out[RMSNORM_ADD_RESIDUAL_OUT],
        .params = params,
        .pair = NORM_THEN_ADD,
        .rounds_product = is_narrow && params->rounding == RMSNORM_ROUND_HF,
        .rounds_norm = is_narrow && params->sum_rounding == RMSNORM_SUM_TYPE,
        .width = width,
        .size = width};
    judge_pair(judge, &view);
}

void reference_gated_rmsnorm(const struct roped_call *call,
                             struct reference_judge *judge)
{
    const struct gated_rmsnorm_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[GATED_RMSNORM_X];
    const struct roped_tensor *weight = &call->in[GATED_RMSNORM_WEIGHT];
    const bool rounds =
        x->dtype != ROPED_F32 && params->norm.rounding == RMSNORM_ROUND_HF;
    const int64_t width = x->dims[x->rank - 1];
    const struct pair_view view = {
        .x = x,
        .second = &call->in[GATED_RMSNORM_GATE],
        .weight = weight,
        .out = &call->out[GATED_RMSNORM_Y],
        .params = &params->norm,
        .pair = params->gate_first ? GATE_THEN_NORM : NORM_THEN_GATE,
        .is_sigmoid = params->gate_activation,
        .rounds_product = rounds,
        .rounds_norm =
            rounds && !params->gate_first && weight->dtype != ROPED_F32,
        .width = width,
        .size = params->group_size ? params->group_size : width};
    judge_pair(judge, &view);
}
