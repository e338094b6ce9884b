// rmsnorm_quantize.cu - rmsnorm_quantize on a CUDA device: the norm (device/norm.cuh) with FP8 at
// its end. Every element is read once and written as one byte.
#include "cuda/norm_launch.cuh"
#include "ops/rmsnorm_quantize.h"

// The kernel of a kind of scale: given, of rows, of groups.
template <typename T>
static enum roped_status launch_scaled(struct norm_args *args,
                                       const struct rmsnorm_quantize_plan *plan,
                                       struct roped_queue *queue, struct roped_error *err)
{
    bool is_aligned = has_vectors<T>(args, kVecOf<T>);
    if (plan->group_size == 0)
        return launch_norm<norm_kind<T, kFromX, kToFp8>>(args, is_aligned, queue, err);
    if (plan->group_size == plan->norm.hidden)
        return launch_norm<norm_kind<T, kFromX, kToFp8PerRow>>(args, is_aligned, queue, err);
    args->n_groups = plan->norm.hidden / plan->group_size;
    while ((kVecOf<T> << args->group_shift) < plan->group_size)
        args->group_shift++;
    return launch_norm<norm_kind<T, kFromX, kToFp8PerGroup>>(args, is_aligned, queue, err);
}

extern "C" enum roped_status roped_cuda_rmsnorm_quantize(const struct roped_call *call,
                                                         struct roped_queue *queue,
                                                         struct roped_error *err)
{
    const struct rmsnorm_quantize_plan *plan =
        reinterpret_cast<const struct rmsnorm_quantize_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[RMSNORM_QUANTIZE_X];
    const struct roped_tensor *y = &call->out[RMSNORM_QUANTIZE_Y];
    struct norm_args args = norm_args_of(&plan->norm, x, &call->in[RMSNORM_QUANTIZE_WEIGHT], y);
    args.is_e5m2 = y->dtype == ROPED_F8_E5M2;
    args.scales = static_cast<float *>(call->out[RMSNORM_QUANTIZE_SCALES].data);
    args.given = divisor_of(plan->dequant_scale);
    args.largest = divisor_of(plan->largest);
    args.scale_ub = plan->scale_ub;
    args.smallest_scale = plan->smallest_scale;
    if (plan->norm.n_rows == 0)
        return ROPED_OK;
    return with_float_type(x->dtype, [&](auto tag) {
        return launch_scaled<typename decltype(tag)::type>(&args, plan, queue, err);
    });
}
