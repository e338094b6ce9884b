/*
 * reference_norm.c - the norm operators in float64.
 */
#include "kernel/reference_internal.h"

#include "ops/add_rmsnorm.h"

#include <math.h>

/* What a norm operator's tensors and parameters say. */
struct norm_view {
    const struct roped_tensor *x, *weight;
    const struct roped_tensor *residual; /* or NULL */
    const struct rmsnorm_params *params;
    int64_t hidden, n_rows;
};

static struct norm_view view_of(const struct roped_tensor *x,
                                const struct roped_tensor *weight,
                                const struct rmsnorm_params *params)
{
    int64_t hidden = x->dims[x->rank - 1];
    return (struct norm_view){.x = x,
                              .weight = weight,
                              .params = params,
                              .hidden = hidden,
                              .n_rows = roped_tensor_elements(x) / hidden};
}

/* What is normalised: x, or x + residual in float32. */
static double value_at(const struct norm_view *view, int64_t i)
{
    double x = reference_value(view->x, i);
    if (!view->residual)
        return x;
    return (double)(float)(x + reference_value(view->residual, i));
}

static double gain_at(const struct norm_view *view, int64_t column)
{
    double weight = roped_tensor_given(view->weight)
                        ? reference_value(view->weight, column)
                        : 1;
    return view->params->weight_bias + weight;
}

/* 1 / sqrt(mean square + eps) of a row. */
static double row_scale(const struct norm_view *view, int64_t row)
{
    double sum = 0;
    for (int64_t j = 0; j < view->hidden; j++) {
        double z = value_at(view, row * view->hidden + j);
        sum += z * z;
    }
    return 1 / sqrt(sum / (double)view->hidden + view->params->eps);
}

/* rounding=hf: z * s is rounded to the type of x before the weight product. */
static bool rounds_product(const struct norm_view *view)
{
    return view->params->rounding == RMSNORM_ROUND_HF &&
           view->x->dtype != ROPED_F32;
}

static void judge_row(struct reference_judge *judge,
                      const struct norm_view *view,
                      const struct roped_tensor *y, int64_t row)
{
    double s = row_scale(view, row), largest = 0;
    int64_t first = row * view->hidden;
    for (int64_t j = 0; j < view->hidden; j++) {
        double v = value_at(view, first + j) * s * gain_at(view, j);
        if (isfinite(v))
            largest = fmax(largest, fabs(v));
    }
    for (int64_t j = 0; j < view->hidden; j++) {
        double gain = gain_at(view, j);
        double v = value_at(view, first + j) * s;
        /* a tie of hf's first rounding may fall either way, which moves the
         * product by one unit of the type more */
        double slack = 0;
        if (rounds_product(view)) {
            slack = reference_unit(v, view->x->dtype) * fabs(gain);
            v = reference_round(v, view->x->dtype);
        }
        judge_float(judge, y, first + j, v * gain, largest + slack * 1e6, "y");
    }
}

void reference_rmsnorm(const struct roped_call *call,
                       struct reference_judge *judge)
{
    struct norm_view view =
        view_of(&call->in[RMSNORM_X], &call->in[RMSNORM_WEIGHT],
                (const void *)call->params);
    for (int64_t row = 0; row < view.n_rows; row++)
        judge_row(judge, &view, &call->out[RMSNORM_Y], row);
}

/* One float32 sum, one rounding: no room for another result. */
static void judge_sum(struct reference_judge *judge,
                      const struct norm_view *view,
                      const struct roped_tensor *out, int64_t i)
{
    double z = value_at(view, i);
    double rounded = reference_round(z, out->dtype);
    double largest = out->dtype == ROPED_F16    ? 65504
                     : out->dtype == ROPED_BF16 ? 0x1.FEp127
                                                : INFINITY;
    if (fabs(rounded) > largest)
        rounded = copysign(INFINITY, z);
    judge_value(judge, reference_value(out, i), rounded, 0, "residual", i);
}

void reference_add_rmsnorm(const struct roped_call *call,
                           struct reference_judge *judge)
{
    struct norm_view view =
        view_of(&call->in[ADD_RMSNORM_X], &call->in[ADD_RMSNORM_WEIGHT],
                (const void *)call->params);
    view.residual = &call->in[ADD_RMSNORM_RESIDUAL];
    for (int64_t row = 0; row < view.n_rows; row++)
        judge_row(judge, &view, &call->out[ADD_RMSNORM_Y], row);
    for (int64_t i = 0; i < view.n_rows * view.hidden; i++)
        judge_sum(judge, &view, &call->out[ADD_RMSNORM_RESIDUAL_OUT], i);
}
