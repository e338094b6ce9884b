// rmsnorm_codes.cu - what rmsnorm_quantize makes beside FP8 and int8.
#include "cuda/norm_codes.cuh"

enum roped_status roped_cuda_rmsnorm_codes(const struct norm_args &args,
                                           const struct roped_call *call,
                                           const struct roped_tensor *scales,
                                           struct roped_queue *queue, struct roped_error *err)
{
    return launch_norm_codes<false>(args, call, scales, queue, err);
}
