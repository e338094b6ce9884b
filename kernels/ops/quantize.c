/*
 * quantize.c - the descriptor of quantize.
 */
#include "ops/quantize.h"

#include <roped/numeric.h>

#include <float.h>
#include <math.h>

static struct code_rule rule_of(const struct quantize_params *params)
{
    const struct code_traits *traits = &code_traits[params->codes.format];
    struct code_rule rule = {
        .scale_ub = isnan(params->scale_ub) ? FLT_MAX : (float)params->scale_ub,
        .largest = traits->largest,
        .least_code = params->dynamic ? -127 : -128,
        .element = traits->element,
        .scale = traits->scale,
        .power_of_two = params->scale_rounding == SCALE_ROUND_POWER_OF_TWO,
        .infinity = params->infinity,
    };
    if (traits->element != CODE_I8)
        rule.least_scale = 1 / (512 * rule.largest);
    if (params->scale_rounding != SCALE_ROUND_FLOOR)
        rule.round_bits =
            0x7FFFFF - (roped_float_bits(rule.largest) & 0x7FFFFF);
    return rule;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct quantize_params *params = (const void *)call->params;
    struct quantize_plan *plan = (void *)call->plan;
    *plan = (struct quantize_plan){
        .tiles = code_tiles_of(&params->codes,
                               (enum code_format)params->codes.format,
                               &call->in[QUANTIZE_X]),
        .rule = rule_of(params),
        .dequant_scale = (float)params->codes.dequant_scale,
        .dynamic = params->dynamic,
    };
    plan->is_tensor = params->dynamic && plan->tiles.scale_row == 0;
    return scale_plan(call, QUANTIZE_GLOBAL_SCALE, params->codes.global_scale,
                      &plan->rule.global_scale, err);
}

#define AT(member) offsetof(struct quantize_params, member)

/* clang-format off */
const struct roped_op roped_op_quantize = {
    .name = "quantize",
    .since = "0.1",
    .summary = "rows divided by a dynamic or a given scale and rounded to FP8, int8, MXFP8, MXFP4 or NVFP4",
    .type = {{"T", ROPED_FLOATS}, {"Q", CODES_TYPES, .by = "output_dtype", .of = CODES_DTYPES}, {"S", SCALES_TYPES, .by = "output_dtype", .of = SCALES_DTYPES}, {"F", ROPED_SET(ROPED_F32)}},
    .given = {
        {.with_param = "dequant_scale", .needs = "dynamic=false"},
        {.with_param = "granularity", .needs = "dynamic=true"},
        {.with_param = "scale_ub", .needs = "dynamic=true"},
        {.with_param = "scale_rounding", .needs = "dynamic=true"},
        {.with_param = "scale_layout", .needs = "dynamic=true"},
        {.when = "dynamic=false", .with_param = "dynamic", .needs = CODES_PLAIN("output_dtype")},
        {.with_param = "scale_ub", .needs = CODES_PLAIN("output_dtype")},
        {.with_param = "infinity", .needs = CODES_MX("output_dtype")},
        {.when = "scale_rounding=none,power_of_two", .with_param = "scale_rounding", .needs = CODES_PLAIN("output_dtype")},
        {.when = "scale_rounding=up,floor", .with_param = "scale_rounding", .needs = CODES_MX("output_dtype")},
        CODES_GIVEN("output_dtype", QUANTIZE_GLOBAL_SCALE),
    },
    .in = {
        [QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows of any values"},
        [QUANTIZE_GLOBAL_SCALE] = SCALE_INPUT("global_scale"),
    },
    .out = {
        [QUANTIZE_Y] = {"y", "Q", CODES_SHAPE("output_dtype"), ROPED_STRIDED, .doc = "codes of the rows divided by their scales; Inf saturates, NaN is 0x7F in FP8 and 0 in int8; of mxfp4 and nvfp4 two e2m1 codes a byte, the first in the low bits"},
        [QUANTIZE_SCALES] = {"scales", "S", SCALES_SHAPE("output_dtype"), .requires_ = "dynamic", .doc = "what codes are multiplied by to have the values back; F32 ones are finite and above 0 whatever these are; of mxfp8 and mxfp4 U8 exponents, 2^(code - 127), of nvfp4 e4m3, which global_scale divides"},
    },
    .params_bytes = sizeof(struct quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"output_dtype", ROPED_PARAM_CHOICE, CODES_AT(quantize_params, format), .choices = CODES_CHOICES, .doc = "format of y"},
        {"dynamic", ROPED_PARAM_BOOL, AT(dynamic), 0, 1, .doc = "scales from the values, instead of dequant_scale"},
        {"dequant_scale", ROPED_PARAM_FLOAT, CODES_AT(quantize_params, dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "values are divided by it before rounding; int8 saturates at -128 and 127"},
        CODES_TILE_PARAMS(quantize_params, "dynamic: "),
        {"scale_ub", ROPED_PARAM_FLOAT, AT(scale_ub), ROPED_NO_DEFAULT, 0, -FLT_MAX, FLT_MAX, .doc = "dynamic: values above it do not enlarge the scale"},
        {"scale_rounding", ROPED_PARAM_CHOICE, AT(scale_rounding), .choices = "none|power_of_two|up|floor", .doc = "dynamic: power_of_two: up to one, as DeepGEMM and DeepSeek V3.1; of mxfp8 and mxfp4 up, unless it is given: nothing saturates, as FlashInfer and TransformerEngine, or floor, as OCP MX 1.0 and torchao"},
        CODES_LAYOUT_PARAM(quantize_params),
        CODES_GLOBAL_PARAM(quantize_params),
        {"infinity", ROPED_PARAM_CHOICE, AT(infinity), .choices = "saturate|nan", .doc = "mxfp8 and mxfp4: the scale of a group with Inf is 0xFE, the largest, or 0xFF, NaN, as torchao"},
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct quantize_plan),
};
/* clang-format on */
