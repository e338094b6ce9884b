/*
 * norm.c - what the rules and plans of the norm operators do alike.
 */
#include "ops/norm.h"

enum roped_status norm_rule(const struct roped_tensor *x,
                            const struct roped_tensor *weight,
                            struct roped_error *err)
{
    if (x->dims[x->rank - 1] == 0)
        return roped_fail(err, ROPED_INVALID,
                          "tensor 'x': dim %d is 0, expected a hidden size "
                          "above 0",
                          x->rank - 1);
    if (!roped_tensor_given(weight) || weight->dtype == x->dtype ||
        weight->dtype == ROPED_F32 || x->dtype == ROPED_F32)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor 'weight': %s, expected %s or F32 beside x of %s",
                      roped_dtype_name(weight->dtype),
                      roped_dtype_name(x->dtype), roped_dtype_name(x->dtype));
}

const char norm_rule_doc[] = "weight has the type of x, or F32 beside narrow "
                             "x, or F16 or BF16 beside x of F32";

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
    };
}
