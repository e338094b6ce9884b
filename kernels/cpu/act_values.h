/*
 * act_values.h - act(gate) * up of rows, in whatever type an operator
 * returns it or goes on with.
 */
#ifndef ROPED_CPU_ACT_VALUES_H
#define ROPED_CPU_ACT_VALUES_H

#include "cpu/act_operand.h"

struct act_values {
    const struct cpu_rows *rows;
    const struct act_and_mul_plan *plan;
    enum roped_dtype dtype; /* T */
    struct act_operands operands;
    int64_t ahead; /* as cpu_gated has it */
};

/* Of a call whose first inputs are those of act_and_mul. */
struct act_values act_values_of(const struct roped_call *call,
                                const struct act_and_mul_plan *plan,
                                const struct cpu_rows *rows);

/* Where they go, in any type that is no code. */
struct act_result {
    enum roped_dtype dtype;
    bool is_streamed;
    void *data;
};

/* Elements [i, i + n) of a row, at most CPU_BLOCK. */
void act_values_store(const struct act_values *of, int64_t row, int64_t i,
                      int64_t n, const struct act_result *to);

#endif
