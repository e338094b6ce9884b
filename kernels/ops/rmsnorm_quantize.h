/*
 * rmsnorm_quantize.h - ports, parameters and plan of rmsnorm_quantize: rmsnorm
 * in float32, as codes that quantize makes, without a rounding between. With
 * rounding=type it is rounded to the type of x twice on its way, before the
 * weight product and after it, as if rmsnorm had been stored in between.
 *
 * What scales and codes are: quantize.h. A scale is given, or that of a row, or
 * of each group of it, which group_size says; that of MX and NVFP4 is always
 * dynamic.
 */
#ifndef ROPED_OPS_RMSNORM_QUANTIZE_H
#define ROPED_OPS_RMSNORM_QUANTIZE_H

#include "ops/quantize.h"
#include "ops/rmsnorm.h"

enum {
    RMSNORM_QUANTIZE_X,
    RMSNORM_QUANTIZE_WEIGHT,
    RMSNORM_QUANTIZE_GLOBAL_SCALE
};
enum { RMSNORM_QUANTIZE_Y, RMSNORM_QUANTIZE_SCALES };

struct rmsnorm_quantize_params {
    struct quantize_params quantize; /* group_size 0: a scale per row */
    struct rmsnorm_params norm;
};

struct rmsnorm_quantize_plan {
    struct rmsnorm_plan norm;
    struct quantize_plan quantize;
    int32_t is_fp8; /* bool: and no scale is rounded, which the CPU has loops
                       of its own for */
    int32_t reserved;
};

#endif
