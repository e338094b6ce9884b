/*
 * add_rmsnorm_quantize.c - add_rmsnorm_quantize on the CPU.
 */
#include "ops/add_rmsnorm_quantize.h"

#include "cpu/norm.h"

enum roped_status roped_cpu_add_rmsnorm_quantize(const struct roped_call *call,
                                                 struct roped_queue *queue,
                                                 struct roped_error *err)
{
    const struct rmsnorm_quantize_plan *plan = (const void *)call->plan;
    struct cpu_norm_call norm = {
        .plan = &plan->norm,
        .x = &call->in[ADD_RMSNORM_QUANTIZE_X],
        .weight = &call->in[ADD_RMSNORM_QUANTIZE_WEIGHT],
        .y = &call->out[ADD_RMSNORM_QUANTIZE_Y],
        .residual = &call->in[ADD_RMSNORM_QUANTIZE_RESIDUAL],
        .residual_out = &call->out[ADD_RMSNORM_QUANTIZE_RESIDUAL_OUT],
        .addend = &call->in[ADD_RMSNORM_QUANTIZE_ADDEND],
        .quantize = plan,
        .scales = &call->out[ADD_RMSNORM_QUANTIZE_SCALES],
    };
    return cpu_norm_sums(&norm, call, queue, err);
}
