// add_layer_norm.cu - add_layer_norm on a CUDA device: the centred norm (device/norm_centred.cuh)
// of x + residual, which is stored beside it. Each of the four tensors moves once.
#include "cuda/centred_launch.cuh"
#include "ops/add_layer_norm.h"

static enum roped_status launch(const struct rmsnorm_plan *plan, const struct roped_tensor *in,
                                const struct roped_tensor *out, struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct roped_tensor *x = &in[ADD_LAYER_NORM_X], *sum = &out[ADD_LAYER_NORM_RESIDUAL_OUT];
    struct norm_args args =
        norm_args_of(plan, x, &in[ADD_LAYER_NORM_WEIGHT], &out[ADD_LAYER_NORM_Y]);
    set_bias(&args, x, &in[ADD_LAYER_NORM_BIAS]);
    set_residual(&args, plan, x, &in[ADD_LAYER_NORM_RESIDUAL], sum);
    set_terms(&args, plan, &in[ADD_LAYER_NORM_ADDEND]);
    args.stores_early = true;
    for (int i : {ADD_LAYER_NORM_X, ADD_LAYER_NORM_RESIDUAL, ADD_LAYER_NORM_ADDEND})
        if (takes_place_of(sum, &in[i]))
            args.stores_early = false;
    if (plan->n_rows == 0)
        return ROPED_OK;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_centred<T, true>(args, plan->rounds_sum, queue, err);
    });
}

extern "C" enum roped_status roped_cuda_add_layer_norm(const struct roped_call *call,
                                                       struct roped_queue *queue,
                                                       struct roped_error *err)
{
    return for_each_head(
        call, [&](auto plan, auto in, auto out) { return launch(plan, in, out, queue, err); });
}
