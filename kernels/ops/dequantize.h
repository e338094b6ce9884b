/*
 * dequantize.h - ports, parameters and plan of dequantize: the inverse of
 * quantize. A value is its code times its scale in float32, rounded once; NaN
 * and Inf of FP8 stay what they are, and scales may be any numbers.
 */
#ifndef ROPED_OPS_DEQUANTIZE_H
#define ROPED_OPS_DEQUANTIZE_H

#include "ops/codes.h"

enum { DEQUANTIZE_X, DEQUANTIZE_SCALES };
enum { DEQUANTIZE_Y };

struct dequantize_params {
    struct code_params codes;
    int32_t output_dtype; /* enum roped_dtype */
    int32_t reserved;
};

struct dequantize_plan {
    struct code_tiles tiles;
    float dequant_scale; /* where there are no scales */
    int32_t format;      /* enum code_format */
};

#endif
