/*
 * act_and_mul.c - act_and_mul on the CPU: rows over threads, each a block at a
 * time through float32.
 */
#include "cpu/act_operand.h"

struct act_loop {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    const struct roped_tensor *y;
    struct act_operands of;
    bool is_streamed;
};

static void act_block(const struct act_loop *loop, int64_t row, int64_t i,
                      int64_t n)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const enum roped_dtype dtype = loop->y->dtype;
    const struct cpu_conversion store = {
        .from = ROPED_F32, .to = dtype, .is_streamed = loop->is_streamed};
    const int64_t whole = cpu_ceil_div(n, CPU_LANES) * CPU_LANES;
    float gate[CPU_BLOCK], up[CPU_BLOCK];
    act_load(loop->rows, &loop->of.gate, row, i, n, gate);
    loop->rows->activation->activate(plan, gate, whole);
    if (plan->rounds)
        cpu_round(loop->rows, dtype, gate, n);
    if (plan->gated) {
        act_load(loop->rows, &loop->of.up, row, i, n, up);
        loop->rows->activation->multiply(plan, gate, up, whole);
    }
    loop->rows->convert(&store,
                        cpu_at(loop->y->data,
                               row * cpu_stride(loop->y, plan->width) + i,
                               roped_dtype_bytes(dtype)),
                        gate, n);
}

static void act_rows(void *context, int64_t begin, int64_t end)
{
    const struct act_loop *loop = context;
    const int64_t width = loop->plan->width;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < width; i += CPU_BLOCK)
            act_block(loop, row, i, cpu_smaller(width - i, CPU_BLOCK));
}

enum roped_status roped_cpu_act_and_mul(const struct roped_call *call,
                                        struct roped_queue *queue,
                                        struct roped_error *err)
{
    const int64_t bytes = roped_call_bytes(call);
    struct act_loop loop = {.rows = queue->backend->rows,
                            .plan = (const void *)call->plan,
                            .y = &call->out[ACT_AND_MUL_Y],
                            .is_streamed = cpu_is_large(queue, bytes)};
    (void)err;
    loop.of =
        act_operands_of(loop.plan, &call->in[ACT_AND_MUL_X],
                        &call->in[ACT_AND_MUL_GATE], &call->in[ACT_AND_MUL_UP]);
    cpu_for(queue, bytes, loop.plan->n_rows, act_rows, &loop);
    return ROPED_OK;
}
