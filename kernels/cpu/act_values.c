/*
 * act_values.c - act(gate) * up, a block at a time through float32.
 */
#include "cpu/act_values.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------- steps */

/* x = T(a * x + b) */
static void step(const struct act_values *of, float *x, float a, float b,
                 int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = a * x[i] + b;
    of->rows->round(of->dtype, x, n);
}

/* x = T(x * y) */
static void step_product(const struct act_values *of, float *x, const float *y,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= y[i];
    of->rows->round(of->dtype, x, n);
}

/* x = T(x + y) */
static void step_sum(const struct act_values *of, float *x, const float *y,
                     int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
    of->rows->round(of->dtype, x, n);
}

static int64_t whole_lanes(int64_t n)
{
    return cpu_ceil_div(n, CPU_LANES) * CPU_LANES;
}

#define ROOT 0x1.988454p-1f /* of 2 / pi */

/* z = ROOT * (x + 0.044715 * x^3), as gelu_new */
static void inside_new(const struct act_values *of, const float *x, float *z,
                       int64_t n)
{
    memcpy(z, x, (size_t)n * sizeof *z);
    step_product(of, z, x, n);
    step_product(of, z, x, n);
    step(of, z, 0.044715f, 0, n);
    step_sum(of, z, x, n);
    step(of, z, ROOT, 0, n);
}

/* z = ROOT * x * (1 + 0.044715 * x * x), as gelu_fast */
static void inside_fast(const struct act_values *of, const float *x, float *z,
                        int64_t n)
{
    float factor[CPU_BLOCK];
    memcpy(factor, x, (size_t)n * sizeof *factor);
    step(of, factor, 0.044715f, 0, n);
    step_product(of, factor, x, n);
    step(of, factor, 1, 1, n);
    memcpy(z, x, (size_t)n * sizeof *z);
    step(of, z, ROOT, 0, n);
    step_product(of, z, factor, n);
}

/* 0.5 * x * (1 + tanh(z)), whose -0 is of no account */
static void gelu_steps(const struct act_values *of, float *x, int64_t n)
{
    float z[CPU_BLOCK] = {0};
    if (of->plan->activation == ACT_GELU_FAST)
        inside_fast(of, x, z, n);
    else
        inside_new(of, x, z, n);
    of->rows->activation->tanh(z, whole_lanes(n));
    of->rows->round(of->dtype, z, n);
    step(of, z, 1, 1, n);
    step(of, x, 0.5f, 0, n);
    step_product(of, x, z, n);
}

/* x * sigmoid(alpha * x) */
static void sigmoid_steps(const struct act_values *of, float *x, int64_t n)
{
    const struct act_and_mul_plan sigmoid = {.activation = ACT_SIGMOID,
                                             .limit = INFINITY};
    float z[CPU_BLOCK] = {0};
    memcpy(z, x, (size_t)n * sizeof *z);
    step(of, z, of->plan->alpha, 0, n);
    const struct cpu_gated gated = {.dtype = ROPED_F32,
                                    .to_dtype = ROPED_F32,
                                    .rounds = of->dtype,
                                    .gate = z,
                                    .to = z};
    of->rows->activation->gate(&sigmoid, &gated, n);
    step_product(of, x, z, n);
}

/* z = e^min(x, eps) - 1 */
static void xielu_power(const struct act_values *of, float eps, const float *x,
                        float *z, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        z[i] = x[i] > eps ? eps : x[i];
    of->rows->activation->expm1(z, whole_lanes(n));
}

