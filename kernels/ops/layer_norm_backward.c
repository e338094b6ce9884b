/*
 * layer_norm_backward.c - the descriptor of layer_norm_backward.
 */
#include "ops/layer_norm_backward.h"

#include "ops/norm.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rmsnorm_plan *plan = (void *)call->plan;
    (void)err;
    *plan =
        norm_plan((const void *)call->params, &call->in[LAYER_NORM_BACKWARD_X],
                  &call->in[LAYER_NORM_BACKWARD_WEIGHT]);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_layer_norm_backward = {
    .name = "layer_norm_backward",
    .since = "0.1",
    .summary = "gradients of layer_norm, and of add_layer_norm from the residual that it returned",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE},
    .in = {
        [LAYER_NORM_BACKWARD_GRAD_Y] = {"grad_y", "T", "...rows h", ROPED_STRIDED, .doc = "gradient of the normalised rows"},
        [LAYER_NORM_BACKWARD_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "the rows that were normalised; of add_layer_norm the residual that it returned"},
        [LAYER_NORM_BACKWARD_WEIGHT] = {"weight", "W", "h", ROPED_OPTIONAL, .doc = "gain per column; absent: 1"},
        [LAYER_NORM_BACKWARD_BIAS] = {"bias", "W", "h", ROPED_OPTIONAL, .doc = "what was added per column; only that it is there counts, not its values"},
        [LAYER_NORM_BACKWARD_GRAD_RESIDUAL] = {"grad_residual", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "gradient of the residual that add_layer_norm returned, added to grad_x"},
    },
    .out = {
        [LAYER_NORM_BACKWARD_GRAD_X] = {"grad_x", "T", "...rows h", ROPED_STRIDED, .doc = "gradient of x, and of the residual that was added to it"},
        [LAYER_NORM_BACKWARD_GRAD_WEIGHT] = {"grad_weight", "W", "h", .requires_ = "weight", .doc = "gradient of the weight, summed over the rows"},
        [LAYER_NORM_BACKWARD_GRAD_BIAS] = {"grad_bias", "W", "h", .requires_ = "bias", .doc = "gradient of the bias, summed over the rows"},
    },
    .params_bytes = sizeof(struct rmsnorm_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {LAYER_NORM_PARAMS_ROUNDED("as the forward pass had it; once: at the end; type: grad_y * weight too, and what grad_weight has of x, as PyTorch's autograd of DeBERTa's norm")},
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct rmsnorm_plan),
};
/* clang-format on */
