/*
 * quantize.c - the descriptor of quantize.
 */
#include "ops/quantize.h"

#include <roped/numeric.h>

#include <float.h>
#include <math.h>

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    static const float largest[] = {ROPED_E4M3_MAX, ROPED_E5M2_MAX, 127};
    const struct quantize_params *params = (const void *)call->params;
    struct quantize_plan *plan = (void *)call->plan;
    (void)err;
    *plan = (struct quantize_plan){
        .tiles = code_tiles_of(&params->codes, &call->in[QUANTIZE_X]),
        .dequant_scale = (float)params->codes.dequant_scale,
        .scale_ub = isnan(params->scale_ub) ? FLT_MAX : (float)params->scale_ub,
        .largest = largest[params->codes.format],
        .least_code = params->dynamic ? -127 : -128,
        .format = params->codes.format,
        .dynamic = params->dynamic,
        .is_tensor =
            params->dynamic && params->codes.granularity == CODES_TENSOR,
        .power_of_two = params->power_of_two,
    };
    if (plan->format != CODES_INT8)
        plan->least_scale = 1 / (512 * plan->largest);
    return ROPED_OK;
}

#define AT(member) offsetof(struct quantize_params, member)

/* clang-format off */
const struct roped_op roped_op_quantize = {
    .name = "quantize",
    .since = "0.1",
    .summary = "rows divided by a dynamic or a given scale and rounded to FP8 or int8",
    .type = {{"T", ROPED_FLOATS}, {"Q", CODES_TYPES, .by = "output_dtype", .of = CODES_FORMATS_OF}, {"S", ROPED_SET(ROPED_F32)}},
    .given = {
        {.with_param = "dequant_scale", .needs = "dynamic=false"},
        {.with_param = "granularity", .needs = "dynamic=true"},
        {.with_param = "scale_ub", .needs = "dynamic=true"},
        {.with_param = "scale_rounding", .needs = "dynamic=true"},
        {.with_param = "scale_layout", .needs = "dynamic=true"},
        CODES_GIVEN,
    },
    .in = {
        [QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows of any values"},
    },
    .out = {
        [QUANTIZE_Y] = {"y", "Q", "...rows h", ROPED_STRIDED, .doc = "codes of the rows divided by their scales; Inf saturates, NaN is 0x7F in FP8 and 0 in int8"},
        [QUANTIZE_SCALES] = {"scales", "S", CODES_SCALES_SHAPE, .requires_ = "dynamic", .doc = "what codes are multiplied by to have the values back; finite and above 0 whatever these are"},
    },
    .params_bytes = sizeof(struct quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"output_dtype", ROPED_PARAM_CHOICE, CODES_AT(quantize_params, format), .choices = CODES_FORMATS, .doc = "format of y"},
        {"dynamic", ROPED_PARAM_BOOL, AT(dynamic), 0, 1, .doc = "scales from the values, instead of dequant_scale"},
        {"dequant_scale", ROPED_PARAM_FLOAT, CODES_AT(quantize_params, dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "values are divided by it before rounding; int8 saturates at -128 and 127"},
        CODES_TILE_PARAMS(quantize_params, "dynamic: "),
        {"scale_ub", ROPED_PARAM_FLOAT, AT(scale_ub), ROPED_NO_DEFAULT, 0, -FLT_MAX, FLT_MAX, .doc = "dynamic: values above it do not enlarge the scale"},
        {"scale_rounding", ROPED_PARAM_CHOICE, AT(power_of_two), .choices = "none|power_of_two", .doc = "dynamic: power_of_two: up to one, as DeepGEMM and DeepSeek V3.1"},
        CODES_LAYOUT_PARAM(quantize_params),
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct quantize_plan),
};
/* clang-format on */
