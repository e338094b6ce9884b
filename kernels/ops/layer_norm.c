/*
 * layer_norm.c - the descriptor of layer_norm.
 */
#include "ops/layer_norm.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    (void)err;
    norm_heads_plan(call, LAYER_NORM_X, LAYER_NORM_WEIGHT);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_layer_norm = {
    .name = "layer_norm",
    .since = "0.1",
    .summary = "y = (x - mean) / sqrt(variance + eps) * (weight_bias + weight) + bias, row by row, or head by head",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [LAYER_NORM_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows to normalise"},
        [LAYER_NORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [LAYER_NORM_BIAS] = {"bias", "W", "h", ROPED_OPTIONAL, .doc = "added per column at the end; absent: 0"},
    },
    .out = {
        [LAYER_NORM_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .in_place = "x", .doc = "the rows, normalised"},
    },
    .params_bytes = sizeof(struct heads_norm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {LAYER_NORM_PARAMS, NORM_HEADS_PARAM},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = norm_heads_rule,
    .rule_doc = norm_heads_rule_doc,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_norm_plan),
};
/* clang-format on */
