/*
 * activation_rows.h - the inner loop of act_and_mul: a block of float32 gates
 * through an activation, and times up.
 */
#ifndef ROPED_CPU_ACTIVATION_ROWS_H
#define ROPED_CPU_ACTIVATION_ROWS_H

#include "cpu/rows.h"
#include "ops/act_and_mul.h"

/* CPU_LANES divides the elements of a block, so that one loop does all. */
enum { CPU_LANES = 32 };

struct cpu_activation_rows {
    /* gate[i] = act(gate[i]), clamped first; n is a multiple of CPU_LANES. */
    void (*activate)(const struct act_and_mul_plan *plan, float *gate,
                     int64_t n);
    /* gate[i] *= up[i], clamped and with beta. */
    void (*multiply)(const struct act_and_mul_plan *plan, float *gate,
                     const float *up, int64_t n);
    /* Every second element of from, n of them, from the first on. */
    void (*pick)(float *to, const float *from, int64_t n);
};

#endif
