/*
 * gated_rmsnorm.h - ports and parameters of gated_rmsnorm: rmsnorm of x beside
 * a gate, as state-space models and linear attention have it behind what they
 * mix. The plan is struct norm_pair_plan.
 */
#ifndef ROPED_OPS_GATED_RMSNORM_H
#define ROPED_OPS_GATED_RMSNORM_H

#include "ops/norm_pair.h"

enum { GATED_RMSNORM_X, GATED_RMSNORM_GATE, GATED_RMSNORM_WEIGHT };
enum { GATED_RMSNORM_Y };

struct gated_rmsnorm_params {
    struct rmsnorm_params norm;
    int64_t group_size;      /* 0: a row is one group */
    int32_t gate_activation; /* 0 silu, 1 sigmoid */
    int32_t gate_first;      /* bool */
};

#endif
