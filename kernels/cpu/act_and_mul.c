/*
 * act_and_mul.c - act_and_mul on the CPU: rows over threads, each a block at a
 * time through float32.
 */
#include "cpu/act_values.h"

struct act_loop {
    struct act_values values;
    const struct roped_tensor *y;
    bool is_streamed;
};

static void act_block(const struct act_loop *loop, int64_t row, int64_t i,
                      int64_t n)
{
    const struct roped_tensor *y = loop->y;
    const int64_t at = row * cpu_stride(y, loop->values.plan->width) + i;
    const struct act_result to = {
        y->dtype, loop->is_streamed,
        cpu_at(y->data, at, roped_dtype_bytes(y->dtype))};
    act_values_store(&loop->values, row, i, n, &to);
}

static void act_rows(void *context, int64_t begin, int64_t end)
{
    const struct act_loop *loop = context;
    const int64_t width = loop->values.plan->width;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < width; i += CPU_BLOCK)
            act_block(loop, row, i, cpu_smaller(width - i, CPU_BLOCK));
}

enum roped_status roped_cpu_act_and_mul(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const void *)call->plan;
    const int64_t bytes = roped_call_bytes(call);
    struct act_loop loop = {.values =
                                act_values_of(call, plan, queue->backend->rows),
                            .y = &call->out[ACT_AND_MUL_Y],
                            .is_streamed = cpu_is_large(queue, bytes)};
    (void)err;
    cpu_for(queue, bytes, plan->n_rows, act_rows, &loop);
    return ROPED_OK;
}
