/*
 * rmsnorm_add.c - the descriptor of rmsnorm_add: the residual sum of a
 * transformer block whose norm stands behind what it adds. The sum is called
 * residual, as that of add_rmsnorm: it is what the next block's calls take.
 */
#include "ops/rmsnorm_add.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct rmsnorm_plan norm =
        norm_plan((const void *)call->params, &call->in[RMSNORM_ADD_X],
                  &call->in[RMSNORM_ADD_WEIGHT]);
    struct norm_pair_plan *plan = (void *)call->plan;
    (void)err;
    *plan = (struct norm_pair_plan){.norm = norm,
                                    .n_groups = 1,
                                    .pair = NORM_THEN_ADD,
                                    .rounds_norm = norm.rounds_sum};
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_rmsnorm_add = {
    .name = "rmsnorm_add",
    .since = "0.1",
    .summary = "residual = residual + rmsnorm(x): the sum of a block whose norm stands behind what it adds",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [RMSNORM_ADD_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "what the block adds, before it is normalised"},
        [RMSNORM_ADD_RESIDUAL] = {"residual", "T", "...rows h", ROPED_STRIDED, .doc = "what its norm is added to"},
        [RMSNORM_ADD_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
    },
    .out = {
        [RMSNORM_ADD_RESIDUAL_OUT] = {"residual", "T", "...rows h", ROPED_STRIDED, .in_place = "residual", .doc = "residual + rmsnorm(x)"},
    },
    .params_bytes = sizeof(struct rmsnorm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        NORM_PARAMS(0),
        {"sum_rounding", ROPED_PARAM_CHOICE, NORM_AT(0, sum_rounding), 0, RMSNORM_SUM_TYPE, .choices = "once|type", .doc = "type: the norm is rounded to the type of x before it is added, as the models' own classes and vLLM; once: the float32 sum is rounded"},
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct norm_pair_plan),
};
/* clang-format on */
