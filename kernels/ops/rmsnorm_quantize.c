/*
 * rmsnorm_quantize.c - the descriptor of rmsnorm_quantize.
 */
#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    (void)err;
    norm_quantize_plan(call, RMSNORM_QUANTIZE_X, RMSNORM_QUANTIZE_WEIGHT);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_rmsnorm_quantize = {
    .name = "rmsnorm_quantize",
    .since = "0.1",
    .summary = "rmsnorm, divided by a given or a dynamic scale and rounded to FP8",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE, {"Q", ROPED_FP8S}, {"S", ROPED_SET(ROPED_F32)}},
    .form = {NORM_QUANTIZE_FORMS},
    .given = {NORM_QUANTIZE_GIVEN},
    .in = {
        [RMSNORM_QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows to normalise"},
        [RMSNORM_QUANTIZE_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [RMSNORM_QUANTIZE_Y] = {"y", "Q", "...rows h", ROPED_STRIDED, .doc = "FP8 of the rows, normalised and divided by their scale"},
        [RMSNORM_QUANTIZE_SCALES] = {"scales", "S", NORM_QUANTIZE_SCALES, .requires_ = "dynamic", .doc = "dynamic scale of each row, or of each group of it"},
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
