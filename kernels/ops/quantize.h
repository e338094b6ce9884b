/*
 * quantize.h - ports, parameters and plan of quantize: rows divided by a scale
 * and rounded to codes.
 *
 * The scale is given, or made from the values that share it, a tile of some
 * rows and columns: with a the largest magnitude among them that is not NaN, at
 * most scale_ub,
 *     FP8    max(a / M, 1 / (512 M)), M the largest finite value, as the norms
 *     int8   a / 127; 1 where that is 0
 * and then, if the call says so, the smallest power of two that is no less. So
 * scales are finite and above 0 whatever the values are. Inf saturates. NaN
 * becomes 0x7F in FP8, and 0 in int8, which has none.
 *
 * The formats of groups, with M = 448 of e4m3 and 6 of e2m1:
 *     MX     the smallest power of two that is at least a / M (FlashInfer,
 *            TransformerEngine), or 2^(floor(log2 a) - floor(log2 M)) (OCP MX
 *            1.0, torchao), not below 2^-127. NaN in a group makes the scale
 *            0xFF, and codes those of NaN. Inf makes it 0xFE, which is where
 *            FlashInfer's conversion to E8M0 saturates, or 0xFF.
 *     NVFP4  e4m3(a / 6 * global_scale), at most 448; a code is that of
 *            x * global_scale / scale, and +-0 where the scale is 0. NaN does
 *            not count and becomes 6, Inf saturates, as in FlashInfer, whose
 *            conversions these are.
 */
#ifndef ROPED_OPS_QUANTIZE_H
#define ROPED_OPS_QUANTIZE_H

#include "ops/codes.h"

enum { QUANTIZE_X, QUANTIZE_GLOBAL_SCALE };
enum { QUANTIZE_Y, QUANTIZE_SCALES };
enum {
    SCALE_ROUND_NONE,
    SCALE_ROUND_POWER_OF_TWO,
    SCALE_ROUND_UP,
    SCALE_ROUND_FLOOR
};
enum { INFINITY_SATURATES, INFINITY_IS_NAN };

struct quantize_params {
    struct code_params codes;
    double scale_ub;        /* unset: NaN */
    int32_t dynamic;        /* bool */
    int32_t scale_rounding; /* SCALE_ROUND_... */
    int32_t infinity;       /* INFINITY_... */
    int32_t reserved;
};

/* How values that share a scale become codes. */
struct code_rule {
    float scale_ub;       /* the largest float where none was given */
    float largest;        /* M, 127 */
    float least_scale;    /* F32: 0: a scale of 0 becomes 1 */
    float least_code;     /* int8 */
    float global_scale;   /* E4M3 */
    uint32_t round_bits;  /* E8M0: added to a's, so that exponents round up */
    int32_t element;      /* enum code_element */
    int32_t scale;        /* enum code_scale */
    int32_t power_of_two; /* bool, F32 */
    int32_t infinity;     /* INFINITY_..., E8M0 */
};

struct quantize_plan {
    struct code_tiles tiles;
    struct code_rule rule;
    float dequant_scale; /* static */
    int32_t dynamic, is_tensor;
};

#endif
