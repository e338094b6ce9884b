/*
 * quantize.h - ports, parameters and plan of quantize: rows divided by a scale
 * and rounded to FP8 or int8.
 *
 * The scale is given, or made from the values that share it, a tile of some
 * rows and columns: with a the largest magnitude among them that is not NaN, at
 * most scale_ub,
 *     FP8    max(a / M, 1 / (512 M)), M the largest finite value, as the norms
 *     int8   a / 127; 1 where that is 0
 * and then, if the call says so, the smallest power of two that is no less. So
 * scales are finite and above 0 whatever the values are. Inf saturates. NaN
 * becomes 0x7F in FP8, and 0 in int8, which has none.
 */
#ifndef ROPED_OPS_QUANTIZE_H
#define ROPED_OPS_QUANTIZE_H

#include "ops/codes.h"

enum { QUANTIZE_X };
enum { QUANTIZE_Y, QUANTIZE_SCALES };

struct quantize_params {
    struct code_params codes;
    double scale_ub;      /* unset: NaN */
    int32_t dynamic;      /* bool */
    int32_t power_of_two; /* bool: scale_rounding */
};

struct quantize_plan {
    struct code_tiles tiles;
    float dequant_scale; /* static */
    float scale_ub;      /* the largest float where none was given */
    float largest;       /* M, 127 */
    float least_scale;   /* 0: a scale of 0 becomes 1 */
    float least_code;    /* int8 */
    int32_t format;      /* enum code_format */
    int32_t dynamic, is_tensor, power_of_two;
};

#endif
