/*
 * reference_norm_backward.c - the gradients of norms in float64.
 */
#include "kernel/reference_internal.h"

#include "ops/layer_norm_backward.h"
#include "ops/rmsnorm_backward.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct gradient_view {
    const struct rmsnorm_params *params;
    const struct roped_tensor *grad_y, *x, *weight, *grad_residual;
    int64_t n_rows, width;
    bool rounds, is_centred;
};

/* What a row is normalised by. Its mean may be off by what a norm may be: by
 * 1e-6 of its deviation, which is 1 of the values of the norm. */
struct row_norm {
    double mean, s;
};

static double gain_at(const struct gradient_view *view, int64_t column)
{
    return roped_tensor_given(view->weight)
               ? (double)((float)view->params->weight_bias +
                          (float)reference_value(view->weight, column))
               : 1;
}

static struct row_norm norm_of_row(const struct gradient_view *view,
                                   int64_t row)
{
    struct row_norm norm = {0, 0};
    double sum = 0;
    for (int64_t j = 0; j < view->width && view->is_centred; j++)
        sum += reference_value(view->x, row * view->width + j);
    norm.mean = sum / (double)view->width;
    sum = 0;
    for (int64_t j = 0; j < view->width; j++) {
        double x = reference_value(view->x, row * view->width + j) - norm.mean;
        sum += x * x;
    }
    norm.s =
        1 / sqrt(sum / (double)view->width + (double)(float)view->params->eps);
    norm.s = norm.s > (double)FLT_MAX ? INFINITY : norm.s;
    return norm;
}

static double normal_at(const struct gradient_view *view,
                        const struct row_norm *norm, int64_t i)
{
    return (reference_value(view->x, i) - norm->mean) * norm->s;
}

/* A value that may be 1e-6 and off wrong, where it is rounded to the type of x,
 * and how far it is to the neighbour that a tie may make it. */
struct rounded {
    double value, slack;
};

static struct rounded round_like_x(const struct gradient_view *view, double x,
                                   double off)
{
    if (!view->rounds)
        return (struct rounded){x, 0};
    off += 1e-6 * fabs(x);
    double low = reference_round_float(x - off, view->x->dtype);
    double high = reference_round_float(x + off, view->x->dtype);
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
    return roped_tensor_given(view->weight) ? round_like_x(view, product, 0)
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
    const struct row_norm norm = norm_of_row(view, row);
    const double off = view->is_centred ? 1 : 0;
    double s = norm.s, dot = 0, magnitude = 0, largest = 0;
    double shift = 0, shift_magnitude = 0;
    for (int64_t j = 0; j < view->width; j++) {
        struct rounded gw = weighted_at(view, row, j);
        double normal = normal_at(view, &norm, first + j);
        dot += gw.value * normal;
        magnitude += (fabs(gw.value) + gw.slack * 1e6) * fabs(normal);
        largest = fmax(largest, fabs(gw.value));
        if (view->is_centred) {
            shift += gw.value / (double)view->width;
            shift_magnitude +=
                (fabs(gw.value) + gw.slack * 1e6) / (double)view->width;
        }
    }
    const double k = dot / (double)view->width;
    magnitude /= (double)view->width;
    for (int64_t j = 0; j < view->width; j++) {
        struct rounded gw = weighted_at(view, row, j);
        double normal = normal_at(view, &norm, first + j);
        double exact = s * (gw.value - shift - normal * k), scale;
        scale = s * (fabs(gw.value) + gw.slack * 1e6 + shift_magnitude +
                     (fabs(normal) + off) * (magnitude + shift_magnitude));
        scale +=
            1e6 * (reference_lost(s, largest) +
                   0x1p-149 * (1 + fabs(s) * (1 + fabs(normal) + largest)));
        if (roped_tensor_given(view->grad_residual)) {
            double r = reference_value(view->grad_residual, first + j);
            exact += r;
            scale += fabs(r);
        }
        scale = within_float(within_float(scale, largest), magnitude);
        scale = within_float(scale, fabs(normal) * magnitude);
        /* once a product is Inf, its row is so or NaN as sums meet it */
        const double found = reference_value(grad_x, first + j);
        if (isinf(magnitude) && !isfinite(exact) && !isfinite(found))
            exact = found;
        judge_float(judge, grad_x, first + j, exact,
                    isfinite(scale) ? scale : 0, "grad_x");
    }
}

