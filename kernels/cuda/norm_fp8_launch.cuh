// norm_fp8_launch.cuh - what launches of norms into FP8 and int8 have beside those of norms. Host
// code.
#pragma once

#include "cuda/norm_launch.cuh"
#include "cuda/wide_codes.cuh"
#include "ops/rmsnorm_quantize.h"

// Have codes scales of float32, as FP8 and int8 do?
static inline bool has_float_scales(const struct quantize_plan *plan)
{
    return plan->rule.scale == CODE_SCALE_F32;
}

// Has a row one scale, which is made of it or was given?
static inline bool has_one_scale(const struct quantize_plan *plan)
{
    return !plan->dynamic || plan->tiles.n_tiles == 1;
}

// Do few wide rows become FP8 by the kernels of norm_codes_any.cuh?
template <typename K>
static bool has_codes_in_quarters(const struct norm_args *args,
                                  const struct rmsnorm_quantize_plan *plan,
                                  const struct roped_queue *queue)
{
    return sizeof(typename K::T) == 4 && has_one_scale(&plan->quantize) &&
           wide_parts_of_codes<K>(args, queue) > 0;
}

// What args of a norm into codes of 8 bits have beside those of norm_args_of. scales is NULL where
// the scale is given.
static inline void set_quantize_args(struct norm_args *args,
                                     const struct rmsnorm_quantize_plan *plan,
                                     const struct roped_tensor *scales)
{
    const struct quantize_plan *codes = &plan->quantize;
    args->codes = (codes->rule.element == CODE_E5M2 ? kCodesAreE5m2
                   : codes->rule.element == CODE_I8 ? kCodesAreInt8
                                                    : 0) |
                  (codes->rule.power_of_two ? kScalesArePowers : 0);
    args->rounds_result = plan->norm.rounding == RMSNORM_ROUND_TYPE;
    args->scales = static_cast<float *>(scales->data);
    args->n_groups = codes->tiles.n_tiles;
    args->scale_row = codes->tiles.scale_row;
    args->scale_group = codes->tiles.scale_tile;
    args->divisor = divisor_of(codes->dynamic ? codes->rule.largest : codes->dequant_scale);
    args->scale_ub = codes->rule.scale_ub;
    args->smallest_scale = codes->rule.least_scale;
}

// Zeros at the places behind the last row's scale of each group: a block for each.
struct padding_args {
    float *first;
    int64_t scale_group;
    int32_t n_padding;
};

static __global__ void clear_padding_kernel(const __grid_constant__ struct padding_args args)
{
    let_next_start();
    wait_for_previous();
    float *to = args.first + blockIdx.x * args.scale_group;
    for (int i = threadIdx.x; i < args.n_padding; i += blockDim.x)
        to[i] = 0.0f;
}

static inline enum roped_status clear_padding(const struct norm_args *args, int64_t n_padding,
                                              struct roped_queue *queue, struct roped_error *err)
{
    struct padding_args padding = {args->scales + args->n_rows, args->scale_group,
                                   (int32_t)n_padding};
    if (n_padding == 0)
        return ROPED_OK;
    return start(queue, clear_padding_kernel, dim3(32), args->n_groups, dim3(), padding, err);
}

// Vectors of sums of more than two terms that norm_codes.cuh has, at most. Its threads have no
// registers for four and their terms.
constexpr int64_t kMostTermVectors = 1024;

// The kernel of a kind of scale: given, of rows, of groups.
template <typename T, bool kAdds>
static enum roped_status launch_quantized(struct norm_args *args,
                                          const struct rmsnorm_quantize_plan *plan,
                                          struct roped_queue *queue, struct roped_error *err)
{
    bool is_aligned = has_vectors<T>(args, kVecOf<T>), rounds_sum = plan->norm.rounds_sum;
    const struct code_tiles *tiles = &plan->quantize.tiles;
    if (!plan->quantize.dynamic)
        return launch_source<T, kAdds, kToFp8>(args, is_aligned, rounds_sum, queue, err);
    enum roped_status status = clear_padding(args, tiles->n_padding, queue, err);
    if (status)
        return status;
    if (tiles->n_tiles == 1)
        return launch_source<T, kAdds, kToFp8PerRow>(args, is_aligned, rounds_sum, queue, err);
    while ((kVecOf<T> << args->group_shift) < tiles->tile_width)
        args->group_shift++;
    return launch_source<T, kAdds, kToFp8PerGroup>(args, is_aligned, rounds_sum, queue, err);
}

// Codes whose scales are not float32, and rows of the others that these kernels do not have, of x
// and of sums: norm_codes.cuh. In files of their own, for compilers have enough to do with this
// one. args has what norm_args_of, set_residual and set_terms say.
enum roped_status roped_cuda_rmsnorm_codes(const struct norm_args &args,
                                           const struct roped_call *call,
                                           const struct roped_tensor *scales,
                                           struct roped_queue *queue, struct roped_error *err);
enum roped_status roped_cuda_add_rmsnorm_codes(const struct norm_args &args,
                                               const struct roped_call *call,
                                               const struct roped_tensor *scales,
                                               struct roped_queue *queue, struct roped_error *err);
