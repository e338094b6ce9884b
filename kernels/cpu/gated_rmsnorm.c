/*
 * gated_rmsnorm.c - gated_rmsnorm on the CPU.
 */
#include "ops/gated_rmsnorm.h"
#include "cpu/norm_pair.h"

enum roped_status roped_cpu_gated_rmsnorm(const struct roped_call *call,
                                          struct roped_queue *queue,
                                          struct roped_error *err)
{
    const struct cpu_norm_pair pair = {
        .plan = (const void *)call->plan,
        .x = &call->in[GATED_RMSNORM_X],
        .second = &call->in[GATED_RMSNORM_GATE],
        .weight = &call->in[GATED_RMSNORM_WEIGHT],
        .out = &call->out[GATED_RMSNORM_Y],
    };
    return cpu_norm_pair(&pair, call, queue, err);
}
