// add_rmsnorm.cu - add_rmsnorm on a CUDA device: the norm (device/norm.cuh) of x + residual, which
// is stored beside it. Each of the four tensors moves once.
#include "cuda/norm_launch.cuh"
#include "ops/add_rmsnorm.h"

extern "C" enum roped_status roped_cuda_add_rmsnorm(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    const struct rmsnorm_plan *plan = reinterpret_cast<const struct rmsnorm_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[ADD_RMSNORM_X];
    struct norm_args args =
        norm_args_of(plan, x, &call->in[ADD_RMSNORM_WEIGHT], &call->out[ADD_RMSNORM_Y]);
    set_residual(&args, plan, x, &call->in[ADD_RMSNORM_RESIDUAL],
                 &call->out[ADD_RMSNORM_RESIDUAL_OUT]);
    set_terms(&args, plan, &call->in[ADD_RMSNORM_ADDEND]);
    if (plan->n_rows == 0)
        return ROPED_OK;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_source<T, true, kToFloats>(&args, has_vectors<T>(&args, 16), plan->rounds_sum,
                                                 queue, err);
    });
}
