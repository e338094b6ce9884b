/*
 * reference_norm_backward.c - the gradients of norms in float64.
 */
#include "kernel/reference_internal.h"

#include "ops/rmsnorm_backward.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct gradient_view {
    const struct rmsnorm_params *params;
    const struct roped_tensor *grad_y, *x, *weight, *grad_residual;
    int64_t n_rows, width;
    bool rounds;
};

static double gain_at(const struct gradient_view *view, int64_t column)
{
    return roped_tensor_given(view->weight)
               ? (double)((float)view->params->weight_bias +
                          (float)reference_value(view->weight, column))
               : 1;
}

static double row_scale(const struct gradient_view *view, int64_t row)
{
    double sum = 0;
    for (int64_t j = 0; j < view->width; j++) {
        double x = reference_value(view->x, row * view->width + j);
        sum += x * x;
    }
    double scale =
        1 / sqrt(sum / (double)view->width + (double)(float)view->params->eps);
    return scale > (double)FLT_MAX ? INFINITY : scale;
}

/* A value where it is rounded to the type of x, and how far it is to the
 * neighbour that a tie may make it. */
struct rounded {
    double value, slack;
};

static struct rounded round_like_x(const struct gradient_view *view, double x)
{
    if (!view->rounds)
        return (struct rounded){x, 0};
    double low = reference_round_float(x * (1 - 1e-6), view->x->dtype);
    double high = reference_round_float(x * (1 + 1e-6), view->x->dtype);
    double slack = fabs(high - low);
    return (struct rounded){reference_round_float(x, view->x->dtype),
                            isfinite(slack) ? slack : 0};
}

/* grad_y * w of an element. */
static struct rounded weighted_at(const struct gradient_view *view, int64_t row,
                                  int64_t column)
{
    double g = reference_value(view->grad_y, row * view->width + column);
    double product = g * gain_at(view, column);
    return roped_tensor_given(view->weight) ? round_like_x(view, product)
                                            : (struct rounded){product, 0};
}

/* What float32 cannot hold is Inf there, and what is made of it anything. */
static double within_float(double scale, double term)
{
    return isfinite(scale) && 2 * fabs(term) > (double)FLT_MAX
               ? fmax(scale, (double)FLT_MAX / 1.5)
               : scale;
}

static void judge_row(struct reference_judge *judge,
                      const struct gradient_view *view,
                      const struct roped_tensor *grad_x, int64_t row)
{
    const int64_t first = row * view->width;
    double s = row_scale(view, row), dot = 0, magnitude = 0, largest = 0;
    for (int64_t j = 0; j < view->width; j++) {
        struct rounded gw = weighted_at(view, row, j);
        double normal = reference_value(view->x, first + j) * s;
        dot += gw.value * normal;
        magnitude += (fabs(gw.value) + gw.slack * 1e6) * fabs(normal);
        largest = fmax(largest, fabs(gw.value));
    }
    const double k = dot / (double)view->width;
    magnitude /= (double)view->width;
    for (int64_t j = 0; j < view->width; j++) {
        struct rounded gw = weighted_at(view, row, j);
        double normal = reference_value(view->x, first + j) * s;
        double exact = s * (gw.value - normal * k), scale;
        scale =
            s * (fabs(gw.value) + gw.slack * 1e6 + fabs(normal) * magnitude);
        scale += 1e6 * (reference_lost(s, largest) +
                        0x1p-149 * (1 + fabs(s) * (1 + fabs(normal))));
        if (roped_tensor_given(view->grad_residual)) {
            double r = reference_value(view->grad_residual, first + j);
            exact += r;
            scale += fabs(r);
        }
        scale = within_float(within_float(scale, largest), magnitude);
        scale = within_float(scale, fabs(normal) * magnitude);
        judge_float(judge, grad_x, first + j, exact,
                    isfinite(scale) ? scale : 0, "grad_x");
    }
}

static void judge_weight(struct reference_judge *judge,
                         const struct gradient_view *view,
                         const struct roped_tensor *grad_weight,
                         const double *s, int64_t column)
{
    double sum = 0, scale = 0;
    for (int64_t row = 0; row < view->n_rows; row++) {
        int64_t i = row * view->width + column;
        double g = reference_value(view->grad_y, i);
        double x = reference_value(view->x, i);
        struct rounded normal = round_like_x(view, x * s[row]);
        sum += g * normal.value;
        scale += fabs(g) * (fabs(normal.value) + normal.slack * 1e6);
        scale += 1e6 * (reference_lost(fabs(g) * fabs(x), 0) +
                        reference_lost(fabs(g), 0) + 0x1p-149);
    }
    scale = within_float(scale, scale);
    judge_float(judge, grad_weight, column, sum, isfinite(scale) ? scale : 0,
                "grad_weight");
}

void reference_rmsnorm_backward(const struct roped_call *call,
                                struct reference_judge *judge)
{
    const struct roped_tensor *x = &call->in[RMSNORM_BACKWARD_X];
    const struct rmsnorm_params *params = (const void *)call->params;
    struct gradient_view view = {
        .params = params,
        .grad_y = &call->in[RMSNORM_BACKWARD_GRAD_Y],
        .x = x,
        .weight = &call->in[RMSNORM_BACKWARD_WEIGHT],
        .grad_residual = &call->in[RMSNORM_BACKWARD_GRAD_RESIDUAL],
        .width = x->dims[x->rank - 1],
        .rounds =
            params->rounding != RMSNORM_ROUND_ONCE && x->dtype != ROPED_F32};
    view.n_rows = roped_tensor_elements(x) / view.width;
    double *s = malloc((size_t)(view.n_rows + 1) * sizeof *s);
    if (!s)
        abort();
    for (int64_t row = 0; row < view.n_rows; row++) {
        s[row] = row_scale(&view, row);
        judge_row(judge, &view, &call->out[RMSNORM_BACKWARD_GRAD_X], row);
    }
    for (int64_t j = 0; j < view.width && roped_tensor_given(view.weight); j++)
        judge_weight(judge, &view, &call->out[RMSNORM_BACKWARD_GRAD_WEIGHT], s,
                     j);
    free(s);
}
