/*
 * add_layer_norm.h - ports of add_layer_norm: z = x + residual in float32,
 * returned rounded as the next residual; y is layer_norm of z before that
 * rounding, or with sum_rounding=type after it. Parameters and plan are those
 * of rmsnorm.
 */
#ifndef ROPED_OPS_ADD_LAYER_NORM_H
#define ROPED_OPS_ADD_LAYER_NORM_H

#include "ops/rmsnorm.h"

enum {
    ADD_LAYER_NORM_X,
    ADD_LAYER_NORM_RESIDUAL,
    ADD_LAYER_NORM_WEIGHT,
    ADD_LAYER_NORM_BIAS,
    ADD_LAYER_NORM_ADDEND
};
enum { ADD_LAYER_NORM_Y, ADD_LAYER_NORM_RESIDUAL_OUT };

#endif
