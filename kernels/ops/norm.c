/*
 * norm.c - what the rules and plans of the norm operators do alike.
 */
#include "ops/norm.h"

#include <roped/numeric.h>

#include <math.h>

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

/* -------------------------------------------------------------------- FP8 */

static const struct rmsnorm_quantize_params *
params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

enum roped_status norm_quantize_rule(struct roped_call *call,
                                     struct roped_error *err)
{
    int64_t size = params_of(call)->group_size;
    if (size == 0 || size == 16 || size == 32 || size == 64 || size == 128)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'group_size': %lld, expected 16, 32, 64, 128 "
                      "or 0 for whole rows",
                      (long long)size);
}

const char norm_quantize_rule_doc[] = "group_size divides h";

/* Where the scales are. */
static void plan_scales(struct rmsnorm_quantize_plan *plan,
                        const struct rmsnorm_quantize_params *params)
{
    int64_t n_rows = plan->norm.n_rows;
    plan->group_size =
        params->group_size ? params->group_size : plan->norm.hidden;
    plan->n_groups = plan->norm.hidden / plan->group_size;
    if (params->scale_layout < SCALES_COLUMNS) {
        plan->scale_row = plan->n_groups;
        plan->scale_group = 1;
        return;
    }
    if (params->scale_layout == SCALES_COLUMNS_4)
        plan->n_padding = (4 - n_rows % 4) % 4;
    plan->scale_row = 1;
    plan->scale_group = n_rows + plan->n_padding;
}

void norm_quantize_plan(struct roped_call *call, int x, int weight)
{
    struct rmsnorm_quantize_plan *plan = (void *)call->plan;
    const struct rmsnorm_quantize_params *params = params_of(call);
    bool is_e5m2 = params->output_dtype == ROPED_F8_E5M2;
    *plan = (struct rmsnorm_quantize_plan){
        .norm = norm_plan(&params->norm, &call->in[x], &call->in[weight]),
        .dequant_scale = (float)params->dequant_scale,
        .scale_ub = isnan(params->scale_ub) ? FLT_MAX : (float)params->scale_ub,
        .largest = is_e5m2 ? ROPED_E5M2_MAX : ROPED_E4M3_MAX,
    };
    plan->smallest_scale = 1 / (512 * plan->largest);
    if (params->dynamic)
        plan_scales(plan, params);
}
