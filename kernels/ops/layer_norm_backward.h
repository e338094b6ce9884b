/*
 * layer_norm_backward.h - ports of layer_norm_backward: with
 * s = 1 / sqrt(variance + eps), n = (x - mean) * s and w = weight_bias +
 * weight,
 *
 *     grad_x = s * (grad_y * w - mean(grad_y * w)
 *                   - n * mean(grad_y * w * n)) + grad_residual
 *     grad_weight = sum of grad_y * n over the rows, grad_bias = sum of grad_y
 *
 * Parameters and plan are those of rmsnorm.
 */
#ifndef ROPED_OPS_LAYER_NORM_BACKWARD_H
#define ROPED_OPS_LAYER_NORM_BACKWARD_H

#include "ops/rmsnorm.h"

enum {
    LAYER_NORM_BACKWARD_GRAD_Y,
    LAYER_NORM_BACKWARD_X,
    LAYER_NORM_BACKWARD_WEIGHT,
    LAYER_NORM_BACKWARD_BIAS,
    LAYER_NORM_BACKWARD_GRAD_RESIDUAL
};
enum {
    LAYER_NORM_BACKWARD_GRAD_X,
    LAYER_NORM_BACKWARD_GRAD_WEIGHT,
    LAYER_NORM_BACKWARD_GRAD_BIAS
};

#endif
