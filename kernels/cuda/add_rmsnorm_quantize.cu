// add_rmsnorm_quantize.cu - add_rmsnorm_quantize on a CUDA device: the norm (device/norm.cuh) of
// x + residual, which is stored beside it, with FP8 or int8 at its end. Each tensor moves once.
// Other codes, and most sums of more than these two: norm_codes.cuh.
#include "cuda/norm_fp8_launch.cuh"
#include "ops/add_rmsnorm_quantize.h"

extern "C" enum roped_status roped_cuda_add_rmsnorm_quantize(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    const struct rmsnorm_quantize_plan *plan =
        reinterpret_cast<const struct rmsnorm_quantize_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[ADD_RMSNORM_QUANTIZE_X];
    const struct roped_tensor *y = &call->out[ADD_RMSNORM_QUANTIZE_Y];
    struct norm_args args = norm_args_of(&plan->norm, x, &call->in[ADD_RMSNORM_QUANTIZE_WEIGHT], y);
    set_residual(&args, &plan->norm, x, &call->in[ADD_RMSNORM_QUANTIZE_RESIDUAL],
                 &call->out[ADD_RMSNORM_QUANTIZE_RESIDUAL_OUT]);
    set_terms(&args, &plan->norm, &call->in[ADD_RMSNORM_QUANTIZE_ADDEND]);
    const struct roped_tensor *scales = &call->out[ADD_RMSNORM_QUANTIZE_SCALES];
    if (plan->norm.n_rows == 0)
        return ROPED_OK;
    if (!has_float_scales(&plan->quantize) || is_any(&args))
        return roped_cuda_add_rmsnorm_codes(args, call, scales, queue, err);
    set_quantize_args(&args, plan, scales);
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using K = norm_kind<T, kFromSum, kToFp8>;
        if ((has_terms(&args) && vectors_of<K>(&args) <= kMostTermVectors) ||
            has_codes_in_quarters<K>(&args, plan, queue) ||
            (has_one_scale(&plan->quantize) &&
             has_codes_apart<K>(&args, has_vectors<T>(&args, kVecOf<T>), plan->quantize.dynamic,
                                queue)))
            return roped_cuda_add_rmsnorm_codes(args, call, scales, queue, err);
        return launch_quantized<T, true>(&args, plan, queue, err);
    });
}
