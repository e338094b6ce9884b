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
/* clang-format on */

#define QK_NORM_RULE_DOC                                                       \
    "q_weight and k_weight both or neither, of q's type, or F32 beside "       \
    "narrow q, or F16 or BF16 beside q of F32"

/* Both weights or none, each of head_dim; weight_port is q's, k's follows. q
 * and k are the first two inputs. */
ROPED_MUST_CHECK enum roped_status qk_norm_rule(const struct roped_call *call,
                                                int weight_port,
                                                int64_t head_dim,
                                                struct roped_error *err);

/* Adds the norm to the parts of q and k; the same ports. */
ROPED_MUST_CHECK enum roped_status
qk_norm_plan(const struct roped_call *call, int weight_port,
             const struct rmsnorm_params *params, struct heads_plan *plan,
             struct roped_error *err);

#endif
