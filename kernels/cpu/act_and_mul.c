/*
 * act_and_mul.c - act_and_mul on the CPU: rows over threads, each a block at a
 * time through float32.
 */
#include "cpu/activation_rows.h"
#include "cpu/cpu_internal.h"

/* Where the elements of a row's gate, or up, are. */
struct operand {
    const struct roped_tensor *tensor;
    int64_t stride, first, step; /* elements */
};

struct act_loop {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    const struct roped_tensor *y;
    struct operand gate, up;
    bool is_streamed;
};

/* Elements [i, i + n) of a row, and zeros up to a multiple of CPU_LANES. */
static void load_block(const struct act_loop *loop, const struct operand *from,
                       int64_t row, int64_t i, int64_t n, float *to)
{
    float pairs[2 * CPU_BLOCK];
    const enum roped_dtype dtype = from->tensor->dtype;
    const void *at = cpu_at(from->tensor->data,
                            row * from->stride + from->first + i * from->step,
                            roped_dtype_bytes(dtype));
    if (from->step == 1) {
        loop->rows->widen(dtype, to, at, n);
    } else { /* the last pair's second element may be behind the row's end */
        loop->rows->widen(dtype, pairs, at, 2 * n - 1);
        loop->rows->activation->pick(to, pairs, n);
    }
    for (; n % CPU_LANES > 0; n++)
        to[n] = 0;
}

static void act_block(const struct act_loop *loop, int64_t row, int64_t i,
                      int64_t n)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const enum roped_dtype dtype = loop->y->dtype;
    const struct cpu_conversion narrow = {.from = ROPED_F32, .to = dtype},
                                store = {.from = ROPED_F32,
                                         .to = dtype,
                                         .is_streamed = loop->is_streamed};
    const int64_t whole = cpu_ceil_div(n, CPU_LANES) * CPU_LANES;
    float gate[CPU_BLOCK], up[CPU_BLOCK];
    uint16_t rounded[CPU_BLOCK];
    load_block(loop, &loop->gate, row, i, n, gate);
    loop->rows->activation->activate(plan, gate, whole);
    if (plan->rounds) {
        loop->rows->convert(&narrow, rounded, gate, n);
        loop->rows->widen(dtype, gate, rounded, n);
    }
    if (plan->gated) {
        load_block(loop, &loop->up, row, i, n, up);
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

static struct operand operand_of(const struct roped_tensor *tensor,
                                 int64_t width, int64_t first, int64_t step)
{
    return (struct operand){tensor, cpu_stride(tensor, width), first, step};
}

static void find_operands(const struct roped_call *call, struct act_loop *loop)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const struct roped_tensor *x = &call->in[ACT_AND_MUL_X];
    const int64_t h = plan->width;
    if (!roped_tensor_given(x)) {
        loop->gate = operand_of(&call->in[ACT_AND_MUL_GATE], h, 0, 1);
        loop->up = operand_of(&call->in[ACT_AND_MUL_UP], h, 0, 1);
    } else if (!plan->gated) {
        loop->gate = operand_of(x, h, 0, 1);
    } else if (plan->interleaved) {
        loop->gate = operand_of(x, 2 * h, 0, 2);
        loop->up = operand_of(x, 2 * h, 1, 2);
    } else {
        loop->gate = operand_of(x, 2 * h, plan->gate_second ? h : 0, 1);
        loop->up = operand_of(x, 2 * h, plan->gate_second ? 0 : h, 1);
    }
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
    find_operands(call, &loop);
    cpu_for(queue, bytes, loop.plan->n_rows, act_rows, &loop);
    return ROPED_OK;
}
