/*
 * rmsnorm.c - rmsnorm on the CPU.
 */
#include "cpu/norm.h"

enum roped_status roped_cpu_rmsnorm(const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    struct cpu_norm_call norm = {
        .plan = (const void *)call->plan,
        .x = &call->in[RMSNORM_X],
        .weight = &call->in[RMSNORM_WEIGHT],
        .y = &call->out[RMSNORM_Y],
    };
    (void)err;
    cpu_norm_rows(&norm, call, queue);
    return ROPED_OK;
}
