/*
 * rmsnorm_quantize.c - the descriptor of rmsnorm_quantize.
 */
#include "ops/rmsnorm_quantize.h"

#include "ops/norm.h"

#include <roped/numeric.h>

#include <math.h>

static const struct rmsnorm_quantize_params *
params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

/* Either a scale is given, or everything about a dynamic one may be. */
static enum roped_status check_scales(const struct roped_call *call,
                                      struct roped_error *err)
{
    static const char *const dynamic_only[] = {"scale_ub", "group_size"};
    int64_t group_size = params_of(call)->group_size;
    if (params_of(call)->dynamic && roped_call_gave(call, "dequant_scale"))
        return roped_fail(err, ROPED_INVALID,
                          "parameters 'dequant_scale' and 'dynamic' are both "
                          "given, expected one source of scales");
    for (int i = 0; i < 2 && !params_of(call)->dynamic; i++)
        if (roped_call_gave(call, dynamic_only[i]))
            return roped_fail(err, ROPED_INVALID,
                              "parameter '%s' is given, but the scale is not "
                              "dynamic",
                              dynamic_only[i]);
    if (group_size != 0 && group_size != 64 && group_size != 128)
        return roped_fail(err, ROPED_INVALID,
                          "parameter 'group_size': %lld, expected 64, 128 or "
                          "0 for whole rows",
                          (long long)group_size);
    return ROPED_OK;
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    enum roped_status status = norm_rule(
        &call->in[RMSNORM_QUANTIZE_X], &call->in[RMSNORM_QUANTIZE_WEIGHT], err);
    return status ? status : check_scales(call, err);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rmsnorm_quantize_plan *plan = (void *)call->plan;
    const struct rmsnorm_quantize_params *params = params_of(call);
    bool is_e5m2 = params->output_dtype == ROPED_F8_E5M2;
    (void)err;
    plan->norm = norm_plan(&params->norm, &call->in[RMSNORM_QUANTIZE_X],
                           &call->in[RMSNORM_QUANTIZE_WEIGHT]);
    plan->group_size = 0;
    if (params->dynamic)
        plan->group_size =
            params->group_size ? params->group_size : plan->norm.hidden;
    plan->dequant_scale = (float)params->dequant_scale;
    plan->scale_ub =
        isnan(params->scale_ub) ? FLT_MAX : (float)params->scale_ub;
    plan->largest = is_e5m2 ? ROPED_E5M2_MAX : ROPED_E4M3_MAX;
    plan->smallest_scale = 1 / (512 * plan->largest);
    return ROPED_OK;
}

#define AT(member) offsetof(struct rmsnorm_quantize_params, member)

/* clang-format off */
const struct roped_op roped_op_rmsnorm_quantize = {
    .name = "rmsnorm_quantize",
    .since = "0.1",
    .summary = "rmsnorm, divided by a given or a dynamic scale and rounded to FP8",
    .type = {{"T", ROPED_FLOATS}, {"W", ROPED_FLOATS}, {"Q", ROPED_FP8S}, {"S", ROPED_SET(ROPED_F32)}},
    .in = {
        [RMSNORM_QUANTIZE_X] = {"x", "T", "...rows h", .doc = "rows to normalise"},
        [RMSNORM_QUANTIZE_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [RMSNORM_QUANTIZE_Y] = {"y", "Q", "...rows h", .doc = "FP8 of the rows, normalised and divided by their scale"},
        [RMSNORM_QUANTIZE_SCALES] = {"scales", "S", "rows h/group_size", .requires_ = "dynamic", .doc = "dynamic scale of each row, or of each group of it"},
    },
    .params_bytes = sizeof(struct rmsnorm_quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"output_dtype", ROPED_PARAM_DTYPE, AT(output_dtype), .choices = "e4m3|e5m2", .type = "Q", .doc = "FP8 format of y"},
        {"dequant_scale", ROPED_PARAM_FLOAT, AT(dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "values are divided by it before rounding"},
        {"dynamic", ROPED_PARAM_BOOL, AT(dynamic), .doc = "a scale from the largest value of each row, instead of dequant_scale"},
        {"scale_ub", ROPED_PARAM_FLOAT, AT(scale_ub), ROPED_NO_DEFAULT, 0, FLT_TRUE_MIN, FLT_MAX, .doc = "dynamic: values above it do not enlarge the scale"},
        {"group_size", ROPED_PARAM_INT, AT(group_size), 0, 0, 0, 128, .doc = "dynamic: a scale per group of 64 or 128 columns; 0: per row"},
        NORM_PARAMS(AT(norm)),
    },
    .rows = "rows",
    .rule = rule,
    .rule_doc = "weight has the type of x, or F32 beside narrow x, or F16 or BF16 beside x of F32; dequant_scale or dynamic, not both; scale_ub and group_size belong to dynamic, and group_size divides h",
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_quantize_plan),
};
/* clang-format on */
