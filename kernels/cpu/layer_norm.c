/*
 * layer_norm.c - layer_norm on the CPU.
 */
#include "ops/layer_norm.h"
#include "cpu/norm.h"

/* Columns of one head, as rows that lie further apart than they are long. */
static struct roped_tensor head_of(const struct roped_tensor *tensor,
                                   int64_t head, int64_t size, int64_t width)
{
    struct roped_tensor part = *tensor;
    if (!roped_tensor_given(tensor))
        return part;
    part.stride = cpu_stride(tensor, width);
    part.data =
        cpu_at(tensor->data, head * size, roped_dtype_bytes(tensor->dtype));
    return part;
}

/* Each head of all rows has weights of its own. */
static void normalize_heads(const struct cpu_norm_call *norm,
                            const struct heads_norm_plan *plan,
                            const struct roped_call *call,
                            struct roped_queue *queue)
{
    const int64_t size = plan->norm.hidden, width = size * plan->heads;
    struct rmsnorm_plan rows = plan->norm;
    rows.n_rows /= plan->heads;
    for (int64_t head = 0; head < plan->heads; head++) {
        const struct roped_tensor x = head_of(norm->x, head, size, width),
                                  y = head_of(norm->y, head, size, width),
                                  weight =
                                      head_of(norm->weight, head, size, width),
                                  bias = head_of(norm->bias, head, size, width);
        const struct cpu_norm_call one = {.plan = &rows,
                                          .x = &x,
                                          .weight = &weight,
                                          .y = &y,
                                          .is_centred = true,
                                          .bias = &bias};
        cpu_norm_rows(&one, call, queue);
    }
}

enum roped_status roped_cpu_layer_norm(const struct roped_call *call,
                                       struct roped_queue *queue,
                                       struct roped_error *err)
{
    const struct heads_norm_plan *plan = (const void *)call->plan;
    struct cpu_norm_call norm = {
        .plan = &plan->norm,
        .x = &call->in[LAYER_NORM_X],
        .weight = &call->in[LAYER_NORM_WEIGHT],
        .y = &call->out[LAYER_NORM_Y],
        .is_centred = true,
        .bias = &call->in[LAYER_NORM_BIAS],
    };
    (void)err;
    if (plan->heads > 1)
        normalize_heads(&norm, plan, call, queue);
    else
        cpu_norm_rows(&norm, call, queue);
    return ROPED_OK;
}
