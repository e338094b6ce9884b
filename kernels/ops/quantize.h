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

/* Of rows of so many values; of the rule all but global_scale. */
struct quantize_plan quantize_plan_of(const struct quantize_params *params,
                                      int64_t n_rows, int64_t width);

/* clang-format off */
#define QUANTIZE_AT(member) offsetof(struct quantize_params, member)

#define QUANTIZE_TYPES \
    {"Q", CODES_TYPES, .by = "output_dtype", .of = CODES_DTYPES}, \
    {"S", SCALES_TYPES, .by = "output_dtype", .of = SCALES_DTYPES}, \
    {"F", ROPED_SET(ROPED_F32)}

/* global_scale: its port. */
#define QUANTIZE_GIVEN(global_scale) \
    {.with_param = "dequant_scale", .needs = "dynamic=false"}, \
    {.with_param = "granularity", .needs = "dynamic=true"}, \
    {.with_param = "scale_ub", .needs = "dynamic=true"}, \
    {.with_param = "scale_rounding", .needs = "dynamic=true"}, \
    {.with_param = "scale_layout", .needs = "dynamic=true"}, \
    {.when = "dynamic=false", .with_param = "dynamic", .needs = CODES_PLAIN("output_dtype")}, \
    QUANTIZE_FORMAT_GIVEN, \
    CODES_GIVEN("output_dtype", global_scale)
/* What only some formats have. */
#define QUANTIZE_FORMAT_GIVEN \
    {.with_param = "scale_ub", .needs = CODES_PLAIN("output_dtype")}, \
    {.with_param = "infinity", .needs = CODES_MX("output_dtype")}, \
    {.when = "scale_rounding=none,power_of_two", .with_param = "scale_rounding", .needs = CODES_PLAIN("output_dtype")}, \
    {.when = "scale_rounding=up,floor", .with_param = "scale_rounding", .needs = CODES_MX("output_dtype")}

#define QUANTIZE_Y_PORT(what) \
    {"y", "Q", CODES_SHAPE("output_dtype"), ROPED_STRIDED, .doc = "codes of " what " divided by their scales; Inf saturates, NaN is 0x7F in FP8 and 0 in int8; of mxfp4 and nvfp4 two e2m1 codes a byte, the first in the low bits"}
#define QUANTIZE_SCALES_PORT QUANTIZE_SCALES_PORT_OF(SCALES_SHAPE("output_dtype"))
#define QUANTIZE_SCALES_PORT_OF(shape) \
    {"scales", "S", shape, .requires_ = "dynamic", .doc = "what codes are multiplied by to have the values back; F32 ones are finite and above 0 whatever these are; of mxfp8 and mxfp4 U8 exponents, 2^(code - 127), of nvfp4 e4m3, which global_scale divides"}

/* Parameters, for a struct that begins with a struct quantize_params; by
 * themselves for the norms, which have others between them. */
#define QUANTIZE_PARAMS \
    QUANTIZE_OUTPUT_PARAM, \
    {"dynamic", ROPED_PARAM_BOOL, QUANTIZE_AT(dynamic), 0, 1, .doc = "scales from the values, instead of dequant_scale"}, \
    QUANTIZE_GIVEN_SCALE_PARAM, \
    CODES_TILE_PARAMS(quantize_params, "dynamic: "), \
    QUANTIZE_BOUND_PARAM(""), \
    QUANTIZE_ROUNDING_PARAM, \
    CODES_LAYOUT_PARAM(quantize_params, "row and group: "), \
    CODES_GLOBAL_PARAM(quantize_params), \
    QUANTIZE_INFINITY_PARAM
#define QUANTIZE_OUTPUT_PARAM \
    {"output_dtype", ROPED_PARAM_CHOICE, CODES_AT(quantize_params, format), .choices = CODES_CHOICES, .doc = "format of y"}
#define QUANTIZE_GIVEN_SCALE_PARAM \
    {"dequant_scale", ROPED_PARAM_FLOAT, CODES_AT(quantize_params, dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "values are divided by it before rounding; int8 saturates at -128 and 127"}
#define QUANTIZE_BOUND_PARAM(more) \
    {"scale_ub", ROPED_PARAM_FLOAT, QUANTIZE_AT(scale_ub), ROPED_NO_DEFAULT, 0, -FLT_MAX, FLT_MAX, .doc = "dynamic: values above it do not enlarge the scale" more}
#define QUANTIZE_ROUNDING_PARAM \
    {"scale_rounding", ROPED_PARAM_CHOICE, QUANTIZE_AT(scale_rounding), .choices = "none|power_of_two|up|floor", .doc = "dynamic: power_of_two: up to one, as DeepGEMM and DeepSeek V3.1; of mxfp8 and mxfp4 up, unless it is given: nothing saturates, as FlashInfer and TransformerEngine, or floor, as OCP MX 1.0 and torchao"}
#define QUANTIZE_INFINITY_PARAM \
    {"infinity", ROPED_PARAM_CHOICE, QUANTIZE_AT(infinity), .choices = "saturate|nan", .doc = "mxfp8 and mxfp4: the scale of a group with Inf is 0xFE, the largest, or 0xFF, NaN, as torchao"}
/* clang-format on */

#endif
