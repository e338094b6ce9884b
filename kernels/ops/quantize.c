/*
 * quantize.c - the descriptor of quantize, and the plan of whatever makes
 * codes.
 */
#include "ops/quantize.h"

#include <roped/numeric.h>

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

struct quantize_plan quantize_plan_of(const struct quantize_params *params,
                                      int64_t n_rows, int64_t width)
{
    struct quantize_plan plan = {
        .tiles = code_tiles_of(&params->codes,
                               (enum code_format)params->codes.format, n_rows,
                               width),
        .rule = rule_of(params),
        .dequant_scale = (float)params->codes.dequant_scale,
        .dynamic = params->dynamic,
    };
    plan.is_tensor = params->dynamic && plan.tiles.scale_row == 0;
    return plan;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct quantize_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    struct quantize_plan *plan = (void *)call->plan;
    const int64_t width = x->dims[x->rank - 1];
    *plan = quantize_plan_of(params, roped_tensor_elements(x) / width, width);
    return scale_plan(call, QUANTIZE_GLOBAL_SCALE, params->codes.global_scale,
                      &plan->rule.global_scale, err);
}

/* clang-format off */
const struct roped_op roped_op_quantize = {
    .name = "quantize",
    .since = "0.1",
    .summary = "rows divided by a dynamic or a given scale and rounded to FP8, int8, MXFP8, MXFP4 or NVFP4",
    .type = {{"T", ROPED_FLOATS}, QUANTIZE_TYPES},
    .given = {QUANTIZE_GIVEN(QUANTIZE_GLOBAL_SCALE)},
    .in = {
        [QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows of any values"},
        [QUANTIZE_GLOBAL_SCALE] = SCALE_INPUT("global_scale"),
    },
    .out = {
        [QUANTIZE_Y] = QUANTIZE_Y_PORT("the rows"),
        [QUANTIZE_SCALES] = QUANTIZE_SCALES_PORT,
    },
    .params_bytes = sizeof(struct quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {QUANTIZE_PARAMS},
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct quantize_plan),
};
/* clang-format on */
