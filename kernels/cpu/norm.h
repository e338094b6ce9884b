/*
 * norm.h - the one norm of the CPU backend, for every norm operator. What
 * differs is where a row comes from (x, or x + residual) and where the float32
 * result goes (rounded to the type of y, or divided by a scale into codes).
 */
#ifndef ROPED_CPU_NORM_H
#define ROPED_CPU_NORM_H

#include "cpu/cpu_internal.h"
#include "ops/rmsnorm_quantize.h"

struct cpu_norm_call {
    const struct rmsnorm_plan *plan;
    const struct roped_tensor *x;
    const struct roped_tensor *weight;
    const struct roped_tensor *y;

    /* (optional, both or none) z = x + residual is normalised, and stored;
     * where plan->rounds_sum as it is stored */
    const struct roped_tensor *residual;
    const struct roped_tensor *residual_out;
    const struct roped_tensor *addend; /* (optional) to z: cpu_norm_sums */

    /* (optional) like x, and added to the norm */
    const struct roped_tensor *added;
    bool rounds_norm; /* which is rounded to its type first */

    int64_t n_heads; /* (optional) rows are heads in turn, with weights of their
                        own: cpu_norm_sums */

    /* The mean is subtracted first, and bias, where one is given, added at the
     * end. y is not FP8. */
    bool is_centred;
    const struct roped_tensor *bias;

    /* (optional) y has codes; scales: absent where the scale is given */
    const struct rmsnorm_quantize_plan *quantize;
    const struct roped_tensor *scales;
};

/* Normalises every row, over the threads of the backend. */
void cpu_norm_rows(const struct cpu_norm_call *norm,
                   const struct roped_call *call, struct roped_queue *queue);

/* The same where residual is given, with x_scale and addend; and of any codes.
 */
ROPED_MUST_CHECK enum roped_status
cpu_norm_sums(const struct cpu_norm_call *norm, const struct roped_call *call,
              struct roped_queue *queue, struct roped_error *err);

/* Either of them, head by head, as the plan says; norm->plan is of no account.
 */
ROPED_MUST_CHECK enum roped_status
cpu_norm_heads(const struct cpu_norm_call *norm,
               const struct heads_norm_plan *plan,
               const struct roped_call *call, struct roped_queue *queue,
               struct roped_error *err);

#endif
