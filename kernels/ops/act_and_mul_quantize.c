/*
 * act_and_mul_quantize.c - the descriptor of act_and_mul_quantize.
 */
#include "ops/act_and_mul_quantize.h"

#include "ops/activation.h"

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct act_and_mul_quantize_params *params =
        (const void *)call->params;
    const bool has_x = roped_tensor_given(&call->in[ACT_AND_MUL_X]);
    const struct roped_tensor *from =
        &call->in[has_x ? ACT_AND_MUL_X : ACT_AND_MUL_GATE];
    const int64_t last = from->dims[from->rank - 1];
    const int64_t n_rows = roped_tensor_elements(from) / last;
    const int64_t width = has_x && params->act.gated ? last / 2 : last;
    struct act_and_mul_quantize_plan *plan = (void *)call->plan;
    *plan = (struct act_and_mul_quantize_plan){
        .quantize = quantize_plan_of(&params->quantize, n_rows, width),
        .act = act_plan_of(&params->act, from->dtype, n_rows, width),
        .rounds_result =
            params->act.rounding != ACT_ROUND_ONCE && from->dtype != ROPED_F32,
    };
    return scale_plan(call, ACT_AND_MUL_QUANTIZE_GLOBAL_SCALE,
                      params->quantize.codes.global_scale,
                      &plan->quantize.rule.global_scale, err);
}

/* clang-format off */
const struct roped_op roped_op_act_and_mul_quantize = {
    .name = "act_and_mul_quantize",
    .since = "0.1",
    .summary = "act(gate) * up, divided by a dynamic or a given scale and rounded to FP8, int8, MXFP8, MXFP4 or NVFP4",
    .type = {{"T", ROPED_FLOATS}, QUANTIZE_TYPES},
    .given = {
        ACT_GIVEN(ROPED_INPUT(ACT_AND_MUL_X), ROPED_INPUT(ACT_AND_MUL_GATE), ROPED_INPUT(ACT_AND_MUL_UP)),
        QUANTIZE_GIVEN(ACT_AND_MUL_QUANTIZE_GLOBAL_SCALE),
    },
    .in = {
        ACT_PORTS(ACT_AND_MUL_X, ACT_AND_MUL_GATE, ACT_AND_MUL_UP),
        [ACT_AND_MUL_QUANTIZE_GLOBAL_SCALE] = SCALE_INPUT("global_scale"),
    },
    .out = {
        [QUANTIZE_Y] = QUANTIZE_Y_PORT("act(gate) * up"),
        [QUANTIZE_SCALES] = QUANTIZE_SCALES_PORT,
    },
    .params_bytes = sizeof(struct act_and_mul_quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        ACT_PARAMS(offsetof(struct act_and_mul_quantize_params, act), ACT_CHOICES, "", "once|type|steps", "once: float32 into codes; type: act(gate) and the product to the type of x first, steps: each step of gelu_tanh, quick_gelu and swiglu_oai too: the codes of what act_and_mul returns"),
        QUANTIZE_PARAMS,
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct act_and_mul_quantize_plan),
};
/* clang-format on */
