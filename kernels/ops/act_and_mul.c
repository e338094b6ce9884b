/*
 * act_and_mul.c - the descriptor of act_and_mul.
 */
#include "ops/act_and_mul.h"

#include <float.h>
#include <math.h>

/* As gpt-oss has it, where the call does not say. */
static float limit_of(const struct act_and_mul_params *params)
{
    if (!isnan(params->limit))
        return (float)params->limit;
    return params->activation == ACT_SWIGLU_OAI ? 7.0f : INFINITY;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    struct act_and_mul_plan *plan = (void *)call->plan;
    int64_t width = y->dims[y->rank - 1];
    bool is_oai = params->activation == ACT_SWIGLU_OAI;
    (void)err;
    *plan = (struct act_and_mul_plan){
        .n_rows = roped_tensor_elements(y) / width,
        .width = width,
        .limit = limit_of(params),
        .alpha = is_oai ? (float)params->alpha : 1.702f,
        .beta = is_oai ? (float)params->beta : 0,
        .activation = params->activation,
        .rounds = params->rounding == ACT_ROUND_TYPE && params->gated &&
                  y->dtype != ROPED_F32,
        .gated = params->gated,
        .interleaved = params->interleaved,
        .gate_second = params->gate_second,
    };
    return ROPED_OK;
}

#define AT(member) offsetof(struct act_and_mul_params, member)
#define X          ROPED_INPUT(ACT_AND_MUL_X)
#define GATE       ROPED_INPUT(ACT_AND_MUL_GATE)
#define UP         ROPED_INPUT(ACT_AND_MUL_UP)

/* clang-format off */
const struct roped_op roped_op_act_and_mul = {
    .name = "act_and_mul",
    .since = "0.1",
    .summary = "y = act(gate) * up, the middle of a gated MLP; or y = act(x)",
    .type = {{"T", ROPED_FLOATS}},
    .given = {
        {.without = X, .all = GATE | UP},
        {.with = X, .none = GATE | UP},
        {.when = "gated=false", .all = X},
        {.with_param = "interleaved", .all = X},
        {.with_param = "gate_second", .all = X},
        {.when = "interleaved=true", .with_param = "interleaved", .needs = "gated=true"},
        {.when = "interleaved=true", .with_param = "interleaved", .needs = "gate_second=false"},
        {.when = "gate_second=true", .with_param = "gate_second", .needs = "gated=true"},
        {.when = "activation=swiglu_oai", .with_param = "activation", .needs = "gated=true"},
        {.with_param = "alpha", .needs = "activation=swiglu_oai"},
        {.with_param = "beta", .needs = "activation=swiglu_oai"},
    },
    .in = {
        [ACT_AND_MUL_X] = {"x", "T", "[gated=true] ...rows 2h|...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "rows of gate and up; of the gate alone where gated is false"},
        [ACT_AND_MUL_GATE] = {"gate", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "what goes through the activation, where x is not given"},
        [ACT_AND_MUL_UP] = {"up", "T", "...rows h", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "what it is multiplied by"},
    },
    .out = {
        [ACT_AND_MUL_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .doc = "act(gate) * up"},
    },
    .params_bytes = sizeof(struct act_and_mul_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"activation", ROPED_PARAM_CHOICE, AT(activation), .choices = "silu|gelu|gelu_tanh|relu|relu2|quick_gelu|sigmoid|swiglu_oai", .doc = "gelu: by erf, exact in its tail; gelu_tanh: Hugging Face's gelu_new and gelu_pytorch_tanh; swiglu_oai: gate * sigmoid(alpha * gate) * (up + beta), as gpt-oss"},
        {"gated", ROPED_PARAM_BOOL, AT(gated), 0, 1, .doc = "false: y = act(x), without a product"},
        {"interleaved", ROPED_PARAM_BOOL, AT(interleaved), .doc = "x has pairs, the gate is the even element, as gpt-oss"},
        {"gate_second", ROPED_PARAM_BOOL, AT(gate_second), .doc = "the gate is the second half of x"},
        {"limit", ROPED_PARAM_FLOAT, AT(limit), ROPED_NO_DEFAULT, 0, FLT_TRUE_MIN, FLT_MAX, .doc = "gate is at most limit, up at most limit in magnitude; unset: 7 for swiglu_oai, else no limit"},
        {"alpha", ROPED_PARAM_FLOAT, AT(alpha), 0, 1.702, FLT_MIN, FLT_MAX, .doc = "swiglu_oai: what the gate is multiplied by inside the sigmoid"},
        {"beta", ROPED_PARAM_FLOAT, AT(beta), 0, 1, -FLT_MAX, FLT_MAX, .doc = "swiglu_oai: what is added to up"},
        {"rounding", ROPED_PARAM_CHOICE, AT(rounding), .choices = "once|type", .doc = "once: at the end, as FlashInfer; type: act(gate) also before the product, as vLLM and Hugging Face"},
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct act_and_mul_plan),
};
/* clang-format on */
