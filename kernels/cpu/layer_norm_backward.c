/*
 * layer_norm_backward.c - gradients of layer_norm on the CPU.
 */
#include "ops/layer_norm_backward.h"
#include "cpu/norm_gradient.h"

enum roped_status roped_cpu_layer_norm_backward(const struct roped_call *call,
                                                struct roped_queue *queue,
                                                struct roped_error *err)
{
    const struct cpu_norm_gradient of = {
        .grad_y = &call->in[LAYER_NORM_BACKWARD_GRAD_Y],
        .x = &call->in[LAYER_NORM_BACKWARD_X],
        .weight = &call->in[LAYER_NORM_BACKWARD_WEIGHT],
        .grad_residual = &call->in[LAYER_NORM_BACKWARD_GRAD_RESIDUAL],
        .grad_x = &call->out[LAYER_NORM_BACKWARD_GRAD_X],
        .grad_weight = &call->out[LAYER_NORM_BACKWARD_GRAD_WEIGHT],
        .is_centred = true,
        .bias = &call->in[LAYER_NORM_BACKWARD_BIAS],
        .grad_bias = &call->out[LAYER_NORM_BACKWARD_GRAD_BIAS],
    };
    return cpu_norm_gradient(&of, call, queue, err);
}
