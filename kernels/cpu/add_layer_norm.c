/*
 * add_layer_norm.c - add_layer_norm on the CPU.
 */
#include "ops/add_layer_norm.h"
#include "cpu/norm.h"

enum roped_status roped_cpu_add_layer_norm(const struct roped_call *call,
                                           struct roped_queue *queue,
                                           struct roped_error *err)
{
    struct cpu_norm_call norm = {
        .x = &call->in[ADD_LAYER_NORM_X],
        .weight = &call->in[ADD_LAYER_NORM_WEIGHT],
        .y = &call->out[ADD_LAYER_NORM_Y],
        .residual = &call->in[ADD_LAYER_NORM_RESIDUAL],
        .residual_out = &call->out[ADD_LAYER_NORM_RESIDUAL_OUT],
        .addend = &call->in[ADD_LAYER_NORM_ADDEND],
        .is_centred = true,
        .bias = &call->in[ADD_LAYER_NORM_BIAS],
    };
    return cpu_norm_heads(&norm, (const void *)call->plan, call, queue, err);
}
