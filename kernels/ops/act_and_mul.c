/*
 * act_and_mul.c - the descriptor of act_and_mul.
 */
#include "ops/activation.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    const int64_t width = y->dims[y->rank - 1];
    struct act_and_mul_plan *plan = (void *)call->plan;
    (void)err;
    *plan = act_plan_of((const void *)call->params, y->dtype,
                        roped_tensor_elements(y) / width, width);
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_act_and_mul = {
    .name = "act_and_mul",
    .since = "0.1",
    .summary = "y = act(gate) * up, the middle of a gated MLP; or y = act(x)",
    .type = {{"T", ROPED_FLOATS}},
    .given = {
        ACT_GIVEN(ROPED_INPUT(ACT_AND_MUL_X), ROPED_INPUT(ACT_AND_MUL_GATE), ROPED_INPUT(ACT_AND_MUL_UP)),
        {.when = "activation=xielu", .with_param = "activation", .needs = "gated=false"},
        {.with_param = "alpha_p", .needs = "activation=xielu"},
        {.with_param = "alpha_n", .needs = "activation=xielu"},
        {.with_param = "slope", .needs = "activation=xielu"},
        {.with_param = "eps", .needs = "activation=xielu"},
    },
    .in = {ACT_PORTS(ACT_AND_MUL_X, ACT_AND_MUL_GATE, ACT_AND_MUL_UP)},
    .out = {
        [ACT_AND_MUL_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .doc = "act(gate) * up"},
    },
    .params_bytes = sizeof(struct act_and_mul_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        ACT_PARAMS(0, ACT_CHOICES "|gelu_fast|xielu", ACT_FAST_DOC "; xielu: Apertus's, x > 0: alpha_p * x^2 + slope * x, else alpha_n * (e^min(x, eps) - 1 - x) + slope * x", "once|type|steps", "once: at the end, as FlashInfer; type: act(gate) also before the product, as vLLM and Hugging Face; steps: each step of gelu_tanh, quick_gelu, swiglu_oai, gelu_fast and xielu too, as Hugging Face's gelu_new, quick_gelu, gpt-oss, gelu_fast and XIELUActivation"),
        {"alpha_p", ROPED_PARAM_FLOAT, ACT_AT(0, alpha_p), 0, 0.8, 0, 1e6, .doc = "xielu: softplus of the module's alpha_p"},
        {"alpha_n", ROPED_PARAM_FLOAT, ACT_AT(0, alpha_n), 0, 0.8, 0, 1e6, .doc = "xielu: the module's beta + softplus of its alpha_n"},
        {"slope", ROPED_PARAM_FLOAT, ACT_AT(0, slope), 0, 0.5, 0, 1e6, .doc = "xielu: the module's beta, what x is multiplied by on both sides"},
        {"eps", ROPED_PARAM_FLOAT, ACT_AT(0, eps), 0, -1e-6, -FLT_MAX, 0, .doc = "xielu: the exponential is of x, but at most of eps"},
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct act_and_mul_plan),
};
/* clang-format on */
