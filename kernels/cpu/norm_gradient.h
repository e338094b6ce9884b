/*
 * norm_gradient.h - gradients of norms on the CPU, for rmsnorm_backward and
 * layer_norm_backward.
 */
#ifndef ROPED_CPU_NORM_GRADIENT_H
#define ROPED_CPU_NORM_GRADIENT_H

#include "cpu/cpu_internal.h"
#include "ops/rmsnorm.h"

struct cpu_norm_gradient {
    const struct roped_tensor *grad_y, *x, *weight, *grad_residual;
    const struct roped_tensor *grad_x, *grad_weight;

    /* The norm subtracts the mean; bias and grad_bias are NULL where not. */
    bool is_centred;
    const struct roped_tensor *bias, *grad_bias;
};

ROPED_MUST_CHECK enum roped_status
cpu_norm_gradient(const struct cpu_norm_gradient *of,
                  const struct roped_call *call, struct roped_queue *queue,
                  struct roped_error *err);

#endif
