// rmsnorm_quantize.cu - rmsnorm_quantize on a CUDA device: the norm (device/norm.cuh) with FP8
// or int8 at its end. Every element is read once and written as one byte. Others: norm_codes.cuh.
#include "cuda/norm_fp8_launch.cuh"

extern "C" enum roped_status roped_cuda_rmsnorm_quantize(const struct roped_call *call,
                                                         struct roped_queue *queue,
                                                         struct roped_error *err)
{
    const struct rmsnorm_quantize_plan *plan =
        reinterpret_cast<const struct rmsnorm_quantize_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[RMSNORM_QUANTIZE_X];
    const struct roped_tensor *y = &call->out[RMSNORM_QUANTIZE_Y];
    struct norm_args args = norm_args_of(&plan->norm, x, &call->in[RMSNORM_QUANTIZE_WEIGHT], y);
    const struct roped_tensor *scales = &call->out[RMSNORM_QUANTIZE_SCALES];
    if (plan->norm.n_rows == 0)
        return ROPED_OK;
    if (!has_float_scales(&plan->quantize))
        return roped_cuda_rmsnorm_codes(args, call, scales, queue, err);
    set_quantize_args(&args, plan, scales);
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using K = norm_kind<T, kFromX, kToFp8>;
        const bool is_aligned = has_vectors<T>(&args, kVecOf<T>);
        if ((!takes_eights<K>(&args, is_aligned, queue) &&
             takes_turns<K>(&args, is_aligned, queue)) ||
            has_codes_in_quarters<K>(&args, plan, queue) ||
            (has_one_scale(&plan->quantize) &&
             has_codes_apart<K>(&args, is_aligned, plan->quantize.dynamic, queue)))
            return roped_cuda_rmsnorm_codes(args, call, scales, queue, err);
        return launch_quantized<T, false>(&args, plan, queue, err);
    });
}
