/*
 * activation_rows.h - the inner loops of act_and_mul and its gradients: a block
 * of gates through an activation or its slope, and times up.
 */
#ifndef ROPED_CPU_ACTIVATION_ROWS_H
#define ROPED_CPU_ACTIVATION_ROWS_H

#include "cpu/rows.h"
#include "ops/act_and_mul.h"

/* Gates of F32, F16 or BF16, and what they are multiplied by. */
struct cpu_gated {
    enum roped_dtype dtype, up_dtype, to_dtype;
    enum roped_dtype rounds; /* act(gate) to F16 or BF16, or to none */
    const void *gate;
    const void *up;   /* (optional) */
    bool is_pairs;    /* gates and ups in turns, from gate on */
    void *to;         /* may be gate or up where it is of that type */
    bool is_streamed; /* to */
    int64_t ahead;    /* bytes from gates and ups to what is asked for */
};

/* All of a type. Gradients may be gates or ups. */
struct cpu_gated_gradient {
    enum roped_dtype dtype;
    enum roped_dtype rounds; /* act(gate) and its gradient, as above */
    const void *grad_y, *gate;
    const void *up; /* (optional) */
    bool is_pairs;  /* as above, and so are their gradients */
    void *grad_gate;
    void *grad_up; /* where there is an up */
    bool is_streamed;
    int64_t ahead; /* as above */
};

struct cpu_activation_rows {
    /* to[i] = act(gate[i]) * up[i], both clamped first, up with beta. */
    void (*gate)(const struct act_and_mul_plan *plan,
                 const struct cpu_gated *of, int64_t n);
    /* Its gradients: a gate or an up at the limit or beyond has none, and a
     * slope of 0 makes 0 of everything. */
    void (*descend)(const struct act_and_mul_plan *plan,
                    const struct cpu_gated_gradient *of, int64_t n);
    /* x[i] = tanh(x[i]); n is a multiple of CPU_LANES. */
    void (*tanh)(float *x, int64_t n);
    /* x[i] = e^x[i] - 1, x[i] at most 0 or NaN; n as for tanh. */
    void (*expm1)(float *x, int64_t n);
    /* Every second element of from, n of them, from the first on. */
    void (*pick)(float *to, const float *from, int64_t n);
};

#endif
