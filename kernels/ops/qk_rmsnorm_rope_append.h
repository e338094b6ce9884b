/*
 * qk_rmsnorm_rope_append.h - ports and parameters of
 * qk_rmsnorm_rope_append: qk_rmsnorm_rope, with k and v put into a KV cache as
 * rope_append does.
 */
#ifndef ROPED_OPS_QK_RMSNORM_ROPE_APPEND_H
#define ROPED_OPS_QK_RMSNORM_ROPE_APPEND_H

#include "ops/qk_norm.h"
#include "ops/rope_append.h"

enum { /* those of rope_append, and between its places and positions: */
       QK_RMSNORM_ROPE_APPEND_Q_WEIGHT = ROPE_APPEND_POSITIONS,
       QK_RMSNORM_ROPE_APPEND_K_WEIGHT,
       QK_RMSNORM_ROPE_APPEND_POSITIONS
};

struct qk_rmsnorm_rope_append_params {
    struct rope_append_params append;
    struct rmsnorm_params norm; /* of every head of q and k */
};

#endif
