/*
 * add_rmsnorm.h - ports of add_rmsnorm: z = x + residual in float32, returned
 * rounded as the next residual; y is rmsnorm of z before that rounding, or with
 * sum_rounding=type after it. x_scale and addend: norm.h. Parameters and plan
 * are those of rmsnorm.
 */
#ifndef ROPED_OPS_ADD_RMSNORM_H
#define ROPED_OPS_ADD_RMSNORM_H

#include "ops/rmsnorm.h"

enum {
    ADD_RMSNORM_X,
    ADD_RMSNORM_RESIDUAL,
    ADD_RMSNORM_WEIGHT,
    ADD_RMSNORM_ADDEND
};
enum { ADD_RMSNORM_Y, ADD_RMSNORM_RESIDUAL_OUT };

#endif
