// add_rmsnorm_codes.cu - what add_rmsnorm_quantize makes beside FP8 and int8. Its x and y are the
// ports of rmsnorm_quantize.
#include "cuda/norm_codes.cuh"
#include "ops/add_rmsnorm_quantize.h"

static_assert((int)ADD_RMSNORM_QUANTIZE_X == (int)RMSNORM_QUANTIZE_X, "port of x");
static_assert((int)ADD_RMSNORM_QUANTIZE_Y == (int)RMSNORM_QUANTIZE_Y, "port of y");

enum roped_status roped_cuda_add_rmsnorm_codes(const struct norm_args &args,
                                               const struct roped_call *call,
                                               const struct roped_tensor *scales,
                                               struct roped_queue *queue, struct roped_error *err)
{
    return launch_norm_codes<true>(args, call, scales, queue, err);
}
