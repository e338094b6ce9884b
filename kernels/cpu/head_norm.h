/*
 * head_norm.h - how heads of q and k are normalised before they rotate.
 */
#ifndef ROPED_CPU_HEAD_NORM_H
#define ROPED_CPU_HEAD_NORM_H

#include "cpu/heads.h"
#include "ops/qk_norm.h"

struct cpu_head_norm {
    const float *weight[2]; /* of the elements of q and k; NULL: no norm */
    float eps;
    bool rounds_product;
};

/* The weights of q and k, of a call, bias inside, in the queue's scratch. */
enum roped_status cpu_head_norm_of(const struct roped_tensor weight[2],
                                   const struct rope_plan *rope,
                                   const struct qk_norm_plan *plan,
                                   struct roped_queue *queue,
                                   struct cpu_head_norm *out,
                                   struct roped_error *err);

#endif
