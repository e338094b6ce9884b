/*
 * reference_norm.c - the norm operators in float64.
 */
#include "kernel/reference_codes.h"

#include "ops/add_layer_norm.h"
#include "ops/add_rmsnorm.h"
#include "ops/add_rmsnorm_quantize.h"
#include "ops/layer_norm.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* What a norm operator's tensors and parameters say. */
struct norm_view {
    const struct roped_tensor *x, *weight;
    const struct roped_tensor *residual; /* or NULL */
    const struct roped_tensor *addend;   /* absent, or NULL */
    const struct rmsnorm_params *params;
    int64_t hidden, n_rows;
    int64_t heads; /* rows are heads, of which so many have weights of their
                      own */
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
                              .n_rows = roped_tensor_elements(x) / hidden,
                              .heads = 1};
}

/* The same of norms that may be of heads. */
static struct norm_view view_of_heads(const struct roped_call *call, int x,
                                      int weight)
{
    const struct heads_norm_params *params = (const void *)call->params;
    struct norm_view view =
        view_of(&call->in[x], &call->in[weight], &params->norm);
    view.heads = params->heads;
    view.hidden /= view.heads;
    view.n_rows *= view.heads;
    return view;
}

static double round_like_x(const struct norm_view *view, double value)
{
    return reference_round_float(value, view->x->dtype);
}

/* A step of a sum: in float32, rounded to a type or not. */
static double round_step(const struct norm_view *view, double value,
                         enum roped_dtype dtype)
{
    double z = (double)(float)value;
    return view->params->sum_rounding == RMSNORM_SUM_TYPE && dtype != ROPED_F32
               ? reference_round_float(z, dtype)
               : z;
}

static double scaled(const struct norm_view *view,
                     const struct roped_tensor *from, int64_t i, double scale)
{
    return round_step(view, reference_value(from, i) * (double)(float)scale,
                      from->dtype);
}

/* What is added up, before it is stored. A sum is F32 once the residual is in
 * it that is F32. */
static double sum_at(const struct norm_view *view, int64_t i)
{
    const struct rmsnorm_params *params = view->params;
    const enum roped_dtype like = view->x->dtype, of = view->residual->dtype;
    double z = scaled(view, view->x, i, params->x_scale);
    double residual = scaled(view, view->residual, i, params->residual_scale);
    if (!roped_tensor_given(view->addend)) {
        z = round_step(view, z + residual, of);
    } else {
        double addend = scaled(view, view->addend, i, params->addend_scale);
        bool is_first = params->sum_order == RMSNORM_RESIDUAL_FIRST;
        z = is_first ? round_step(view, residual + z, of)
                     : round_step(view, z + addend, like);
        z = round_step(view, z + (is_first ? addend : residual), of);
    }
    return round_step(view, z * (double)(float)params->sum_scale, of);
}

/* What is normalised: x, or a sum. */
static double value_at(const struct norm_view *view, int64_t i)
{
    return view->residual ? round_step(view, sum_at(view, i), view->x->dtype)
                          : reference_value(view->x, i);
}

static double gain_at(const struct norm_view *view, int64_t column)
{
    return roped_tensor_given(view->weight)
               ? (double)(float)view->params->weight_bias +
                     reference_value(view->weight, column)
               : 1;
}

/* 1 / sqrt(mean square + eps) of a row; Inf where float32 has no other. */
static double row_scale(const struct norm_view *view, int64_t row)
{
    double sum = 0;
    for (int64_t j = 0; j < view->hidden; j++) {
        double z = value_at(view, row * view->hidden + j);
        sum += z * z;
    }
    double scale = 1 / sqrt(sum / (double)view->hidden + view->params->eps);
    return scale > (double)FLT_MAX ? INFINITY : scale;
}

/* rounding=hf and type: z * s is rounded to the type of x before the weight
 * product. */
static bool rounds_product(const struct norm_view *view)
{
    return view->params->rounding != RMSNORM_ROUND_ONCE &&
           view->x->dtype != ROPED_F32;
}

/* rounding=type: and the product too. */
static bool rounds_result(const struct norm_view *view)
{
    return view->params->rounding == RMSNORM_ROUND_TYPE &&
           view->x->dtype != ROPED_F32;
}

/* A tie of hf's first rounding, or of the second, may fall either way: the
 * result is one of those or between them. */
