// rmsnorm_backward.cu - gradients of rmsnorm on CUDA: cuda/norm_gradient.cuh.
extern "C" {
#include "ops/rmsnorm_backward.h"
}

#include "cuda/norm_gradient.cuh"

extern "C" enum roped_status roped_cuda_rmsnorm_backward(const struct roped_call *call,
                                                         struct roped_queue *queue,
                                                         struct roped_error *err)
{
    struct norm_gradient_tensors of = {};
    of.grad_y = &call->in[RMSNORM_BACKWARD_GRAD_Y];
    of.x = &call->in[RMSNORM_BACKWARD_X];
    of.weight = &call->in[RMSNORM_BACKWARD_WEIGHT];
    of.grad_residual = &call->in[RMSNORM_BACKWARD_GRAD_RESIDUAL];
    of.grad_x = &call->out[RMSNORM_BACKWARD_GRAD_X];
    of.grad_weight = &call->out[RMSNORM_BACKWARD_GRAD_WEIGHT];
    return launch_norm_gradient<false>(call, of, queue, err);
}
