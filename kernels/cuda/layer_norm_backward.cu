// layer_norm_backward.cu - gradients of layer_norm on CUDA: cuda/norm_gradient.cuh.
extern "C" {
#include "ops/layer_norm_backward.h"
}

#include "cuda/norm_gradient.cuh"

extern "C" enum roped_status roped_cuda_layer_norm_backward(const struct roped_call *call,
                                                            struct roped_queue *queue,
                                                            struct roped_error *err)
{
    struct norm_gradient_tensors of = {};
    of.grad_y = &call->in[LAYER_NORM_BACKWARD_GRAD_Y];
    of.x = &call->in[LAYER_NORM_BACKWARD_X];
    of.weight = &call->in[LAYER_NORM_BACKWARD_WEIGHT];
    of.bias = &call->in[LAYER_NORM_BACKWARD_BIAS];
    of.grad_residual = &call->in[LAYER_NORM_BACKWARD_GRAD_RESIDUAL];
    of.grad_x = &call->out[LAYER_NORM_BACKWARD_GRAD_X];
    of.grad_weight = &call->out[LAYER_NORM_BACKWARD_GRAD_WEIGHT];
    of.grad_bias = &call->out[LAYER_NORM_BACKWARD_GRAD_BIAS];
    return launch_norm_gradient<true>(call, of, queue, err);
}
