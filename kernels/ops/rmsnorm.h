/*
 * rmsnorm.h - ports, parameters and plan of rmsnorm:
 * y = x * rsqrt(mean(x^2) + eps) * (weight_bias + weight), row by row.
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
    RMSNORM_ROUND_TYPE  /* and after it: y of FP8 */
};

/* Of which sum the norm is, where x + residual is normalised. */
enum rmsnorm_sum_rounding {
    RMSNORM_SUM_ONCE, /* the float32 sum */
    RMSNORM_SUM_TYPE  /* the sum as it is returned, in the type of x; with
                         x_scale or an addend every step is rounded to it */
};

/* What is added first, where there is an addend. */
enum rmsnorm_sum_order {
    RMSNORM_ADDENDS_FIRST, /* (x_scale * x + addend) + residual */
    RMSNORM_RESIDUAL_FIRST /* (residual + x_scale * x) + addend */
};

struct rmsnorm_params {
    double eps;
    double weight_bias;
    int32_t rounding;     /* enum rmsnorm_rounding */
    int32_t sum_rounding; /* enum rmsnorm_sum_rounding; of the adding norms */
    int32_t sum_order;    /* enum rmsnorm_sum_order; likewise */
    int32_t reserved;
    double x_scale; /* likewise */
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
    float x_scale;        /* of the adding norms */
    int32_t reserved;
};

#endif
