/*
 * activation.c - the plan of act_and_mul and of its gradients.
 */
#include "ops/activation.h"

#include <math.h>

/* As gpt-oss has it, where the call does not say. */
static float limit_of(const struct act_and_mul_params *params)
{
    if (!isnan(params->limit))
        return (float)params->limit;
    return params->activation == ACT_SWIGLU_OAI ? 7.0f : INFINITY;
}

void act_plan(struct roped_call *call, const struct roped_tensor *y)
{
    const struct act_and_mul_params *params = (const void *)call->params;
    struct act_and_mul_plan *plan = (void *)call->plan;
    int64_t width = y->dims[y->rank - 1];
    bool is_oai = params->activation == ACT_SWIGLU_OAI;
    bool is_narrow = y->dtype != ROPED_F32;
    *plan = (struct act_and_mul_plan){
        .n_rows = roped_tensor_elements(y) / width,
        .width = width,
        .limit = limit_of(params),
        .alpha = is_oai ? (float)params->alpha : 1.702f,
        .beta = is_oai ? (float)params->beta : 0,
        .activation = params->activation,
        .rounds =
            params->rounding != ACT_ROUND_ONCE && params->gated && is_narrow,
        .gated = params->gated,
        .interleaved = params->interleaved,
        .gate_second = params->gate_second,
        .steps = params->rounding == ACT_ROUND_STEPS && is_narrow &&
                 (params->activation == ACT_GELU_TANH ||
                  params->activation == ACT_QUICK_GELU || is_oai),
    };
}
