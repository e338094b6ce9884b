/*
 * activation.c - the plan of what has activations.
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

struct act_and_mul_plan act_plan_of(const struct act_and_mul_params *params,
                                    enum roped_dtype dtype, int64_t n_rows,
                                    int64_t width)
{
    const bool is_oai = params->activation == ACT_SWIGLU_OAI;
    const bool rounds =
        params->rounding != ACT_ROUND_ONCE && dtype != ROPED_F32;
    const bool is_fast = params->activation == ACT_GELU_FAST;
    const bool steps = rounds && params->rounding == ACT_ROUND_STEPS &&
                       (params->activation == ACT_GELU_TANH ||
                        params->activation == ACT_QUICK_GELU || is_oai ||
                        params->activation >= ACT_GELU_FAST);
    return (struct act_and_mul_plan){
        .n_rows = n_rows,
        .width = width,
        .limit = limit_of(params),
        .alpha = is_oai ? (float)params->alpha : 1.702f,
        .beta = is_oai ? (float)params->beta : 0,
        .activation = is_fast && !steps ? ACT_GELU_TANH : params->activation,
        .rounds = rounds && params->gated,
        .gated = params->gated,
        .interleaved = params->interleaved,
        .gate_second = params->gate_second,
        .steps = steps,
        .xielu = {(float)params->alpha_p, (float)params->alpha_n,
                  (float)params->slope, (float)params->eps},
    };
}
