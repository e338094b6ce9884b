/*
 * layer_norm.h - ports of layer_norm, row by row:
 * y = (x - mean(x)) / sqrt(variance + eps) * (weight_bias + weight) + bias,
 * with the variance as the mean of (x - mean(x))^2. Parameters are
 * those of rmsnorm, with its heads.
 */
#ifndef ROPED_OPS_LAYER_NORM_H
#define ROPED_OPS_LAYER_NORM_H

#include "ops/rmsnorm.h"

enum { LAYER_NORM_X, LAYER_NORM_WEIGHT, LAYER_NORM_BIAS };
enum { LAYER_NORM_Y };

#endif
