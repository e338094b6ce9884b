/*
 * qk_rmsnorm_rope.h - ports and parameters of qk_rmsnorm_rope: each head
 * of q and k normalised over its width, weighted, then rotated.
 */
#ifndef ROPED_OPS_QK_RMSNORM_ROPE_H
#define ROPED_OPS_QK_RMSNORM_ROPE_H

#include "ops/qk_norm.h"
#include "ops/rope.h"

enum {
    QK_RMSNORM_ROPE_Q, /* q and k are the first two ports, as rope's */
    QK_RMSNORM_ROPE_K,
    QK_RMSNORM_ROPE_Q_WEIGHT,
    QK_RMSNORM_ROPE_K_WEIGHT,
    QK_RMSNORM_ROPE_POSITIONS /* from here on in the order of rope's ports */
};
enum { QK_RMSNORM_ROPE_Q_OUT, QK_RMSNORM_ROPE_K_OUT };

struct qk_rmsnorm_rope_params {
    struct rope_params rope;
    struct rmsnorm_params norm; /* of every head */
};

#endif
