/*
 * rmsnorm_quantize.c - rmsnorm_quantize on the CPU.
 */
#include "ops/rmsnorm_quantize.h"

#include "cpu/norm.h"

enum roped_status roped_cpu_rmsnorm_quantize(const struct roped_call *call,
                                             struct roped_queue *queue,
                                             struct roped_error *err)
{
    const struct rmsnorm_quantize_plan *plan = (const void *)call->plan;
    struct cpu_norm_call norm = {
        .plan = &plan->norm,
        .x = &call->in[RMSNORM_QUANTIZE_X],
        .weight = &call->in[RMSNORM_QUANTIZE_WEIGHT],
        .y = &call->out[RMSNORM_QUANTIZE_Y],
        .quantize = plan,
        .scales = &call->out[RMSNORM_QUANTIZE_SCALES],
    };
    return cpu_norm_sums(&norm, call, queue, err);
}
