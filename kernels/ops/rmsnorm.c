/*
 * rmsnorm.c - the descriptor of rmsnorm.
 */
#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rmsnorm_plan *plan = (void *)call->plan;
    (void)err;
    *plan = norm_plan((const void *)call->params, &call->in[RMSNORM_X],
                      &call->in[RMSNORM_WEIGHT]);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_rmsnorm = {
    .name = "rmsnorm",
    .since = "0.1",
    .summary = "y = x / sqrt(mean(x^2) + eps) * (weight_bias + weight), row by row",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [RMSNORM_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows to normalise"},
        [RMSNORM_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [RMSNORM_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .in_place = "x", .doc = "the rows, normalised"},
    },
    .params_bytes = sizeof(struct rmsnorm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {NORM_PARAMS(0)},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_plan),
};
/* clang-format on */
