/*
 * rmsnorm_quantize.c - the descriptor of rmsnorm_quantize.
 */
#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    return norm_quantize_plan(call, RMSNORM_QUANTIZE_X, RMSNORM_QUANTIZE_WEIGHT,
                              RMSNORM_QUANTIZE_GLOBAL_SCALE, err);
}

/* clang-format off */
const struct roped_op roped_op_rmsnorm_quantize = {
    .name = "rmsnorm_quantize",
    .since = "0.1",
    .summary = "rmsnorm, divided by a given or a dynamic scale and rounded to FP8, int8, MXFP8, MXFP4 or NVFP4",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE, QUANTIZE_TYPES},
    .given = {NORM_QUANTIZE_GIVEN(RMSNORM_QUANTIZE_GLOBAL_SCALE)},
    .in = {
        [RMSNORM_QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows to normalise"},
        [RMSNORM_QUANTIZE_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [RMSNORM_QUANTIZE_GLOBAL_SCALE] = SCALE_INPUT("global_scale"),
    },
    .out = {
        [RMSNORM_QUANTIZE_Y] = QUANTIZE_Y_PORT("the rows, normalised,"),
        [RMSNORM_QUANTIZE_SCALES] = QUANTIZE_SCALES_PORT_OF(NORM_QUANTIZE_SCALES),
    },
    .params_bytes = sizeof(struct rmsnorm_quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {NORM_QUANTIZE_PARAMS},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = norm_quantize_rule,
    .rule_doc = norm_quantize_rule_doc,
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_quantize_plan),
};
/* clang-format on */
