/*
 * act_operand.c - where gate and up are, and blocks of them as float32.
 */
#include "cpu/act_operand.h"

static struct act_operand operand_of(const struct roped_tensor *tensor,
                                     int64_t width, int64_t first, int64_t step)
{
    return (struct act_operand){tensor, cpu_stride(tensor, width), first, step};
}

struct act_operands act_operands_of(const struct act_and_mul_plan *plan,
                                    const struct roped_tensor *x,
                                    const struct roped_tensor *gate,
                                    const struct roped_tensor *up)
{
    const int64_t h = plan->width;
    if (!roped_tensor_given(x))
        return (struct act_operands){operand_of(gate, h, 0, 1),
                                     operand_of(up, h, 0, 1)};
    if (!plan->gated)
        return (struct act_operands){.gate = operand_of(x, h, 0, 1)};
    if (plan->interleaved)
        return (struct act_operands){operand_of(x, 2 * h, 0, 2),
                                     operand_of(x, 2 * h, 1, 2)};
    return (struct act_operands){
        operand_of(x, 2 * h, plan->gate_second ? h : 0, 1),
        operand_of(x, 2 * h, plan->gate_second ? 0 : h, 1)};
}

void *act_at(const struct act_operand *of, int64_t row, int64_t i)
{
    return cpu_at(of->tensor->data, row * of->stride + of->first + i * of->step,
                  roped_dtype_bytes(of->tensor->dtype));
}

int64_t act_ahead(const struct act_operands *of)
{
    const struct act_operand *gate = &of->gate;
    const int64_t bytes =
        gate->stride * (int64_t)roped_dtype_bytes(gate->tensor->dtype);
    if (!of->up.tensor || of->up.tensor->data != gate->tensor->data || !bytes)
        return CPU_AHEAD;
    return cpu_ceil_div(CPU_AHEAD, bytes) * bytes;
}

void act_load(const struct cpu_rows *rows, const struct act_operand *from,
              int64_t row, int64_t i, int64_t n, float *to)
{
    float pairs[2 * CPU_BLOCK];
    const enum roped_dtype dtype = from->tensor->dtype;
    const void *at = act_at(from, row, i);
    if (from->step == 1) {
        rows->widen(dtype, to, at, n);
    } else { /* the last pair's second element may be behind the row's end */
        rows->widen(dtype, pairs, at, 2 * n - 1);
        rows->activation->pick(to, pairs, n);
    }
    cpu_pad(to, n);
}
