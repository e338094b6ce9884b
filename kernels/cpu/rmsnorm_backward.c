/*
 * rmsnorm_backward.c - gradients of rmsnorm on the CPU.
 */
#include "ops/rmsnorm_backward.h"
#include "cpu/norm_gradient.h"

enum roped_status roped_cpu_rmsnorm_backward(const struct roped_call *call,
                                             struct roped_queue *queue,
                                             struct roped_error *err)
{
    const struct cpu_norm_gradient of = {
        .grad_y = &call->in[RMSNORM_BACKWARD_GRAD_Y],
        .x = &call->in[RMSNORM_BACKWARD_X],
        .weight = &call->in[RMSNORM_BACKWARD_WEIGHT],
        .grad_residual = &call->in[RMSNORM_BACKWARD_GRAD_RESIDUAL],
        .grad_x = &call->out[RMSNORM_BACKWARD_GRAD_X],
        .grad_weight = &call->out[RMSNORM_BACKWARD_GRAD_WEIGHT],
    };
    return cpu_norm_gradient(&of, call, queue, err);
}
