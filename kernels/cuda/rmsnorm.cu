// rmsnorm.cu - rmsnorm on a CUDA device: the plain norm (device/norm.cuh), 2 bytes moved per byte
// of x; of heads, or with a rounded scale, that of device/norm_pair.cuh. Rows that 16 bytes do not
// divide: device/norm_narrow.cuh.
#include "cuda/norm_launch.cuh"
#include "cuda/pair_launch.cuh"
#include "ops/rmsnorm.h"

extern "C" enum roped_status roped_cuda_rmsnorm(const struct roped_call *call,
                                                struct roped_queue *queue, struct roped_error *err)
{
    const struct norm_pair_plan *of = reinterpret_cast<const struct norm_pair_plan *>(call->plan);
    const struct rmsnorm_plan *plan = &of->norm;
    const struct roped_tensor *x = &call->in[RMSNORM_X];
    struct norm_args args = norm_args_of(plan, x, &call->in[RMSNORM_WEIGHT], &call->out[RMSNORM_Y]);
    if (plan->n_rows == 0)
        return ROPED_OK;
    if (of->n_groups > 1)
        set_heads(&args, of->n_groups, x, &call->out[RMSNORM_Y]);
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using K = norm_kind<T, kFromX, kToFloats>;
        const bool is_aligned = has_vectors<T>(&args, 16);
        if (of->n_groups == 1 && !of->rounds_scale)
            return launch_norm<K>(&args, is_aligned, queue, err);
        if (!is_aligned && !of->rounds_scale && has_narrow_rows<K, false>(&args) &&
            !staged_quarter_parts<K>(&args, staged_threads<K>(&args),
                                     staged_threads<K>(&args) <= 32, queue))
            return launch_narrow<K, false>(args, queue, err);
        return launch_pair<NORM_ALONE>(of, x, nullptr, &call->in[RMSNORM_WEIGHT],
                                       &call->out[RMSNORM_Y], queue, err);
    });
}
