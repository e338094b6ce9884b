/*
 * qk_rmsnorm_rope_append.c - qk_rmsnorm_rope_append on the CPU: the loop of
 * rope_append, with heads that are normalised.
 */
#include "ops/qk_rmsnorm_rope_append.h"
#include "cpu/append.h"

enum roped_status
roped_cpu_qk_rmsnorm_rope_append(const struct roped_call *call,
                                 struct roped_queue *queue,
                                 struct roped_error *err)
{
    const struct qk_rmsnorm_rope_append_plan *plan = (const void *)call->plan;
    struct cpu_head_norm norm;
    enum roped_status status =
        cpu_head_norm_of(&call->in[QK_RMSNORM_ROPE_APPEND_Q_WEIGHT],
                         &plan->append.rope, &plan->norm, queue, &norm, err);
    if (!status)
        cpu_append(call, queue, &plan->append, &norm);
    return status;
}
