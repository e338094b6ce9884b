/*
 * rope_quantize.h - ports and parameters of rope_quantize: rotate the
 * rotary part, scale, saturate and round rotary and non-rotary part to FP8.
 */
#ifndef ROPED_OPS_ROPE_QUANTIZE_H
#define ROPED_OPS_ROPE_QUANTIZE_H

#include "ops/rope.h"

enum {
    ROPE_QUANTIZE_Q_ROPE,
    ROPE_QUANTIZE_K_ROPE,
    ROPE_QUANTIZE_Q_NOPE,
    ROPE_QUANTIZE_K_NOPE,
    ROPE_QUANTIZE_SCALE_Q,
    ROPE_QUANTIZE_SCALE_K,
    ROPE_QUANTIZE_POSITIONS, /* from here on in the order of rope's ports */
    ROPE_QUANTIZE_INDPTR,
    ROPE_QUANTIZE_OFFSETS,
    ROPE_QUANTIZE_COS_SIN_CACHE,
    ROPE_QUANTIZE_COS,
    ROPE_QUANTIZE_SIN,
    ROPE_QUANTIZE_SHORT_FACTOR,
    ROPE_QUANTIZE_LONG_FACTOR
};
enum {
    ROPE_QUANTIZE_Q_ROPE_OUT,
    ROPE_QUANTIZE_K_ROPE_OUT,
    ROPE_QUANTIZE_Q_NOPE_OUT,
    ROPE_QUANTIZE_K_NOPE_OUT
};

struct rope_quantize_params {
    struct rope_params rope;
    double scale_q;
    double scale_k;
    int32_t output_dtype; /* enum roped_dtype */
    int32_t reserved;
};

#endif
