/*
 * add_rmsnorm_quantize.c - the descriptor of add_rmsnorm_quantize: the residual
 * sum of a transformer block, the norm after it and codes, in one pass.
 */
#include "ops/add_rmsnorm_quantize.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    return norm_quantize_plan(call, ADD_RMSNORM_QUANTIZE_X,
                              ADD_RMSNORM_QUANTIZE_WEIGHT,
                              ADD_RMSNORM_QUANTIZE_GLOBAL_SCALE, err);
}

/* clang-format off */
const struct roped_op roped_op_add_rmsnorm_quantize = {
    .name = "add_rmsnorm_quantize",
    .since = "0.1",
    .summary = "residual = x + residual; y = rmsnorm of that sum, before it is rounded or after, divided by a scale and rounded to FP8, int8, MXFP8, MXFP4 or NVFP4",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE, NORM_RESIDUAL_TYPE, QUANTIZE_TYPES},
    .given = {NORM_QUANTIZE_GIVEN(ADD_RMSNORM_QUANTIZE_GLOBAL_SCALE), NORM_ADDEND_GIVEN(ADD_RMSNORM_QUANTIZE_ADDEND)},
    .in = {
        [ADD_RMSNORM_QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "what the block adds"},
        [ADD_RMSNORM_QUANTIZE_RESIDUAL] = {"residual", "R", "...rows h", ROPED_STRIDED, .doc = "what it is added to"},
        [ADD_RMSNORM_QUANTIZE_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [ADD_RMSNORM_QUANTIZE_ADDEND] = NORM_ADDEND,
        [ADD_RMSNORM_QUANTIZE_GLOBAL_SCALE] = SCALE_INPUT("global_scale"),
    },
    .out = {
        [ADD_RMSNORM_QUANTIZE_Y] = QUANTIZE_Y_PORT("the sums, normalised,"),
        [ADD_RMSNORM_QUANTIZE_RESIDUAL_OUT] = {"residual", "R", "...rows h", ROPED_STRIDED, .in_place = "residual", .doc = "the sums, in the type of the residual that was given"},
        [ADD_RMSNORM_QUANTIZE_SCALES] = QUANTIZE_SCALES_PORT_OF(NORM_QUANTIZE_SCALES),
    },
    .params_bytes = sizeof(struct rmsnorm_quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {NORM_QUANTIZE_PARAMS, NORM_SUM_PARAM(NORM_QUANTIZE_AT(norm))},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = norm_quantize_rule,
    .rule_doc = norm_quantize_rule_doc,
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_quantize_plan),
};
/* clang-format on */