static void judge_rounded(struct reference_judge *judge,
                          const struct norm_view *view,
                          const struct roped_tensor *y, int64_t i, double v,
                          double gain, double lost)
{
    const enum roped_dtype dtype = view->x->dtype;
    double found = reference_value(y, i);
    /* by a step where it is subnormal */
    double off = isfinite(v) ? 1e-6 * fabs(v) + 0x1p-149 : 0;
    double a = reference_round(v - off, dtype) * gain;
    double b = reference_round(v + off, dtype) * gain;
    double low = fmin(a, b), high = fmax(a, b);
    low = reference_round_float(low - lost - 1e-6 * fabs(low), y->dtype);
    high = reference_round_float(high + lost + 1e-6 * fabs(high), y->dtype);
    bool is_between = found >= low && found <= high;
    judge_value(judge, found, is_between ? found : a, 0, "y", i);
}

static void judge_row(struct reference_judge *judge,
                      const struct norm_view *view,
                      const struct roped_tensor *y, int64_t row)
{
    double s = row_scale(view, row), largest = 0;
    int64_t first = row * view->hidden, own = row % view->heads * view->hidden;
    for (int64_t j = 0; j < view->hidden; j++) {
        double v = value_at(view, first + j) * s * gain_at(view, own + j);
        if (isfinite(v))
            largest = fmax(largest, fabs(v));
    }
    for (int64_t j = 0; j < view->hidden; j++) {
        double gain = gain_at(view, own + j);
        double v = value_at(view, first + j) * s;
        double lost = reference_lost(s, gain);
        if (rounds_product(view))
            judge_rounded(judge, view, y, first + j, v, gain, lost);
        else
            judge_float(judge, y, first + j, v * gain, largest + lost * 1e6,
                        "y");
    }
}

void reference_rmsnorm(const struct roped_call *call,
                       struct reference_judge *judge)
{
    const struct heads_norm_params *params = (const void *)call->params;
    struct norm_view view =
        view_of(&call->in[RMSNORM_X], &call->in[RMSNORM_WEIGHT], &params->norm);
    if (params->heads > 1 || params->norm.rounding == RMSNORM_ROUND_SCALE) {
        reference_heads_rmsnorm(call, judge);
        return;
    }
    for (int64_t row = 0; row < view.n_rows; row++)
        judge_row(judge, &view, &call->out[RMSNORM_Y], row);
}

/* One float32 sum, one rounding: no room for another result. */
static void judge_sum(struct reference_judge *judge,
                      const struct norm_view *view,
                      const struct roped_tensor *out, int64_t i)
{
    double z = sum_at(view, i);
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
        view_of_heads(call, ADD_RMSNORM_X, ADD_RMSNORM_WEIGHT);
    view.residual = &call->in[ADD_RMSNORM_RESIDUAL];
    view.addend = &call->in[ADD_RMSNORM_ADDEND];
    for (int64_t row = 0; row < view.n_rows; row++)
        judge_row(judge, &view, &call->out[ADD_RMSNORM_Y], row);
    for (int64_t i = 0; i < view.n_rows * view.hidden; i++)
        judge_sum(judge, &view, &call->out[ADD_RMSNORM_RESIDUAL_OUT], i);
}

/* ------------------------------------------------------------- layer norms */

struct moments {
    double mean, s; /* s: 1 / sqrt(variance + eps), as that of row_scale */
    bool is_flat;   /* all values are the mean */
};

static struct moments moments_of(const struct norm_view *view, int64_t row)
{
    int64_t first = row * view->hidden;
    double n = (double)view->hidden, sum = 0, squares = 0;
    for (int64_t j = 0; j < view->hidden; j++)
        sum += value_at(view, first + j);
    for (int64_t j = 0; j < view->hidden; j++) {
        double off = value_at(view, first + j) - sum / n;
        squares += off * off;
    }
    double s = 1 / sqrt(squares / n + view->params->eps);
    return (struct moments){sum / n, s > (double)FLT_MAX ? INFINITY : s,
                            squares == 0};
}

static double bias_at(const struct roped_tensor *bias, int64_t column)
{
    return roped_tensor_given(bias) ? reference_value(bias, column) : 0;
}

/* To the bit: nothing is left of a row of one value, but the bias. */
static void judge_flat_row(struct reference_judge *judge,
                           const struct norm_view *view,
                           const struct roped_tensor *bias,
                           const struct roped_tensor *y, int64_t row)
{
    const int64_t own = row % view->heads * view->hidden;
    for (int64_t j = 0; j < view->hidden; j++) {
        double gain = gain_at(view, own + j);
        double exact = reference_round_float(bias_at(bias, own + j), y->dtype);
        int64_t i = row * view->hidden + j;
        judge_value(judge, reference_value(y, i), isfinite(gain) ? exact : NAN,
                    0, "y", i);
    }
}

