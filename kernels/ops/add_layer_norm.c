/*
 * add_layer_norm.c - the descriptor of add_layer_norm: the residual sum of a
 * transformer block and the layer norm after it, in one pass.
 */
#include "ops/add_layer_norm.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    (void)err;
    norm_heads_plan(call, ADD_LAYER_NORM_X, ADD_LAYER_NORM_WEIGHT);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_add_layer_norm = {
    .name = "add_layer_norm",
    .since = "0.1",
    .summary = "residual = x + residual; y = layer_norm of that sum, before it is rounded or after, row by row, or head by head",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE, NORM_RESIDUAL_TYPE},
    .given = {NORM_ADDEND_GIVEN(ADD_LAYER_NORM_ADDEND)},
    .in = {
        [ADD_LAYER_NORM_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "what the block adds"},
        [ADD_LAYER_NORM_RESIDUAL] = {"residual", "R", "...rows h", ROPED_STRIDED, .doc = "what it is added to"},
        [ADD_LAYER_NORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [ADD_LAYER_NORM_BIAS] = {"bias", "W", "h", ROPED_OPTIONAL, .doc = "added per column at the end; absent: 0"},
        [ADD_LAYER_NORM_ADDEND] = NORM_ADDEND,
    },
    .out = {
        [ADD_LAYER_NORM_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .in_place = "x", .doc = "the sums, normalised"},
        [ADD_LAYER_NORM_RESIDUAL_OUT] = {"residual", "R", "...rows h", ROPED_STRIDED, .in_place = "residual", .doc = "the sums, in the type of the residual that was given"},
    },
    .params_bytes = sizeof(struct heads_norm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {LAYER_NORM_PARAMS, NORM_SUM_PARAM(0), NORM_HEADS_PARAM},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = norm_heads_rule,
    .rule_doc = norm_heads_rule_doc,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_norm_plan),
};
/* clang-format on */
