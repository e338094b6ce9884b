/*
 * add_rmsnorm_quantize.h - ports of add_rmsnorm_quantize: z = x + residual in
 * float32, returned rounded as the next residual; y is rmsnorm of z before that
 * rounding, or with sum_rounding=type after it, as codes. Parameters and plan
 * are those of rmsnorm_quantize.
 */
#ifndef ROPED_OPS_ADD_RMSNORM_QUANTIZE_H
#define ROPED_OPS_ADD_RMSNORM_QUANTIZE_H

#include "ops/rmsnorm_quantize.h"

enum {
    ADD_RMSNORM_QUANTIZE_X,
    ADD_RMSNORM_QUANTIZE_RESIDUAL,
    ADD_RMSNORM_QUANTIZE_WEIGHT,
    ADD_RMSNORM_QUANTIZE_ADDEND,
    ADD_RMSNORM_QUANTIZE_GLOBAL_SCALE
};
enum {
    ADD_RMSNORM_QUANTIZE_Y,
    ADD_RMSNORM_QUANTIZE_RESIDUAL_OUT,
    ADD_RMSNORM_QUANTIZE_SCALES
};

#endif
