// rmsnorm_add.cu - rmsnorm_add on a CUDA device: the norm of x (device/norm_pair.cuh) and the
// residual that it is added to. Each of the three tensors moves once.
#include "cuda/pair_launch.cuh"
#include "ops/rmsnorm_add.h"

extern "C" enum roped_status roped_cuda_rmsnorm_add(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    const struct norm_pair_plan *plan = reinterpret_cast<const struct norm_pair_plan *>(call->plan);
    return launch_pair<NORM_THEN_ADD>(
        plan, &call->in[RMSNORM_ADD_X], &call->in[RMSNORM_ADD_RESIDUAL],
        &call->in[RMSNORM_ADD_WEIGHT], &call->out[RMSNORM_ADD_RESIDUAL_OUT], queue, err);
}