static void judge_sum(struct reference_judge *judge,
                      const struct gradient_view *view,
                      const struct roped_tensor *grad,
                      const struct row_norm *norm, int64_t column)
{
    double sum = 0, scale = 0;
    for (int64_t row = 0; row < view->n_rows; row++) {
        int64_t i = row * view->width + column;
        double g = reference_value(view->grad_y, i);
        struct rounded normal = {1, 0};
        if (norm) {
            scale += view->is_centred ? fabs(g) : 0;
            normal = round_like_x(view, normal_at(view, &norm[row], i),
                                  view->is_centred ? 1e-6 : 0);
            double x = reference_value(view->x, i) - norm[row].mean;
            scale += 1e6 * reference_lost(fabs(g) * fabs(x), 0);
        }
        sum += g * normal.value;
        scale += fabs(g) * (fabs(normal.value) + normal.slack * 1e6);
        scale += 1e6 * (reference_lost(fabs(g), 0) + 0x1p-149);
    }
    scale = within_float(scale, scale);
    judge_float(judge, grad, column, sum, isfinite(scale) ? scale : 0,
                norm ? "grad_weight" : "grad_bias");
}

static void judge_gradients(struct reference_judge *judge,
                            struct gradient_view *view,
                            const struct roped_tensor *grad_x,
                            const struct roped_tensor *grad_weight,
                            const struct roped_tensor *grad_bias)
{
    view->width = view->x->dims[view->x->rank - 1];
    view->rounds = view->params->rounding != RMSNORM_ROUND_ONCE &&
                   view->x->dtype != ROPED_F32;
    view->n_rows = roped_tensor_elements(view->x) / view->width;
    struct row_norm *norm = malloc((size_t)(view->n_rows + 1) * sizeof *norm);
    if (!norm)
        abort();
    for (int64_t row = 0; row < view->n_rows; row++) {
        norm[row] = norm_of_row(view, row);
        judge_row(judge, view, grad_x, row);
    }
    for (int64_t j = 0; j < view->width; j++) {
        if (roped_tensor_given(view->weight))
            judge_sum(judge, view, grad_weight, norm, j);
        if (grad_bias)
            judge_sum(judge, view, grad_bias, NULL, j);
    }
    free(norm);
}

void reference_rmsnorm_backward(const struct roped_call *call,
                                struct reference_judge *judge)
{
    struct gradient_view view = {.params = (const void *)call->params,
                                 .grad_y = &call->in[RMSNORM_BACKWARD_GRAD_Y],
                                 .x = &call->in[RMSNORM_BACKWARD_X],
                                 .weight = &call->in[RMSNORM_BACKWARD_WEIGHT],
                                 .grad_residual =
                                     &call->in[RMSNORM_BACKWARD_GRAD_RESIDUAL]};
    judge_gradients(judge, &view, &call->out[RMSNORM_BACKWARD_GRAD_X],
                    &call->out[RMSNORM_BACKWARD_GRAD_WEIGHT], NULL);
}

void reference_layer_norm_backward(const struct roped_call *call,
                                   struct reference_judge *judge)
{
    const struct roped_tensor *bias = &call->in[LAYER_NORM_BACKWARD_BIAS];
    struct gradient_view view = {
        .params = (const void *)call->params,
        .grad_y = &call->in[LAYER_NORM_BACKWARD_GRAD_Y],
        .x = &call->in[LAYER_NORM_BACKWARD_X],
        .weight = &call->in[LAYER_NORM_BACKWARD_WEIGHT],
        .grad_residual = &call->in[LAYER_NORM_BACKWARD_GRAD_RESIDUAL],
        .is_centred = true};
    judge_gradients(judge, &view, &call->out[LAYER_NORM_BACKWARD_GRAD_X],
                    &call->out[LAYER_NORM_BACKWARD_GRAD_WEIGHT],
                    roped_tensor_given(bias)
                        ? &call->out[LAYER_NORM_BACKWARD_GRAD_BIAS]
                        : NULL);
}
