// gated_rmsnorm.cu - gated_rmsnorm on a CUDA device: the norm of x beside its gate
// (device/norm_pair.cuh). Each of the three tensors moves once.
#include "cuda/pair_launch.cuh"
#include "ops/gated_rmsnorm.h"

extern "C" enum roped_status roped_cuda_gated_rmsnorm(const struct roped_call *call,
                                                      struct roped_queue *queue,
                                                      struct roped_error *err)
{
    const struct norm_pair_plan *plan = reinterpret_cast<const struct norm_pair_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[GATED_RMSNORM_X];
    const struct roped_tensor *gate = &call->in[GATED_RMSNORM_GATE];
    const struct roped_tensor *weight = &call->in[GATED_RMSNORM_WEIGHT];
    const struct roped_tensor *y = &call->out[GATED_RMSNORM_Y];
    return plan->pair == GATE_THEN_NORM
               ? launch_pair<GATE_THEN_NORM>(plan, x, gate, weight, y, queue, err)
               : launch_pair<NORM_THEN_GATE>(plan, x, gate, weight, y, queue, err);
}
