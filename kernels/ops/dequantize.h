/*
 * dequantize.h - ports, parameters and plan of dequantize: the inverse of
 * quantize. A value is its code times its scale in float32, rounded once; NaN
 * and Inf of FP8 stay what they are, and scales may be any numbers. A scale of
 * NVFP4 is divided by global_scale first, as vLLM's reference does it.
 */
#ifndef ROPED_OPS_DEQUANTIZE_H
#define ROPED_OPS_DEQUANTIZE_H

#include "ops/codes.h"

enum { DEQUANTIZE_X, DEQUANTIZE_SCALES, DEQUANTIZE_GLOBAL_SCALE };
enum { DEQUANTIZE_Y };

struct dequantize_params {
    struct code_params codes;
    int32_t output_dtype; /* enum roped_dtype */
    int32_t reserved;
};

struct dequantize_plan {
    struct code_tiles tiles;
    float dequant_scale; /* where there are no scales */
    float global_scale;
    int32_t element; /* enum code_element */
    int32_t scale;   /* enum code_scale */
};

#endif
