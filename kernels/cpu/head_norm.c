/*
 * head_norm.c - weights of heads as the row loops want them.
 */
#include "cpu/head_norm.h"

enum roped_status cpu_head_norm_of(const struct roped_tensor weight[2],
                                   const struct rope_plan *rope,
                                   const struct qk_norm_plan *plan,
                                   struct roped_queue *queue,
                                   struct cpu_head_norm *out,
                                   struct roped_error *err)
{
    const int64_t heads[2] = {rope->q_heads, rope->k_heads};
    int64_t d =
        cpu_ceil_div(rope->head_dim, CPU_WEIGHTS) * CPU_WEIGHTS; /* room */
    void *scratch;
    enum roped_status status =
        cpu_scratch(queue, (size_t)(2 * d) * sizeof(float), &scratch, err);
    if (status)
        return status;
    *out = (struct cpu_head_norm){
        .eps = plan->eps, .rounds_product = plan->rounding == RMSNORM_ROUND_HF};
    for (int i = 0; i < 2; i++) {
        float *with_bias = (float *)scratch + i * d;
        if (heads[i] > 0)
            queue->backend->rows->fill_weight(
                (enum roped_dtype)plan->weight_dtype, with_bias, weight[i].data,
                plan->weight_bias, rope->head_dim);
        out->weight[i] = with_bias;
    }
    return ROPED_OK;
}
