/*
 * act_and_mul_backward.c - gradients of act_and_mul on the CPU: rows over
 * threads, each a block at a time through float32.
 */
#include "ops/act_and_mul_backward.h"
#include "cpu/act_operand.h"

#include <string.h>

struct gradient_loop {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    struct act_operand grad_y;
    struct act_operands of, grad;
    bool is_streamed;
};

static void store_block(const struct gradient_loop *loop, int64_t row,
                        int64_t i, int64_t n, const float *gate,
                        const float *up)
{
    const struct act_operands *to = &loop->grad;
    const struct cpu_conversion store = {.from = ROPED_F32,
                                         .to = to->gate.tensor->dtype,
                                         .is_streamed = loop->is_streamed};
    float pairs[2 * CPU_BLOCK];
    if (loop->plan->interleaved) {
        loop->rows->activation->weave(pairs, gate, up, n);
        loop->rows->convert(&store, act_at(&to->gate, row, i), pairs, 2 * n);
        return;
    }
    loop->rows->convert(&store, act_at(&to->gate, row, i), gate, n);
    if (loop->plan->gated)
        loop->rows->convert(&store, act_at(&to->up, row, i), up, n);
}

static void gradient_block(const struct gradient_loop *loop, int64_t row,
                           int64_t i, int64_t n)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const struct cpu_activation_rows *rows = loop->rows->activation;
    const enum roped_dtype dtype = loop->grad_y.tensor->dtype;
    const int64_t whole = cpu_ceil_div(n, CPU_LANES) * CPU_LANES;
    float g[CPU_BLOCK], act[CPU_BLOCK], up[CPU_BLOCK];
    float slope[CPU_BLOCK], to_act[CPU_BLOCK];
    act_load(loop->rows, &loop->grad_y, row, i, n, g);
    act_load(loop->rows, &loop->of.gate, row, i, n, act);
    rows->differentiate(plan, act, slope, whole);
    memcpy(to_act, g, (size_t)whole * sizeof *g);
    if (plan->gated) {
        act_load(loop->rows, &loop->of.up, row, i, n, up);
        rows->multiply(plan, to_act, up, whole);
    }
    if (plan->rounds) {
        loop->rows->round(dtype, act, n);
        loop->rows->round(dtype, to_act, n);
    }
    rows->descend(slope, to_act, whole);
    if (plan->gated)
        rows->multiply_within(plan, act, g, up, whole);
    store_block(loop, row, i, n, slope, act);
}

static void gradient_rows(void *context, int64_t begin, int64_t end)
{
    const struct gradient_loop *loop = context;
    const int64_t width = loop->plan->width;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < width; i += CPU_BLOCK)
            gradient_block(loop, row, i, cpu_smaller(width - i, CPU_BLOCK));
}

enum roped_status roped_cpu_act_and_mul_backward(const struct roped_call *call,
                                                 struct roped_queue *queue,
                                                 struct roped_error *err)
{
    const int64_t bytes = roped_call_bytes(call);
    const struct act_and_mul_plan *plan = (const void *)call->plan;
    const struct roped_tensor *grad_y = &call->in[ACT_BACKWARD_GRAD_Y];
    struct gradient_loop loop = {
        .rows = queue->backend->rows,
        .plan = plan,
        .grad_y = {grad_y, cpu_stride(grad_y, plan->width), 0, 1},
        .of = act_operands_of(plan, &call->in[ACT_BACKWARD_X],
                              &call->in[ACT_BACKWARD_GATE],
                              &call->in[ACT_BACKWARD_UP]),
        .grad = act_operands_of(plan, &call->out[ACT_BACKWARD_GRAD_X],
                                &call->out[ACT_BACKWARD_GRAD_GATE],
                                &call->out[ACT_BACKWARD_GRAD_UP]),
        .is_streamed = cpu_is_large(queue, bytes)};
    (void)err;
    cpu_for(queue, bytes, plan->n_rows, gradient_rows, &loop);
    return ROPED_OK;
}
