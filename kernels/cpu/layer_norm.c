/*
 * layer_norm.c - layer_norm on the CPU.
 */
#include "ops/layer_norm.h"
#include "cpu/norm.h"

enum roped_status roped_cpu_layer_norm(const struct roped_call *call,
                                       struct roped_queue *queue,
                                       struct roped_error *err)
{
    struct cpu_norm_call norm = {
        .x = &call->in[LAYER_NORM_X],
        .weight = &call->in[LAYER_NORM_WEIGHT],
        .y = &call->out[LAYER_NORM_Y],
        .is_centred = true,
        .bias = &call->in[LAYER_NORM_BIAS],
    };
    return cpu_norm_heads(&norm, (const void *)call->plan, call, queue, err);
}
