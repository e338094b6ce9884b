/*
 * rmsnorm.c - rmsnorm on the CPU.
 */
#include "cpu/norm.h"
#include "cpu/norm_pair.h"

enum roped_status roped_cpu_rmsnorm(const struct roped_call *call,
                                    struct roped_queue *queue,
                                    struct roped_error *err)
{
    const struct norm_pair_plan *plan = (const void *)call->plan;
    const struct cpu_norm_pair pair = {
        .plan = plan,
        .x = &call->in[RMSNORM_X],
        .weight = &call->in[RMSNORM_WEIGHT],
        .out = &call->out[RMSNORM_Y],
    };
    struct cpu_norm_call norm = {
        .plan = &plan->norm,
        .x = &call->in[RMSNORM_X],
        .weight = &call->in[RMSNORM_WEIGHT],
        .y = &call->out[RMSNORM_Y],
    };
    const struct heads_norm_plan heads = {plan->norm, plan->n_groups};
    if (plan->n_groups > 1 && !plan->rounds_scale &&
        plan->norm.hidden <= CPU_BLOCK)
        return cpu_norm_heads(&norm, &heads, call, queue, err);
    if (plan->n_groups > 1 || plan->rounds_scale)
        return cpu_norm_pair(&pair, call, queue, err);
    cpu_norm_rows(&norm, call, queue);
    return ROPED_OK;
}