/* With rounding=type the norm is rounded to the type of x, and so is its
 * product with the weight. Either may be a tie, which falls either way; where
 * the product is then beyond the type or within it, Inf is right as well. The
 * mean is off by 1e-6 of the largest distance from it, which a weight
 * multiplies. */
static void judge_layer_row(struct reference_judge *judge,
                            const struct norm_view *view,
                            const struct roped_tensor *bias,
                            const struct roped_tensor *y, int64_t row)
{
    struct moments of = moments_of(view, row);
    const int64_t first = row * view->hidden,
                  own = row % view->heads * view->hidden;
    double largest = 0, farthest = 0;
    if (of.is_flat && view->params->eps > 0) {
        judge_flat_row(judge, view, bias, y, row);
        return;
    }
    for (int64_t j = 0; j < view->hidden; j++) {
        double v = (value_at(view, first + j) - of.mean) * of.s;
        double product = v * gain_at(view, own + j);
        if (isfinite(v))
            farthest = fmax(farthest, fabs(v));
        if (isfinite(product))
            largest = fmax(largest, fabs(product));
        largest = fmax(largest, fabs(bias_at(bias, own + j)));
    }
    for (int64_t j = 0; j < view->hidden; j++) {
        double gain = gain_at(view, own + j),
               slack = reference_lost(of.s, gain) +
                       reference_lost(of.s * gain, 0); /* of the mean */
        double off = value_at(view, first + j) - of.mean;
        double v = off * of.s, product = v * gain;
        if (rounds_product(view)) {
            slack += reference_unit(v, view->x->dtype) * fabs(gain);
            product = reference_round(v, view->x->dtype) * gain;
            slack += reference_unit(product, view->x->dtype);
            const double rounded = round_like_x(view, product);
            const bool may_be_less =
                isfinite(round_like_x(view, fmax(fabs(product) - slack, 0)));
            if (isinf(rounded) && may_be_less &&
                !isfinite(reference_value(y, first + j))) {
                judge->n_checked++;
                continue;
            }
            if (isfinite(rounded) || !may_be_less)
                product = rounded;
        }
        double near = isfinite(gain) ? farthest * fabs(gain) : 0;
        double scale = fmax(largest, near) + slack * 1e6;
        if (fabs(off) > (double)FLT_MAX) /* Inf in float32 */
            scale = fmax(scale, (double)FLT_MAX);
        judge_float(judge, y, first + j, product + bias_at(bias, own + j),
                    scale, "y");
    }
}

void reference_layer_norm(const struct roped_call *call,
                          struct reference_judge *judge)
{
    struct norm_view view =
        view_of_heads(call, LAYER_NORM_X, LAYER_NORM_WEIGHT);
    for (int64_t row = 0; row < view.n_rows; row++)
        judge_layer_row(judge, &view, &call->in[LAYER_NORM_BIAS],
                        &call->out[LAYER_NORM_Y], row);
}

void reference_add_layer_norm(const struct roped_call *call,
                              struct reference_judge *judge)
{
    struct norm_view view =
        view_of_heads(call, ADD_LAYER_NORM_X, ADD_LAYER_NORM_WEIGHT);
    view.residual = &call->in[ADD_LAYER_NORM_RESIDUAL];
    view.addend = &call->in[ADD_LAYER_NORM_ADDEND];
    for (int64_t row = 0; row < view.n_rows; row++)
        judge_layer_row(judge, &view, &call->in[ADD_LAYER_NORM_BIAS],
                        &call->out[ADD_LAYER_NORM_Y], row);
    for (int64_t i = 0; i < view.n_rows * view.hidden; i++)
        judge_sum(judge, &view, &call->out[ADD_LAYER_NORM_RESIDUAL_OUT], i);
}

/* ---------------------------------------------------------------- quantize */

/* The two values that y of a column may have: they differ where a rounding of
 * hf or type is a tie for float32. */
struct candidates {
    double low, high;
};

static struct candidates candidates_at(const struct norm_view *view,
                                       int64_t row, int64_t column, double s)
{
    double gain = gain_at(view, column);
    double z = value_at(view, row * view->hidden + column) * s;
    if (!rounds_product(view))
        return (struct candidates){z * gain, z * gain};
    struct candidates y = {
        reference_round(z * (1 - 1e-6), view->x->dtype) * gain,
        reference_round(z * (1 + 1e-6), view->x->dtype) * gain};
    if (rounds_result(view)) {
        /* the gain is float32: so is its product */
        y.low = round_like_x(view, y.low * (1 - 1e-7));
        y.high = round_like_x(view, y.high * (1 + 1e-7));
    }
    return y;
}

