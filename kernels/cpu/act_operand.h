/*
 * act_operand.h - the gate or the up of rows, or a gradient of these: a tensor
 * of its own, a half of another's rows, or every second element of them.
 */
#ifndef ROPED_CPU_ACT_OPERAND_H
#define ROPED_CPU_ACT_OPERAND_H

#include "cpu/activation_rows.h"
#include "cpu/cpu_internal.h"

/* Where the elements of a row are. */
struct act_operand {
    const struct roped_tensor *tensor;
    int64_t stride, first, step; /* elements */
};

struct act_operands {
    struct act_operand gate, up;
};

/* Of x, or of gate and up where that is not given. */
struct act_operands act_operands_of(const struct act_and_mul_plan *plan,
                                    const struct roped_tensor *x,
                                    const struct roped_tensor *gate,
                                    const struct roped_tensor *up);

/* How far ahead memory of these is best asked for, in bytes: a gate and an up
 * in rows of one tensor reach each other's memory by less than whole rows. */
int64_t act_ahead(const struct act_operands *of);

/* Elements [i, i + n) of a row, and zeros up to a multiple of CPU_LANES. */
void act_load(const struct cpu_rows *rows, const struct act_operand *from,
              int64_t row, int64_t i, int64_t n, float *to);

/* Where element i of a row is. */
void *act_at(const struct act_operand *of, int64_t row, int64_t i);

#endif
