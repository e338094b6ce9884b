/*
 * norm.c - what the rules and plans of the norm operators do alike.
 */
#include "ops/norm.h"

float norm_weight_bias(const struct rmsnorm_params *params,
                       const struct roped_tensor *weight)
{
    return roped_tensor_given(weight) ? (float)params->weight_bias : 0;
}

struct rmsnorm_plan norm_plan(const struct rmsnorm_params *params,
                              const struct roped_tensor *x,
                              const struct roped_tensor *weight)
{
    int64_t hidden = x->dims[x->rank - 1];
    return (struct rmsnorm_plan){
        .n_rows = roped_tensor_elements(x) / hidden,
        .hidden = hidden,
        .eps = (float)params->eps,
        .weight_bias = norm_weight_bias(params, weight),
        .rounding = params->rounding,
        .weight_dtype = (int32_t)weight->dtype,
        .rounds_sum =
            params->sum_rounding == RMSNORM_SUM_TYPE && x->dtype != ROPED_F32,
        .sum_order = params->sum_order,
        .x_scale = (float)params->x_scale,
        .residual_scale = (float)params->residual_scale,
        .addend_scale = (float)params->addend_scale,
        .sum_scale = (float)params->sum_scale,
        .has_scales = params->x_scale != 1 || params->residual_scale != 1 ||
                      params->addend_scale != 1 || params->sum_scale != 1,
    };
}

void norm_heads_plan(struct roped_call *call, int x, int weight)
{
    const struct heads_norm_params *params = (const void *)call->params;
    struct heads_norm_plan *plan = (void *)call->plan;
    *plan = (struct heads_norm_plan){
        .norm = norm_plan(&params->norm, &call->in[x], &call->in[weight]),
        .heads = params->heads};
    plan->norm.n_rows *= plan->heads;
    plan->norm.hidden /= plan->heads;
}

enum roped_status norm_heads_rule(struct roped_call *call,
                                  struct roped_error *err)
{
    const struct heads_norm_params *params = (const void *)call->params;
    int64_t width = call->in[0].dims[call->in[0].rank - 1];
    if (width % params->heads == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'heads': %lld, expected a divisor of h = "
                      "%lld (set by 'x')",
                      (long long)params->heads, (long long)width);
}

const char norm_heads_rule_doc[] = "heads divides h";

/* ------------------------------------------------------------------ codes */

static const struct rmsnorm_quantize_params *
params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

enum roped_status norm_quantize_rule(struct roped_call *call,
                                     struct roped_error *err)
{
    int64_t size = params_of(call)->quantize.codes.group_size;
    if (size == 0 || size == 16 || size == 32 || size == 64 || size == 128)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'group_size': %lld, expected 16, 32, 64, 128 "
                      "or 0 for whole rows",
                      (long long)size);
}

const char norm_quantize_rule_doc[] = "group_size divides h";

/* Norms say what shares a scale by group_size alone. */
static struct quantize_plan codes_plan(const struct rmsnorm_quantize_params *of,
                                       const struct rmsnorm_plan *norm)
{
    struct quantize_params params = of->quantize;
    params.codes.granularity =
        params.codes.group_size ? CODES_GROUP : CODES_ROW;
    return quantize_plan_of(&params, norm->n_rows, norm->hidden);
}

enum roped_status norm_quantize_plan(struct roped_call *call, int x, int weight,
                                     int global_scale, struct roped_error *err)
{
    struct rmsnorm_quantize_plan *plan = (void *)call->plan;
    const struct rmsnorm_quantize_params *params = params_of(call);
    const struct quantize_params *codes = &params->quantize;
    *plan = (struct rmsnorm_quantize_plan){
        .norm = norm_plan(&params->norm, &call->in[x], &call->in[weight]),
        .is_fp8 = (codes->codes.format == CODES_E4M3 ||
                   codes->codes.format == CODES_E5M2) &&
                  codes->scale_rounding == SCALE_ROUND_NONE};
    plan->quantize = codes_plan(params, &plan->norm);
    return scale_plan(call, global_scale, codes->codes.global_scale,
                      &plan->quantize.rule.global_scale, err);
}