/* The code of either candidate will do; lost is what float32 may have lost of
 * it. */
static void judge_code(struct reference_judge *judge,
                       const struct roped_tensor *y, int64_t i,
                       struct candidates exact, double scale, double lost)
{
    double found = reference_value(y, i);
    bool is_high = found == reference_round(exact.high / scale, y->dtype);
    judge_fp8(judge, y, i, (is_high ? exact.high : exact.low) / scale,
              1e6 * lost / scale, "y");
}

static double dynamic_scale(const struct rmsnorm_quantize_params *params,
                            double largest)
{
    const struct quantize_params *codes = &params->quantize;
    double m = codes->codes.format == CODES_E5M2 ? 57344 : 448;
    double bound = isnan(codes->scale_ub) ? FLT_MAX : codes->scale_ub;
    return fmax(fmin(largest, bound) / m, 1 / (512 * m));
}

/* What judging needs of a call, and the row in hand. */
struct quantize_view {
    struct norm_view norm;
    const struct rmsnorm_quantize_params *params;
    const struct roped_tensor *y, *scales;
    int64_t size; /* of a group */
    int64_t row;
    double s; /* 1 / sqrt(mean square + eps) of the row */
};

static bool has_columns(const struct quantize_view *view)
{
    const int layout = view->params->quantize.codes.scale_layout;
    return layout == SCALES_COLUMNS || layout == SCALES_COLUMNS_4;
}

/* Where a group's scale is: its row is a row or a column of the tensor. */
static int64_t scale_index(const struct quantize_view *view, int64_t group)
{
    const struct roped_tensor *scales = view->scales;
    if (has_columns(view))
        return group * scales->dims[1] + view->row;
    return view->row * (view->norm.hidden / view->size) + group;
}

/* Columns that belong to no row are zeros. */
static void judge_padding(struct reference_judge *judge,
                          const struct quantize_view *view)
{
    const struct roped_tensor *scales = view->scales;
    if (!roped_tensor_given(scales) || !has_columns(view))
        return;
    for (int64_t i = 0; i < scales->dims[0] * scales->dims[1]; i++)
        if (i % scales->dims[1] >= view->norm.n_rows)
            judge_value(judge, reference_value(scales, i), 0, 0, "padding", i);
}

/* Judges a group's scale and returns the one found, which its codes are held
 * to. */
static double judge_scale(struct reference_judge *judge,
                          const struct quantize_view *view, int64_t group)
{
    int64_t i = scale_index(view, group);
    double found = reference_value(view->scales, i), low = 0, high = 0;
    for (int64_t j = group * view->size; j < (group + 1) * view->size; j++) {
        struct candidates y = candidates_at(&view->norm, view->row, j, view->s);
        low = fmax(low, fmin(fabs(y.low), fabs(y.high))); /* fmax: no NaN */
        high = fmax(high, fmax(fabs(y.low), fabs(y.high)));
    }
    low = dynamic_scale(view->params, low);
    high = dynamic_scale(view->params, high);
    judge_value(judge, found, (low + high) / 2, (high - low) / 2 + 1e-6 * high,
                "scales", i);
    return found;
}

static void judge_group(struct reference_judge *judge,
                        const struct quantize_view *view, int64_t group)
{
    const struct quantize_params *codes = &view->params->quantize;
    double scale = (double)(float)codes->codes.dequant_scale;
    if (codes->dynamic)
        scale = judge_scale(judge, view, group);
    for (int64_t j = group * view->size; j < (group + 1) * view->size; j++)
        judge_code(judge, view->y, view->row * view->norm.hidden + j,
                   candidates_at(&view->norm, view->row, j, view->s), scale,
                   reference_lost(view->s, gain_at(&view->norm, j)));
}

static void judge_fp8_rows(struct reference_judge *judge,
                           struct quantize_view *view)
{
    int64_t group_size = view->params->quantize.codes.group_size;
    view->size = group_size ? group_size : view->norm.hidden;
    for (view->row = 0; view->row < view->norm.n_rows; view->row++) {
        view->s = row_scale(&view->norm, view->row);
        for (int64_t i = 0; i < view->norm.hidden / view->size; i++)
            judge_group(judge, view, i);
    }
    judge_padding(judge, view);
}

/* The same as any other codes: a source for reference_codes.h. */
struct coded_norm {
    struct reference_coded of; /* first: bounds know the others by it */
    const struct norm_view *norm;
    struct quantize_params params; /* with the granularity of group_size */
    double *s;                     /* per row */
};

