/*
 * rmsnorm_add.c - rmsnorm_add on the CPU.
 */
#include "ops/rmsnorm_add.h"
#include "cpu/norm_pair.h"

enum roped_status roped_cpu_rmsnorm_add(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    const struct cpu_norm_pair pair = {
        .plan = (const void *)call->plan,
        .x = &call->in[RMSNORM_ADD_X],
        .second = &call->in[RMSNORM_ADD_RESIDUAL],
        .weight = &call->in[RMSNORM_ADD_WEIGHT],
        .out = &call->out[RMSNORM_ADD_RESIDUAL_OUT],
    };
    return cpu_norm_pair(&pair, call, queue, err);
}
