/*
 * norm_pair.h - plan of the RMS norms that have a second tensor of rows beside
 * x, a residual that the norm is added to, or a gate; and of those that have
 * none, of heads or with a rounded scale.
 */
#ifndef ROPED_OPS_NORM_PAIR_H
#define ROPED_OPS_NORM_PAIR_H

#include "ops/act_and_mul.h"
#include "ops/rmsnorm.h"

/* What is done with the second tensor, and when. */
enum norm_pair {
    NORM_THEN_ADD,  /* norm(x) + second */
    GATE_THEN_NORM, /* norm(x * act(second)) */
    NORM_THEN_GATE, /* norm(x) * act(second) */
    NORM_ALONE      /* norm(x) */
};

struct norm_pair_plan {
    struct rmsnorm_plan norm; /* its rows are groups, each normalised alone */
    int64_t n_groups;         /* of a row of the tensors */
    int32_t pair;             /* enum norm_pair */
    int32_t activation;       /* enum activation: silu or sigmoid */
    int32_t rounds_norm;      /* bool: to T behind the weight product too */
    int32_t rounds_scale;     /* bool: 1 / rms to T; of NORM_ALONE */
};

#endif
