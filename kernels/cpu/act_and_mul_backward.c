/*
 * act_and_mul_backward.c - gradients of act_and_mul on the CPU: rows over
 * threads, each a block at a time.
 */
#include "ops/act_and_mul_backward.h"
#include "cpu/act_operand.h"

struct gradient_loop {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    struct act_operand grad_y;
    struct act_operands of, grad;
    bool is_streamed;
};

static void gradient_block(const struct gradient_loop *loop, int64_t row,
                           int64_t i, int64_t n)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const enum roped_dtype dtype = loop->grad_y.tensor->dtype;
    struct cpu_gated_gradient of = {.dtype = dtype,
                                    .rounds = plan->rounds ? dtype : ROPED_F32,
                                    .grad_y = act_at(&loop->grad_y, row, i),
                                    .gate = act_at(&loop->of.gate, row, i),
                                    .is_pairs = loop->of.gate.step == 2,
                                    .grad_gate =
                                        act_at(&loop->grad.gate, row, i),
                                    .is_streamed = loop->is_streamed,
                                    .ahead = act_ahead(&loop->of)};
    if (plan->gated) {
        of.up = act_at(&loop->of.up, row, i);
        of.grad_up = act_at(&loop->grad.up, row, i);
    }
    loop->rows->activation->descend(plan, &of, n);
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
