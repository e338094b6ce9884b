/*
 * act_and_mul.c - act_and_mul on the CPU: rows over threads, each a block at a
 * time through float32.
 */
#include "cpu/act_operand.h"

#include <math.h>
#include <string.h>

struct act_loop {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    const struct roped_tensor *y;
    struct act_operands of;
    bool is_streamed;
};

/* ------------------------------------------------------------------- steps */

/* x = T(a * x + b) */
static void step(const struct act_loop *loop, float *x, float a, float b,
                 int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = a * x[i] + b;
    cpu_round(loop->rows, loop->y->dtype, x, n);
}

/* x = T(x * y) */
static void step_product(const struct act_loop *loop, float *x, const float *y,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= y[i];
    cpu_round(loop->rows, loop->y->dtype, x, n);
}

/* 0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3))), whose -0 is of no account */
static void gelu_steps(const struct act_loop *loop, float *x, int64_t n)
{
    const enum roped_dtype dtype = loop->y->dtype;
    float z[CPU_BLOCK] = {0};
    memcpy(z, x, (size_t)n * sizeof *z);
    step_product(loop, z, x, n);
    step_product(loop, z, x, n);
    step(loop, z, 0.044715f, 0, n);
    for (int64_t i = 0; i < n; i++)
        z[i] += x[i];
    cpu_round(loop->rows, dtype, z, n);
    step(loop, z, 0x1.988454p-1f, 0, n);
    loop->rows->activation->tanh(z, cpu_ceil_div(n, CPU_LANES) * CPU_LANES);
    cpu_round(loop->rows, dtype, z, n);
    step(loop, z, 1, 1, n);
    step(loop, x, 0.5f, 0, n);
    step_product(loop, x, z, n);
}

/* x * sigmoid(alpha * x) */
static void sigmoid_steps(const struct act_loop *loop, float *x, int64_t n)
{
    const struct act_and_mul_plan sigmoid = {.activation = ACT_SIGMOID,
                                             .limit = INFINITY};
    float z[CPU_BLOCK] = {0};
    memcpy(z, x, (size_t)n * sizeof *z);
    step(loop, z, loop->plan->alpha, 0, n);
    loop->rows->activation->activate(&sigmoid, z,
                                     cpu_ceil_div(n, CPU_LANES) * CPU_LANES);
    cpu_round(loop->rows, loop->y->dtype, z, n);
    step_product(loop, x, z, n);
}

/* Of gates, clamped; and what swiglu_oai adds to up, clamped too. */
static void act_steps(const struct act_loop *loop, float *gate, float *up,
                      int64_t n)
{
    const struct act_and_mul_plan *plan = loop->plan;
    const float limit = plan->limit;
    for (int64_t i = 0; i < n; i++)
        gate[i] = gate[i] > limit ? limit : gate[i];
    if (plan->activation == ACT_GELU_TANH)
        gelu_steps(loop, gate, n);
    else
        sigmoid_steps(loop, gate, n);
    if (!plan->gated)
        return;
    for (int64_t i = 0; i < n; i++) {
        const float most = up[i] > limit ? limit : up[i];
        up[i] = most < -limit ? -limit : most;
    }
    if (plan->beta != 0)
        step(loop, up, 1, plan->beta, n);
    for (int64_t i = 0; i < n; i++)
        gate[i] *= up[i];
}

/* ------------------------------------------------------------------ blocks */

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
    if (plan->gated)
        act_load(loop->rows, &loop->of.up, row, i, n, up);
    if (plan->steps) {
        act_steps(loop, gate, up, n);
    } else {
        loop->rows->activation->activate(plan, gate, whole);
        if (plan->rounds)
            cpu_round(loop->rows, dtype, gate, n);
        if (plan->gated)
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
