/*
 * rmsnorm_quantize.h - ports, parameters and plan of rmsnorm_quantize: rmsnorm
 * in float32, divided by a scale and rounded to FP8 without a rounding between.
 * With rounding=type it is rounded to the type of x twice on its way, before
 * the weight product and after it, as if rmsnorm had been stored in between.
 *
 * The scale is given (dequant_scale), or made from the values: with
 * a = max |y| over a row, or over each group of it, and M the largest finite
 * FP8 value, scale = max(min(a, scale_ub) / M, 1 / (512 M)). A NaN does not
 * take part in the maximum, so scales are finite and above 0 whatever the
 * values are, and the values beside a NaN keep theirs.
 */
#ifndef ROPED_OPS_RMSNORM_QUANTIZE_H
#define ROPED_OPS_RMSNORM_QUANTIZE_H

#include "ops/codes.h"
#include "ops/rmsnorm.h"

enum { RMSNORM_QUANTIZE_X, RMSNORM_QUANTIZE_WEIGHT };
enum { RMSNORM_QUANTIZE_Y, RMSNORM_QUANTIZE_SCALES };

struct rmsnorm_quantize_params {
    struct rmsnorm_params norm;
    double dequant_scale;
    double scale_ub;      /* unset: NaN */
    int64_t group_size;   /* 0: a scale per row */
    int32_t output_dtype; /* enum roped_dtype */
    int32_t dynamic;      /* bool */
    int32_t scale_layout; /* enum scale_layout */
    int32_t reserved;
};

struct rmsnorm_quantize_plan {
    struct rmsnorm_plan norm;
    int64_t group_size;  /* elements that share a dynamic scale, 0: static */
    int64_t n_groups;    /* of a row */
    int64_t scale_row;   /* elements from a scale to that of the next row */
    int64_t scale_group; /* elements to that of the next group */
    int64_t n_padding;   /* zeros behind the last row's scale of each group */
    float dequant_scale; /* static */
    float scale_ub;      /* dynamic; the largest float where none was given */
    float largest;       /* M */
    float smallest_scale;
};

#endif
