/*
 * rmsnorm_add.h - ports of rmsnorm_add: residual + rmsnorm(x), the sum of a
 * transformer block whose norm stands behind what it adds. Parameters are those
 * of rmsnorm, with sum_rounding; the plan is struct norm_pair_plan.
 */
#ifndef ROPED_OPS_RMSNORM_ADD_H
#define ROPED_OPS_RMSNORM_ADD_H

#include "ops/norm_pair.h"

enum { RMSNORM_ADD_X, RMSNORM_ADD_RESIDUAL, RMSNORM_ADD_WEIGHT };
enum { RMSNORM_ADD_RESIDUAL_OUT };

#endif
