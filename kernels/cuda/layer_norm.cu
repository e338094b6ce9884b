// layer_norm.cu - layer_norm on a CUDA device: the centred norm (device/norm_centred.cuh), 2 bytes
// moved per byte of x.
#include "cuda/centred_launch.cuh"
#include "ops/layer_norm.h"

extern "C" enum roped_status roped_cuda_layer_norm(const struct roped_call *call,
                                                   struct roped_queue *queue,
                                                   struct roped_error *err)
{
    const struct heads_norm_plan *of = reinterpret_cast<const struct heads_norm_plan *>(call->plan);
    const struct rmsnorm_plan *plan = &of->norm;
    const struct roped_tensor *x = &call->in[LAYER_NORM_X];
    struct norm_args args =
        norm_args_of(plan, x, &call->in[LAYER_NORM_WEIGHT], &call->out[LAYER_NORM_Y]);
    set_bias(&args, x, &call->in[LAYER_NORM_BIAS]);
    if (of->heads > 1)
        set_heads(&args, of->heads, x, &call->out[LAYER_NORM_Y]);
    if (plan->n_rows == 0)
        return ROPED_OK;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (of->heads > 1)
            return launch_kind<norm_kind<T, kFromHeads, kToFloats>>(args, queue, err);
        return launch_centred<T, false>(args, false, queue, err);
    });
}
