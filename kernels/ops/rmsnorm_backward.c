/*
 * rmsnorm_backward.c - the descriptor of rmsnorm_backward.
 */
#include "ops/rmsnorm_backward.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rmsnorm_plan *plan = (void *)call->plan;
    (void)err;
    *plan = norm_plan((const void *)call->params, &call->in[RMSNORM_BACKWARD_X],
                      &call->in[RMSNORM_BACKWARD_WEIGHT]);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_rmsnorm_backward = {
    .name = "rmsnorm_backward",
    .since = "0.1",
    .summary = "gradients of rmsnorm, and of add_rmsnorm from the residual that it returned",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [RMSNORM_BACKWARD_GRAD_Y] = {"grad_y", "T", "...rows h", ROPED_STRIDED, .doc = "gradient of the normalised rows"},
        [RMSNORM_BACKWARD_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "the rows that were normalised; of add_rmsnorm the residual that it returned"},
        [RMSNORM_BACKWARD_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [RMSNORM_BACKWARD_GRAD_RESIDUAL] = {"grad_residual", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "gradient of the residual that add_rmsnorm returned, added to grad_x"},
    },
    .out = {
        [RMSNORM_BACKWARD_GRAD_X] = {"grad_x", "T", "...rows h", ROPED_STRIDED, .doc = "gradient of x, and of the residual that was added to it"},
        [RMSNORM_BACKWARD_GRAD_WEIGHT] = {"grad_weight", "W", "h", .requires_ = "weight", .doc = "gradient of the weight, summed over the rows"},
    },
    .params_bytes = sizeof(struct rmsnorm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {NORM_PARAMS_ROUNDED(0, "once|hf", "as the forward pass had it; once: at the end; hf: grad_y * weight too, and what grad_weight has of x, as PyTorch's autograd of Llama's norm, and Liger")},
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_plan),
};
/* clang-format on */