/* x, that far off; Inf beyond what float32 holds. */
static double off_by(double x, double off)
{
    if (fabs(x) >= 0x1.ffffffp127)
        return copysign(INFINITY, x);
    return isnan(x) ? x : x + off;
}

static void bounds_of_norm(const struct reference_coded *of, int64_t i,
                           double bounds[2])
{
    const struct coded_norm *coded = (const void *)of;
    const struct norm_view *view = coded->norm;
    const int64_t row = i / view->hidden, column = i % view->hidden;
    const double s = coded->s[row];
    const struct candidates y = candidates_at(view, row, column, s);
    const double off = rounds_result(view)    ? 0
                       : rounds_product(view) ? 1e-7
                                              : 1e-6;
    const double lost =
        rounds_result(view) ? 0 : reference_lost(s, gain_at(view, column));
    const double low = fmin(y.low, y.high), high = fmax(y.low, y.high);
    bounds[0] = off_by(low, -off * fabs(low) - lost);
    bounds[1] = off_by(high, off * fabs(high) + lost);
    if (isnan(y.low) || isnan(y.high))
        bounds[0] = bounds[1] = NAN;
}

static void judge_codes(struct reference_judge *judge,
                        const struct roped_call *call, int global_scale,
                        const struct quantize_view *view)
{
    struct coded_norm coded = {
        .of = {.call = call,
               .params = &coded.params,
               .y = view->y,
               .scales = view->scales,
               .n_rows = view->norm.n_rows,
               .width = view->norm.hidden,
               .global_scale = reference_global_scale(
                   call, global_scale, &view->params->quantize.codes),
               .bounds = bounds_of_norm},
        .norm = &view->norm,
        .params = view->params->quantize,
        .s = malloc(((size_t)view->norm.n_rows + 1) * sizeof *coded.s)};
    struct code_params *codes = &coded.params.codes;
    codes->granularity = codes->group_size ? CODES_GROUP : CODES_ROW;
    if (!coded.params.dynamic)
        codes->scale_layout = SCALES_ROWS; /* of which there are none */
    for (int64_t row = 0; row < view->norm.n_rows; row++)
        coded.s[row] = row_scale(&view->norm, row);
    reference_codes(&coded.of, judge);
    free(coded.s);
}

static void judge_quantized(struct reference_judge *judge,
                            const struct roped_call *call, int global_scale,
                            struct quantize_view *view)
{
    const struct quantize_params *params = &view->params->quantize;
    if (params->codes.format <= CODES_E5M2 &&
        params->scale_rounding == SCALE_ROUND_NONE)
        judge_fp8_rows(judge, view);
    else
        judge_codes(judge, call, global_scale, view);
}

void reference_rmsnorm_quantize(const struct roped_call *call,
                                struct reference_judge *judge)
{
    const struct rmsnorm_quantize_params *params = (const void *)call->params;
    struct quantize_view view = {
        .norm = view_of(&call->in[RMSNORM_QUANTIZE_X],
                        &call->in[RMSNORM_QUANTIZE_WEIGHT], &params->norm),
        .params = params,
        .y = &call->out[RMSNORM_QUANTIZE_Y],
        .scales = &call->out[RMSNORM_QUANTIZE_SCALES]};
    judge_quantized(judge, call, RMSNORM_QUANTIZE_GLOBAL_SCALE, &view);
}

void reference_add_rmsnorm_quantize(const struct roped_call *call,
                                    struct reference_judge *judge)
{
    const struct rmsnorm_quantize_params *params = (const void *)call->params;
    struct quantize_view view = {
        .norm = view_of(&call->in[ADD_RMSNORM_QUANTIZE_X],
                        &call->in[ADD_RMSNORM_QUANTIZE_WEIGHT], &params->norm),
        .params = params,
        .y = &call->out[ADD_RMSNORM_QUANTIZE_Y],
        .scales = &call->out[ADD_RMSNORM_QUANTIZE_SCALES]};
    view.norm.residual = &call->in[ADD_RMSNORM_QUANTIZE_RESIDUAL];
    view.norm.addend = &call->in[ADD_RMSNORM_QUANTIZE_ADDEND];
    judge_quantized(judge, call, ADD_RMSNORM_QUANTIZE_GLOBAL_SCALE, &view);
    for (int64_t i = 0; i < view.norm.n_rows * view.norm.hidden; i++)
        judge_sum(judge, &view.norm,
                  &call->out[ADD_RMSNORM_QUANTIZE_RESIDUAL_OUT], i);
}
