/*
 * act_values.h - act(gate) * up of rows as float32, before it is rounded to
 * whatever an operator returns.
 */
#ifndef ROPED_CPU_ACT_VALUES_H
#define ROPED_CPU_ACT_VALUES_H

#include "cpu/act_operand.h"

struct act_values {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    enum roped_dtype dtype; /* T */
    struct act_operands operands;
};

/* Of a call whose first inputs are those of act_and_mul. */
struct act_values act_values_of(const struct roped_call *call,
                                const struct act_and_mul_plan *plan,
                                const struct cpu_rows *rows);

/* Elements [i, i + n) of a row, at most CPU_BLOCK; to has room for n rounded up
 * to CPU_LANES. */
void act_values_load(const struct act_values *of, int64_t row, int64_t i,
                     int64_t n, float *to);

#endif
