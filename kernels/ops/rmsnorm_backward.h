/*
 * rmsnorm_backward.h - ports of rmsnorm_backward: with s = 1 / sqrt(mean(x^2) +
 * eps), n = x * s and w = weight_bias + weight,
 *
 *     grad_x = s * (grad_y * w - n * mean(grad_y * w * n)) + grad_residual
 *     grad_weight = sum of grad_y * n over the rows
 *
 * Parameters and plan are those of rmsnorm.
 */
#ifndef ROPED_OPS_RMSNORM_BACKWARD_H
#define ROPED_OPS_RMSNORM_BACKWARD_H

#include "ops/rmsnorm.h"

enum {
    RMSNORM_BACKWARD_GRAD_Y,
    RMSNORM_BACKWARD_X,
    RMSNORM_BACKWARD_WEIGHT,
    RMSNORM_BACKWARD_GRAD_RESIDUAL
};
enum { RMSNORM_BACKWARD_GRAD_X, RMSNORM_BACKWARD_GRAD_WEIGHT };

#endif