/* The sums are of terms that do not take each other's digits. */
static void xielu(const struct act_values *of, float *x, int64_t n)
{
    const struct xielu *by = &of->plan->xielu;
    float z[CPU_BLOCK] = {0};
    xielu_power(of, by->eps, x, z, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > 0 ? x[i] * (by->alpha_p * x[i] + by->slope)
                        : by->alpha_n * z[i] + (by->slope - by->alpha_n) * x[i];
}

/* The same, and its numbers are of type T, too. */
static void xielu_steps(const struct act_values *of, float *x, int64_t n)
{
    const struct xielu *by = &of->plan->xielu;
    float number[] = {by->alpha_p, by->alpha_n, by->slope, by->eps};
    float above[CPU_BLOCK], below[CPU_BLOCK] = {0}, line[CPU_BLOCK];
    of->rows->round(of->dtype, number, 4);
    const float alpha_p = number[0], alpha_n = number[1], slope = number[2];
    memcpy(above, x, (size_t)n * sizeof *above);
    memcpy(line, x, (size_t)n * sizeof *line);
    step(of, line, slope, 0, n);
    step(of, above, alpha_p, 0, n);
    step_product(of, above, x, n);
    step_sum(of, above, line, n);
    xielu_power(of, number[3], x, below, n);
    of->rows->round(of->dtype, below, n);
    for (int64_t i = 0; i < n; i++)
        below[i] -= x[i];
    of->rows->round(of->dtype, below, n);
    step(of, below, alpha_n, 0, n);
    step_sum(of, below, line, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > 0 ? above[i] : below[i];
}

/* Of gates, clamped; and what swiglu_oai adds to up, clamped too. */
static void act_steps(const struct act_values *of, float *gate, float *up,
                      int64_t n)
{
    const struct act_and_mul_plan *plan = of->plan;
    const float limit = plan->limit;
    for (int64_t i = 0; i < n; i++)
        gate[i] = gate[i] > limit ? limit : gate[i];
    if (plan->activation == ACT_XIELU)
        (plan->steps ? xielu_steps : xielu)(of, gate, n);
    else if (plan->activation == ACT_GELU_TANH ||
             plan->activation == ACT_GELU_FAST)
        gelu_steps(of, gate, n);
    else
        sigmoid_steps(of, gate, n);
    if (!plan->gated)
        return;
    for (int64_t i = 0; i < n; i++) {
        const float most = up[i] > limit ? limit : up[i];
        up[i] = most < -limit ? -limit : most;
    }
    if (plan->beta != 0)
        step(of, up, 1, plan->beta, n);
    for (int64_t i = 0; i < n; i++)
        gate[i] *= up[i];
}

/* ------------------------------------------------------------------ blocks */

struct act_values act_values_of(const struct roped_call *call,
                                const struct act_and_mul_plan *plan,
                                const struct cpu_rows *rows)
{
    const struct roped_tensor *x = &call->in[ACT_AND_MUL_X],
                              *gate = &call->in[ACT_AND_MUL_GATE];
    struct act_values values = {
        .rows = rows,
        .plan = plan,
        .dtype = roped_tensor_given(x) ? x->dtype : gate->dtype,
        .operands = act_operands_of(plan, x, gate, &call->in[ACT_AND_MUL_UP])};
    values.ahead = act_ahead(&values.operands);
    return values;
}

/* Activations whose steps are not those of one loop. */
static void store_steps(const struct act_values *of, int64_t row, int64_t i,
                        int64_t n, const struct act_result *to)
{
    const struct cpu_conversion how = {
        .from = ROPED_F32, .to = to->dtype, .is_streamed = to->is_streamed};
    float gate[CPU_BLOCK], up[CPU_BLOCK];
    act_load(of->rows, &of->operands.gate, row, i, n, gate);
    if (of->plan->gated)
        act_load(of->rows, &of->operands.up, row, i, n, up);
    act_steps(of, gate, up, n);
    of->rows->convert(&how, to->data, gate, n);
}

void act_values_store(const struct act_values *of, int64_t row, int64_t i,
                      int64_t n, const struct act_result *to)
{
    const struct act_and_mul_plan *plan = of->plan;
    const struct act_operands *from = &of->operands;
    if (plan->steps || plan->activation == ACT_XIELU) {
        store_steps(of, row, i, n, to);
        return;
    }
    const enum roped_dtype dtype = from->gate.tensor->dtype;
    const struct cpu_gated gated = {
        .dtype = dtype,
        .up_dtype = dtype,
        .to_dtype = to->dtype,
        .rounds = plan->rounds ? of->dtype : ROPED_F32,
        .gate = act_at(&from->gate, row, i),
        .up = plan->gated ? act_at(&from->up, row, i) : NULL,
        .is_pairs = from->gate.step == 2,
        .to = to->data,
        .is_streamed = to->is_streamed,
        .ahead = of->ahead};
    of->rows->activation->gate(plan, &gated, n);
}
