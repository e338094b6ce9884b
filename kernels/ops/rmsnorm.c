/*
 * rmsnorm.c - the descriptor of rmsnorm.
 */
#include "ops/rmsnorm.h"

#include <float.h>

/* Weights of another type than x: wider beside narrow x, or the reverse. */
static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    const struct roped_tensor *weight = &call->in[RMSNORM_WEIGHT];
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

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rmsnorm_plan *plan = (void *)call->plan;
    const struct rmsnorm_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    (void)err;
    plan->hidden = x->dims[x->rank - 1];
    plan->n_rows = roped_tensor_elements(x) / plan->hidden;
    plan->eps = (float)params->eps;
    plan->weight_bias = (float)params->weight_bias;
    plan->rounding = params->rounding;
    plan->weight_dtype = (int32_t)call->in[RMSNORM_WEIGHT].dtype;
    return ROPED_OK;
}

#define AT(member) offsetof(struct rmsnorm_params, member)

/* clang-format off */
const struct roped_op roped_op_rmsnorm = {
    .name = "rmsnorm",
    .since = "0.1",
    .summary = "y = x / sqrt(mean(x^2) + eps) * (weight_bias + weight), row by row",
    .type = {{"T", ROPED_FLOATS}, {"W", ROPED_FLOATS}},
    .in = {
        [RMSNORM_X] = {"x", "T", "...rows h", .doc = "rows to normalise"},
        [RMSNORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [RMSNORM_Y] = {"y", "T", "...rows h", .in_place = "x", .doc = "the rows, normalised"},
    },
    .params_bytes = sizeof(struct rmsnorm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"eps", ROPED_PARAM_FLOAT, AT(eps), 0, 1e-6, 0, FLT_MAX, .doc = "added to the mean square"},
        {"weight_bias", ROPED_PARAM_FLOAT, AT(weight_bias), 0, 0, -FLT_MAX, FLT_MAX, .doc = "added to the weight; 1 is the Gemma form"},
        {"rounding", ROPED_PARAM_CHOICE, AT(rounding), .choices = "once|hf", .doc = "once: at the end; hf: also before the weight product, as Hugging Face Llama"},
    },
    .rule = rule,
    .rule_doc = "weight has the type of x, or F32 beside narrow x, or F16 or BF16 beside x of F32",
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_plan),
};
/* clang-format on */
