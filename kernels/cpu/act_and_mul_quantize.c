/*
 * act_and_mul_quantize.c - act_and_mul_quantize on the CPU: quantize, of what
 * act_and_mul computes.
 */
#include "ops/act_and_mul_quantize.h"
#include "cpu/act_values.h"
#include "cpu/codes.h"

struct act_rows {
    struct act_values values;
    bool rounds;
};

static void load_values(const void *of, int64_t row, int64_t first, int64_t n,
                        float *to)
{
    const struct act_rows *from = of;
    const struct act_result floats = {ROPED_F32, false, to};
    act_values_store(&from->values, row, first, n, &floats);
    if (from->rounds)
        from->values.rows->round(from->values.dtype, to, n);
}

enum roped_status roped_cpu_act_and_mul_quantize(const struct roped_call *call,
                                                 struct roped_queue *queue,
                                                 struct roped_error *err)
{
    const struct act_and_mul_quantize_plan *plan = (const void *)call->plan;
    const struct act_rows rows = {
        act_values_of(call, &plan->act, queue->backend->rows),
        plan->rounds_result};
    const struct code_source source = {load_values, &rows};
    (void)err;
    code_quantize(&plan->quantize, &source, call, queue);
    return ROPED_OK;
}
