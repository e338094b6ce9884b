/*
 * act_and_mul_backward.c - the descriptor of act_and_mul_backward.
 */
#include "ops/act_and_mul_backward.h"

#include "ops/activation.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct roped_tensor *grad_y = &call->in[ACT_BACKWARD_GRAD_Y];
    const int64_t width = grad_y->dims[grad_y->rank - 1];
    struct act_and_mul_plan *plan = (void *)call->plan;
    (void)err;
    *plan = act_plan_of((const void *)call->params, grad_y->dtype,
                        roped_tensor_elements(grad_y) / width, width);
    return ROPED_OK;
}

#define OF_X "[gated=true] ...rows 2h|...rows h"

/* clang-format off */
const struct roped_op roped_op_act_and_mul_backward = {
    .name = "act_and_mul_backward",
    .since = "0.1",
    .summary = "gradients of act(gate) * up, or of act(x)",
    .type = {{"T", ROPED_FLOATS}},
    .given = {ACT_GIVEN(ROPED_INPUT(ACT_BACKWARD_X), ROPED_INPUT(ACT_BACKWARD_GATE), ROPED_INPUT(ACT_BACKWARD_UP))},
    .in = {
        [ACT_BACKWARD_GRAD_Y] = {"grad_y", "T", "...rows h", ROPED_STRIDED, .doc = "gradient of the result"},
        [ACT_BACKWARD_X] = {"x", "T", OF_X, ROPED_OPTIONAL | ROPED_STRIDED, .doc = "rows of gate and up; of the gate alone where gated is false"},
        [ACT_BACKWARD_GATE] = {"gate", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "what went through the activation, where x is not given"},
        [ACT_BACKWARD_UP] = {"up", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "what it was multiplied by"},
    },
    .out = {
        [ACT_BACKWARD_GRAD_X] = {"grad_x", "T", OF_X, ROPED_STRIDED, .requires_ = "x", .in_place = "x", .doc = "gradient of x, with gate and up where x has them"},
        [ACT_BACKWARD_GRAD_GATE] = {"grad_gate", "T", "...rows h", ROPED_STRIDED, .requires_ = "gate", .in_place = "gate", .doc = "gradient of gate, 0 from the limit on"},
        [ACT_BACKWARD_GRAD_UP] = {"grad_up", "T", "...rows h", ROPED_STRIDED, .requires_ = "up", .in_place = "up", .doc = "gradient of up, 0 from the limit on"},
    },
    .params_bytes = sizeof(struct act_and_mul_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {ACT_PARAMS(0, ACT_CHOICES "|gelu_fast", ACT_FAST_DOC, "once|type", "as the forward pass had it; once: at the end; type: grad_y * up and act(gate) also before their products, as PyTorch's autograd")},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct act_and_mul_plan),
};
/* clang-format on */
