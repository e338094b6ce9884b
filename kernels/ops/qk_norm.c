/*
 * qk_norm.c - weights of the norm of heads of q and k.
 */
#include "ops/qk_norm.h"

#include "core/call_internal.h"

enum roped_status qk_norm_plan(const struct roped_call *call, int weight_port,
                               const struct rmsnorm_params *params,
                               struct qk_norm_plan *out,
                               struct roped_error *err)
{
    *out = (struct qk_norm_plan){
        .eps = (float)params->eps,
        .weight_bias = norm_weight_bias(params, &call->in[weight_port]),
        .rounding = params->rounding};
    return call_type_of(call, weight_port, weight_port + 1, &out->weight_dtype,
                        err);
}
