// add_rmsnorm.cu - add_rmsnorm on a CUDA device: the norm (device/norm.cuh) of x + residual, which
// is stored beside it. Each of the four tensors moves once.
#include "cuda/norm_launch.cuh"
#include "ops/add_rmsnorm.h"

static enum roped_status launch(const struct rmsnorm_plan *plan, const struct roped_tensor *in,
                                const struct roped_tensor *out, struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct roped_tensor *x = &in[ADD_RMSNORM_X];
    struct norm_args args = norm_args_of(plan, x, &in[ADD_RMSNORM_WEIGHT], &out[ADD_RMSNORM_Y]);
    set_residual(&args, plan, x, &in[ADD_RMSNORM_RESIDUAL], &out[ADD_RMSNORM_RESIDUAL_OUT]);
    set_terms(&args, plan, &in[ADD_RMSNORM_ADDEND]);
    if (plan->n_rows == 0)
        return ROPED_OK;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_source<T, true, kToFloats>(&args, has_vectors<T>(&args, 16), plan->rounds_sum,
                                                 queue, err);
    });
}

extern "C" enum roped_status roped_cuda_add_rmsnorm(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    return for_each_head(
        call, [&](auto plan, auto in, auto out) { return launch(plan, in, out, queue, err); });
}
