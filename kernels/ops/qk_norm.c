/*
 * qk_norm.c - weights of the norm of heads of q and k.
 */
#include "ops/qk_norm.h"

#include "core/call_internal.h"

enum roped_status qk_norm_plan(const struct roped_call *call, int weight_port,
                               const struct rmsnorm_params *params,
                               struct heads_plan *plan, struct roped_error *err)
{
    struct heads_norm *norm = &plan->norm;
    norm->eps = (float)params->eps;
    norm->weight_bias = norm_weight_bias(params, &call->in[weight_port]);
    norm->rounds_product = params->rounding == RMSNORM_ROUND_HF;
    for (int i = 0; i < plan->n_parts; i++)
        if (plan->part[i].rotates)
            plan->part[i].weight = (int16_t)(weight_port + i);
    return call_type_of(call, weight_port, weight_port + 1, &norm->weight_dtype,
                        err);
}
