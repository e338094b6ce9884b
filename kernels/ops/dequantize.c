/*
 * dequantize.c - the descriptor of dequantize.
 */
#include "ops/dequantize.h"

#include <float.h>

/* What codes of this type are where the call does not say it. U8 says nothing:
 * then they are what input_dtype is. */
static int32_t own_format(enum roped_dtype dtype, int32_t otherwise)
{
    return dtype == ROPED_F8_E4M3   ? CODES_E4M3
           : dtype == ROPED_F8_E5M2 ? CODES_E5M2
           : dtype == ROPED_I8      ? CODES_INT8
                                    : otherwise;
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    static const char *const names[] = {"e4m3", "e5m2", "int8"};
    const struct dequantize_params *params = (const void *)call->params;
    const enum roped_dtype dtype = call->in[DEQUANTIZE_X].dtype;
    const int param = roped_op_param(call->op, "input_dtype");
    const int32_t own = own_format(dtype, params->codes.format);
    if (!(call->given >> param & 1) || own == params->codes.format)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_TYPE,
                      "tensor 'x': %s, expected U8 or a type of %s codes, as "
                      "'input_dtype' says",
                      roped_dtype_name(dtype), names[params->codes.format]);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct dequantize_params *params = (const void *)call->params;
    struct dequantize_plan *plan = (void *)call->plan;
    (void)err;
    *plan = (struct dequantize_plan){
        .tiles = code_tiles_of(&params->codes, &call->out[DEQUANTIZE_Y]),
        .dequant_scale = (float)params->codes.dequant_scale,
        .format =
            own_format(call->in[DEQUANTIZE_X].dtype, params->codes.format),
    };
    return ROPED_OK;
}

/* clang-format off */
const struct roped_op roped_op_dequantize = {
    .name = "dequantize",
    .since = "0.1",
    .summary = "FP8 or int8 codes times their scales, the inverse of quantize",
    .type = {{"T", ROPED_FLOATS}, {"Q", CODES_TYPES | ROPED_SET(ROPED_U8)}, {"S", ROPED_SET(ROPED_F32)}},
    .given = {
        {.with_param = "dequant_scale", .none = ROPED_INPUT(DEQUANTIZE_SCALES)},
        {.with_param = "granularity", .all = ROPED_INPUT(DEQUANTIZE_SCALES)},
        {.with_param = "scale_layout", .all = ROPED_INPUT(DEQUANTIZE_SCALES)},
        CODES_GIVEN,
    },
    .in = {
        [DEQUANTIZE_X] = {"x", "Q", "...rows h", ROPED_STRIDED, .doc = "codes; input_dtype says what those of U8 are"},
        [DEQUANTIZE_SCALES] = {"scales", "S", CODES_SCALES_SHAPE, ROPED_OPTIONAL, .doc = "what codes are multiplied by, as quantize returns it"},
    },
    .out = {
        [DEQUANTIZE_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .doc = "codes times scales; NaN and Inf of FP8 stay"},
    },
    .params_bytes = sizeof(struct dequantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"input_dtype", ROPED_PARAM_CHOICE, CODES_AT(dequantize_params, format), .choices = CODES_FORMATS, .doc = "format of codes of U8; x of another type has its own"},
        {"output_dtype", ROPED_PARAM_DTYPE, offsetof(struct dequantize_params, output_dtype), .choices = "f32|f16|bf16", .type = "T", .doc = "type of y"},
        {"dequant_scale", ROPED_PARAM_FLOAT, CODES_AT(dequantize_params, dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "scale of all codes, where scales are not given"},
        CODES_TILE_PARAMS(dequantize_params, ""),
        CODES_LAYOUT_PARAM(dequantize_params),
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = rule,
    .rule_doc = "input_dtype is that of x, unless x is U8",
    .plan = plan,
    .plan_bytes = sizeof(struct dequantize_plan),
};
/* clang-format on */
