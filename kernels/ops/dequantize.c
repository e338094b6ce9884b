/*
 * dequantize.c - the descriptor of dequantize.
 */
#include "ops/dequantize.h"

#include <float.h>

/* As the call says, or as the type of x does. */
static enum code_format format_of(const struct roped_call *call)
{
    const struct dequantize_params *params = (const void *)call->params;
    const int param = roped_op_param(call->op, "input_dtype");
    if (!(call->given >> param & 1))
        for (int i = 0; i < CODES_INT8 + 1; i++)
            if (code_traits[i].dtype == call->in[DEQUANTIZE_X].dtype)
                return (enum code_format)i;
    return (enum code_format)params->codes.format;
}

/* Scales of another rank might have the shape of another granularity. */
static enum roped_status check_rank(const struct roped_call *call,
                                    struct roped_error *err)
{
    const struct dequantize_params *params = (const void *)call->params;
    const struct code_params *codes = &params->codes;
    const struct roped_tensor *scales = &call->in[DEQUANTIZE_SCALES];
    const bool is_list =
        codes->granularity == CODES_TENSOR ||
        (codes->granularity == CODES_ROW && codes->scale_layout == SCALES_ROWS);
    const int rank = is_list && !code_traits[codes->format].group ? 1 : 2;
    if (!roped_tensor_given(scales) || scales->rank == rank)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor 'scales': rank %d, expected %d, as "
                      "'granularity' and 'scale_layout' say",
                      scales->rank, rank);
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    const struct code_traits *traits = &code_traits[format_of(call)];
    const enum roped_dtype codes = call->in[DEQUANTIZE_X].dtype,
                           scales = call->in[DEQUANTIZE_SCALES].dtype;
    if (codes != ROPED_U8 && codes != traits->dtype)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "tensor 'x': %s, expected codes of %s, as "
                          "'input_dtype' says: %s or U8",
                          roped_dtype_name(codes), traits->name,
                          roped_dtype_name(traits->dtype));
    if (traits->scale == CODE_SCALE_F32 && scales == ROPED_U8)
        return roped_fail(err, ROPED_BAD_TYPE,
                          "tensor 'scales': U8, expected F32 beside codes of "
                          "%s",
                          traits->name);
    return check_rank(call, err);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct dequantize_params *params = (const void *)call->params;
    const enum code_format format = format_of(call);
    const struct roped_tensor *y = &call->out[DEQUANTIZE_Y];
    const int64_t width = y->dims[y->rank - 1];
    struct dequantize_plan *plan = (void *)call->plan;
    *plan = (struct dequantize_plan){
        .tiles = code_tiles_of(&params->codes, format,
                               roped_tensor_elements(y) / width, width),
        .dequant_scale = (float)params->codes.dequant_scale,
        .element = code_traits[format].element,
        .scale = code_traits[format].scale,
    };
    return scale_plan(call, DEQUANTIZE_GLOBAL_SCALE, params->codes.global_scale,
                      &plan->global_scale, err);
}

/* clang-format off */
const struct roped_op roped_op_dequantize = {
    .name = "dequantize",
    .since = "0.1",
    .summary = "codes of FP8, int8, MXFP8, MXFP4 or NVFP4 times their scales, the inverse of quantize",
    .type = {
        {"T", ROPED_FLOATS},
        {"Q", CODES_TYPES},
        {"D", SCALES_TYPES, .by = "input_dtype", .of = SCALES_DTYPES},
        {"S", SCALES_TYPES, .beside = "D", .also = ROPED_SET(ROPED_U8)},
        {"F", ROPED_SET(ROPED_F32)},
    },
    .given = {
        {.with_param = "dequant_scale", .none = ROPED_INPUT(DEQUANTIZE_SCALES)},
        {.with_param = "granularity", .all = ROPED_INPUT(DEQUANTIZE_SCALES)},
        {.with_param = "scale_layout", .all = ROPED_INPUT(DEQUANTIZE_SCALES)},
        {.when = CODES_MICRO("input_dtype"), .all = ROPED_INPUT(DEQUANTIZE_SCALES)},
        CODES_GIVEN("input_dtype", DEQUANTIZE_GLOBAL_SCALE),
    },
    .in = {
        [DEQUANTIZE_X] = {"x", "Q", CODES_SHAPE("input_dtype"), ROPED_STRIDED, .doc = "codes; input_dtype says what those of U8 are"},
        [DEQUANTIZE_SCALES] = {"scales", "S", SCALES_SHAPE("input_dtype"), ROPED_OPTIONAL, .doc = "what codes are multiplied by, as quantize returns it"},
        [DEQUANTIZE_GLOBAL_SCALE] = SCALE_INPUT("global_scale"),
    },
    .out = {
        [DEQUANTIZE_Y] = {"y", "T", "...rows h", ROPED_STRIDED, .doc = "codes times scales; NaN and Inf of FP8 stay"},
    },
    .params_bytes = sizeof(struct dequantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"input_dtype", ROPED_PARAM_CHOICE, CODES_AT(dequantize_params, format), .choices = CODES_CHOICES, .doc = "format of codes of U8; x of another type has its own, but for F8_E4M3 of mxfp8"},
        {"output_dtype", ROPED_PARAM_DTYPE, offsetof(struct dequantize_params, output_dtype), .choices = "f32|f16|bf16", .type = "T", .doc = "type of y"},
        {"dequant_scale", ROPED_PARAM_FLOAT, CODES_AT(dequantize_params, dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "scale of all codes, where scales are not given"},
        CODES_TILE_PARAMS(dequantize_params, ""),
        CODES_LAYOUT_PARAM(dequantize_params, "row and group: "),
        CODES_GLOBAL_PARAM(dequantize_params),
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .rule = rule,
    .rule_doc = "input_dtype is that of x, unless x is U8; scales of U8 are those of mxfp8, mxfp4 and nvfp4; scales of whole rows or the tensor have rank 1, others 2",
    .plan = plan,
    .plan_bytes = sizeof(struct dequantize_plan),
};
/* clang-format on */
