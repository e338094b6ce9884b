/*
 * activation_rows.h - the inner loops of act_and_mul and its gradients: a block
 * of float32 gates through an activation or its slope, and times up.
 */
#ifndef ROPED_CPU_ACTIVATION_ROWS_H
#define ROPED_CPU_ACTIVATION_ROWS_H

#include "cpu/rows.h"
#include "ops/act_and_mul.h"

/* Gates of F32, F16 or BF16, and what they are multiplied by. */
struct cpu_gated {
    enum roped_dtype dtype, up_dtype;
    enum roped_dtype rounds; /* act(gate) to F16 or BF16, or to none */
    const void *gate;
    const void *up; /* (optional) */
};

struct cpu_activation_rows {
    /* to[i] = act(gate[i]) * up[i], both clamped first, up with beta; to may be
     * gate or up where these are floats. */
    void (*gate)(const struct act_and_mul_plan *plan,
                 const struct cpu_gated *of, float *to, int64_t n);
    /* x[i] = tanh(x[i]); n is a multiple of CPU_LANES. */
    void (*tanh)(float *x, int64_t n);
    /* x[i] = e^x[i] - 1, x[i] at most 0 or NaN; n as for activate. */
    void (*expm1)(float *x, int64_t n);
    /* gate[i] *= up[i], clamped and with beta. */
    void (*multiply)(const struct act_and_mul_plan *plan, float *gate,
                     const float *up, int64_t n);
    /* slope[i] = that of the activation at gate[i], 0 at the limit and beyond,
     * and gate[i] = act(gate[i]); n as for tanh. */
    void (*differentiate)(const struct act_and_mul_plan *plan, float *gate,
                          float *slope, int64_t n);
    /* slope[i] *= to_act[i], but 0 stays 0. */
    void (*descend)(float *slope, const float *to_act, int64_t n);
    /* act[i] *= g[i], or 0 where up[i] is at the limit or beyond. */
    void (*multiply_within)(const struct act_and_mul_plan *plan, float *act,
                            const float *g, const float *up, int64_t n);
    /* Every second element of from, n of them, from the first on. */
    void (*pick)(float *to, const float *from, int64_t n);
    /* n elements of either, in turns. */
    void (*weave)(float *to, const float *even, const float *odd, int64_t n);
};

#endif
