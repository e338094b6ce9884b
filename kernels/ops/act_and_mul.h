/*
 * act_and_mul.h - ports, parameters and plan of act_and_mul: the gate of a
 * gated MLP through its activation, times the other half; or the activation
 * alone.
 */
#ifndef ROPED_OPS_ACT_AND_MUL_H
#define ROPED_OPS_ACT_AND_MUL_H

#include <roped/op.h>

enum { ACT_AND_MUL_X, ACT_AND_MUL_GATE, ACT_AND_MUL_UP };
enum { ACT_AND_MUL_Y };

enum activation {
    ACT_SILU,
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_RELU,
    ACT_RELU2,
    ACT_QUICK_GELU,
    ACT_SIGMOID,
    ACT_SWIGLU_OAI,
    ACT_GELU_FAST,
    ACT_XIELU
};

enum act_rounding { ACT_ROUND_ONCE, ACT_ROUND_TYPE, ACT_ROUND_STEPS };

struct act_and_mul_params {
    double limit, alpha, beta;
    double alpha_p, alpha_n, slope, eps; /* of xielu */
    int32_t activation, rounding, interleaved, gate_second, gated;
};

/* y = alpha_p * x^2 + slope * x above 0, and from there down
 * alpha_n * (e^min(x, eps) - 1 - x) + slope * x */
struct xielu {
    float alpha_p, alpha_n, slope, eps;
};

struct act_and_mul_plan {
    int64_t n_rows;
    int64_t width;       /* h: elements of a row of y */
    float limit;         /* Inf: none */
    float alpha;         /* swiglu_oai, and what quick_gelu multiplies by */
    float beta;          /* added to up */
    int32_t activation;  /* gelu_fast only by steps */
    int32_t rounds;      /* bool: act(gate) to T before the product */
    int32_t gated;       /* bool: there is an up */
    int32_t interleaved; /* bool: x has pairs of gate and up */
    int32_t gate_second; /* bool: x has up first */
    int32_t steps;       /* bool: every step of the activation to T, too */
    int32_t reserved;
    struct xielu xielu;
};

#endif
