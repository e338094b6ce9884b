/*
 * rmsnorm_add.c - rmsnorm_add on the CPU.
 */
#include "ops/rmsnorm_add.h"
#include "cpu/norm.h"
#include "ops/norm_pair.h"

enum roped_status roped_cpu_rmsnorm_add(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    const struct norm_pair_plan *plan = (const void *)call->plan;
    const struct cpu_norm_call norm = {
        .plan = &plan->norm,
        .x = &call->in[RMSNORM_ADD_X],
        .weight = &call->in[RMSNORM_ADD_WEIGHT],
        .added = &call->in[RMSNORM_ADD_RESIDUAL],
        .rounds_norm = plan->rounds_norm,
        .y = &call->out[RMSNORM_ADD_RESIDUAL_OUT],
    };
    (void)err;
    cpu_norm_rows(&norm, call, queue);
    return ROPED_OK;
}
