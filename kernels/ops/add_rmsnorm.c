/*
 * add_rmsnorm.c - the descriptor of add_rmsnorm: the residual sum of a
 * transformer block and the norm after it, in one pass.
 */
#include "ops/add_rmsnorm.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    (void)err;
    norm_heads_plan(call, ADD_RMSNORM_X, ADD_RMSNORM_WEIGHT);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_add_rmsnorm = {
    .name = "add_rmsnorm",
    .since = "0.1",
    .summary = "residual = x + residual; y = rmsnorm of that sum, before it is rounded or after, row by row, or head by head",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE, NORM_RESIDUAL_TYPE},
    .given = {NORM_ADDEND_GIVEN(ADD_RMSNORM_ADDEND)},
    .in = {
        [ADD_RMSNORM_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "what the block adds"},
        [ADD_RMSNORM_RESIDUAL] = {"residual", "R", "...rows h", ROPED_STRIDED, .doc = "what it is added to"},
        [ADD_RMSNORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [ADD_RMSNORM_ADDEND] = NORM_ADDEND,
    },
    .out = {
        [ADD_RMSNORM_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .in_place = "x", .doc = "the sums, normalised"},
        [ADD_RMSNORM_RESIDUAL_OUT] = {"residual", "R", "...rows h", ROPED_STRIDED, .in_place = "residual", .doc = "the sums, in the type of the residual that was given"},
    },
    .params_bytes = sizeof(struct heads_norm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {NORM_PARAMS(0), NORM_SUM_PARAM(0), NORM_HEADS_PARAM},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = norm_heads_rule,
    .rule_doc = norm_heads_rule_doc,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_norm_plan),
};
/* clang-format on */
