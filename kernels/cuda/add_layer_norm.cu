// add_layer_norm.cu - add_layer_norm on a CUDA device: the centred norm (device/norm_centred.cuh)
// of x + residual, which is stored beside it. Each of the four tensors moves once.
#include "cuda/centred_launch.cuh"
#include "ops/add_layer_norm.h"

extern "C" enum roped_status roped_cuda_add_layer_norm(const struct roped_call *call,
                                                       struct roped_queue *queue,
                                                       struct roped_error *err)
{
    const struct rmsnorm_plan *plan = reinterpret_cast<const struct rmsnorm_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[ADD_LAYER_NORM_X];
    struct norm_args args =
        norm_args_of(plan, x, &call->in[ADD_LAYER_NORM_WEIGHT], &call->out[ADD_LAYER_NORM_Y]);
    set_bias(&args, x, &call->in[ADD_LAYER_NORM_BIAS]);
    set_residual(&args, plan, x, &call->in[ADD_LAYER_NORM_RESIDUAL],
                 &call->out[ADD_LAYER_NORM_RESIDUAL_OUT]);
    set_terms(&args, plan, &call->in[ADD_LAYER_NORM_ADDEND]);
    args.stores_early = true;
    for (int i : {ADD_LAYER_NORM_X, ADD_LAYER_NORM_RESIDUAL, ADD_LAYER_NORM_ADDEND})
        if (takes_place_of(&call->out[ADD_LAYER_NORM_RESIDUAL_OUT], &call->in[i]))
            args.stores_early = false;
    if (plan->n_rows == 0)
        return ROPED_OK;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_centred<T, true>(args, plan->rounds_sum, queue, err);
    });
}
