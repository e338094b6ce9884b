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

/* Pairs of gates and ups are taken apart, and their gradients put together. */
static void gradient_of_pairs(const struct gradient_loop *loop, int64_t row,
                              int64_t i, int64_t n,
                              struct cpu_gated_gradient *of)
{
    const struct act_operand *to = &loop->grad.gate;
    const struct cpu_conversion store = {.from = ROPED_F32,
                                         .to = to->tensor->dtype,
                                         .is_streamed = loop->is_streamed};
    float g[CPU_BLOCK], gate[CPU_BLOCK], up[CPU_BLOCK], pairs[2 * CPU_BLOCK];
    act_load(loop->rows, &loop->grad_y, row, i, n, g);
    act_load(loop->rows, &loop->of.gate, row, i, n, gate);
    act_load(loop->rows, &loop->of.up, row, i, n, up);
    of->dtype = ROPED_F32;
    of->grad_y = g;
    of->gate = of->grad_gate = gate;
    of->up = of->grad_up = up;
    loop->rows->activation->descend(loop->plan, of, n);
    loop->rows->activation->weave(pairs, gate, up, n);
    loop->rows->convert(&store, act_at(to, row, i), pairs, 2 * n);
}

static void gradient_block(const struct gradient_loop *loop, int64_t row,
                           int64_t i, int64_t n)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const enum roped_dtype dtype = loop->grad_y.tensor->dtype;
    struct cpu_gated_gradient of = {.dtype = dtype,
                                    .rounds = plan->rounds ? dtype : ROPED_F32};
    if (plan->interleaved) {
        gradient_of_pairs(loop, row, i, n, &of);
        return;
    }
    of.grad_y = act_at(&loop->grad_y, row, i);
    of.gate = act_at(&loop->of.gate, row, i);
    of.grad_gate = act_at(&loop->grad.gate, row, i);
    if (plan->gated) {
        of.up = act_at(&loop->of.up, row, i);
        of.grad_up = act_at(&loop->grad.up, row, i);
    }
    of.is_streamed = loop->is_streamed;
    of.ahead = act_ahead(&loop->of);
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
