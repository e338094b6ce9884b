/*
 * qk_norm.h - the norm of every head of q and k over its width: what operators
 * that rotate the heads then share.
 */
#ifndef ROPED_OPS_QK_NORM_H
#define ROPED_OPS_QK_NORM_H

#include "ops/heads_plan.h"
#include "ops/norm.h"

/* clang-format off */
/* Inputs q_weight and k_weight, of type W. */
#define QK_NORM_INPUTS \
    {"q_weight", "W", "d", ROPED_OPTIONAL, .doc = "gain per element of a query head; absent: 1"}, \
    {"k_weight", "W", "d", ROPED_OPTIONAL, .doc = "gain per element of a key head"}
/* With k both heads have a weight or none has; weight is q_weight's port. */
#define QK_NORM_GIVEN(k, weight) \
    {.with = ROPED_INPUT((weight) + 1), .all = ROPED_INPUT(k)}, \
    {.with = ROPED_INPUT(k) | ROPED_INPUT(weight), .all = ROPED_INPUT((weight) + 1)}, \
    {.with = ROPED_INPUT(k) | ROPED_INPUT((weight) + 1), .all = ROPED_INPUT(weight)}
/* clang-format on */

/* Adds the norm to the parts of q and k; weight_port is q's, k's follows. */
ROPED_MUST_CHECK enum roped_status
qk_norm_plan(const struct roped_call *call, int weight_port,
             const struct rmsnorm_params *params, struct heads_plan *plan,
             struct roped_error *err);

#endif
