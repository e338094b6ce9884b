/*
 * rmsnorm.h - ports, parameters and plan of rmsnorm:
 * y = x * rsqrt(mean(x^2) + eps) * (weight_bias + weight), row by row, or head
 * by head of a row, each with its part of the weights. The plan of rmsnorm
 * itself is struct norm_pair_plan.
 *
 * A residual may be F32 beside a narrower x: what is added to it is not rounded
 * then, nor is the sum that is returned.
 */
#ifndef ROPED_OPS_RMSNORM_H
#define ROPED_OPS_RMSNORM_H

#include <roped/op.h>

enum { RMSNORM_X, RMSNORM_WEIGHT };
enum { RMSNORM_Y };

/* Where a result on its way to y is rounded to the type of x. */
enum rmsnorm_rounding {
    RMSNORM_ROUND_ONCE, /* at the end, into the type of y */
    RMSNORM_ROUND_HF,   /* before the weight product too */
    RMSNORM_ROUND_TYPE, /* and after it: y of FP8 */
    RMSNORM_ROUND_SCALE = RMSNORM_ROUND_TYPE /* of rmsnorm: as HF, and 1 / rms
                                                before its product with x */
};

/* Of which sum the norm is, where x + residual is normalised. */
enum rmsnorm_sum_rounding {
    RMSNORM_SUM_ONCE, /* the float32 sum */
    RMSNORM_SUM_TYPE  /* the sum, rounded to the type of x; every step is
                         rounded to it, but for those in F32 */
};

/* What is added first, where there is an addend. */
enum rmsnorm_sum_order {
    RMSNORM_ADDENDS_FIRST, /* (x + addend) + residual, each times its scale */
    RMSNORM_RESIDUAL_FIRST /* (residual + x) + addend */
};

struct rmsnorm_params {
    double eps;
    double weight_bias;
    int32_t rounding;     /* enum rmsnorm_rounding */
    int32_t sum_rounding; /* enum rmsnorm_sum_rounding; of the adding norms */
    int32_t sum_order;    /* enum rmsnorm_sum_order; likewise */
    int32_t reserved;
    double x_scale, residual_scale, addend_scale; /* likewise */
    double sum_scale;                             /* likewise, of their sum */
};

/* Of rmsnorm, layer_norm, and the norms of sums that are not codes. */
struct heads_norm_params {
    struct rmsnorm_params norm;
    int64_t heads; /* of a row */
};

struct rmsnorm_plan {
    int64_t n_rows;
    int64_t hidden;
    float eps;
    float weight_bias;
    int32_t rounding;
    int32_t weight_dtype; /* enum roped_dtype; ROPED_NO_DTYPE: weight is 1 */
    int32_t rounds_sum;   /* bool: RMSNORM_SUM_TYPE, and x is not F32 */
    int32_t sum_order;    /* enum rmsnorm_sum_order */
    /* of the adding norms: what their tensors and the sum are multiplied by */
    float x_scale, residual_scale, addend_scale, sum_scale;
    int32_t has_scales; /* bool: one of them is not 1 */
    int32_t reserved;
};

/* Of layer_norm and of norms of sums. */
struct heads_norm_plan {
    struct rmsnorm_plan norm; /* its rows are heads */
    int64_t heads;            /* of a row */
};

/* One head of each row of a tensor, as rows that lie further apart than they
 * are long; of weights its part. Absent stays absent. */
static inline struct roped_tensor
norm_head_of(const struct roped_tensor *tensor, int64_t head, int64_t heads)
{
    struct roped_tensor part = *tensor;
    if (!roped_tensor_given(tensor))
        return part;
    int64_t width = tensor->dims[tensor->rank - 1], size = width / heads;
    part.dims[part.rank - 1] = size;
    part.stride = tensor->stride ? tensor->stride : width;
    part.data = (char *)tensor->data +
                head * size * (int64_t)roped_dtype_bytes(tensor->dtype);
    return part;
}

#endif
