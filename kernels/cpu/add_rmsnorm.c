/*
 * add_rmsnorm.c - add_rmsnorm on the CPU.
 */
#include "ops/add_rmsnorm.h"
#include "cpu/norm.h"

enum roped_status roped_cpu_add_rmsnorm(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    struct cpu_norm_call norm = {
        .x = &call->in[ADD_RMSNORM_X],
        .weight = &call->in[ADD_RMSNORM_WEIGHT],
        .y = &call->out[ADD_RMSNORM_Y],
        .residual = &call->in[ADD_RMSNORM_RESIDUAL],
        .residual_out = &call->out[ADD_RMSNORM_RESIDUAL_OUT],
        .addend = &call->in[ADD_RMSNORM_ADDEND],
    };
    return cpu_norm_heads(&norm, (const void *)call->plan, call, queue, err);
}
