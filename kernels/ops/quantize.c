/*
 * quantize.c - the descriptor of quantize.
 */
#include "ops/quantize.h"

#include <roped/numeric.h>

#include <float.h>
#include <math.h>

static void plan_tiles(struct quantize_plan *plan,
                       const struct quantize_params *params)
{
    const int64_t side = QUANTIZE_BLOCK_SIDE;
    plan->tile_rows = 1;
    plan->tile_width = plan->width;
    if (params->granularity == QUANTIZE_GROUP) {
        plan->tile_width = params->group_size;
    } else if (params->granularity == QUANTIZE_BLOCK) {
        plan->tile_rows = plan->tile_width = side;
    }
    plan->is_tensor = params->granularity == QUANTIZE_TENSOR;
    plan->n_tiles = (plan->width + plan->tile_width - 1) / plan->tile_width;
    plan->scale_row = plan->n_tiles;
    plan->scale_tile = 1;
    if (params->scale_layout < SCALES_COLUMNS)
        return;
    if (params->scale_layout == SCALES_COLUMNS_4)
        plan->n_padding = (4 - plan->n_rows % 4) % 4;
    plan->scale_row = 1;
    plan->scale_tile = plan->n_rows + plan->n_padding;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    static const float largest[] = {ROPED_E4M3_MAX, ROPED_E5M2_MAX, 127};
    const struct quantize_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    struct quantize_plan *plan = (void *)call->plan;
    (void)err;
    *plan = (struct quantize_plan){
        .width = x->dims[x->rank - 1],
        .dequant_scale = (float)params->dequant_scale,
        .scale_ub = isnan(params->scale_ub) ? FLT_MAX : (float)params->scale_ub,
        .largest = largest[params->output_dtype],
        .least_code = params->dynamic ? -127 : -128,
        .output_dtype = params->output_dtype,
        .dynamic = params->dynamic,
        .power_of_two = params->power_of_two,
    };
    plan->n_rows = roped_tensor_elements(x) / plan->width;
    if (params->output_dtype != QUANTIZE_INT8)
        plan->least_scale = 1 / (512 * plan->largest);
    if (params->dynamic)
        plan_tiles(plan, params);
    return ROPED_OK;
}

#define AT(member) offsetof(struct quantize_params, member)

/* clang-format off */
const struct roped_op roped_op_quantize = {
    .name = "quantize",
    .since = "0.1",
    .summary = "rows divided by a dynamic or a given scale and rounded to FP8 or int8",
    .type = {{"T", ROPED_FLOATS}, {"Q", ROPED_FP8S | ROPED_SET(ROPED_I8), .by = "output_dtype", .of = "F8_E4M3|F8_E5M2|I8"}, {"S", ROPED_SET(ROPED_F32)}},
    .given = {
        {.with_param = "dequant_scale", .needs = "dynamic=false"},
        {.with_param = "granularity", .needs = "dynamic=true"},
        {.with_param = "scale_ub", .needs = "dynamic=true"},
        {.with_param = "scale_rounding", .needs = "dynamic=true"},
        {.with_param = "scale_layout", .needs = "dynamic=true"},
        {.with_param = "scale_layout", .needs = "granularity=row,group"},
        {.with_param = "group_size", .needs = "granularity=group"},
        {.with_param = "group_size", .needs = "group_size=16,32,64,128"},
    },
    .in = {
        [QUANTIZE_X] = {"x", "T", "...rows h", ROPED_STRIDED, .doc = "rows of any values"},
    },
    .out = {
        [QUANTIZE_Y] = {"y", "Q", "...rows h", ROPED_STRIDED, .doc = "codes of the rows divided by their scales; Inf saturates, NaN is 0x7F in FP8 and 0 in int8"},
        [QUANTIZE_SCALES] = {"scales", "S",
            "[granularity=tensor] 1"
            "|[granularity=block] rows^128/128 h^128/128"
            "|[granularity=row scale_layout=rows] rows"
            "|[granularity=row scale_layout=rows_2d] rows 1"
            "|[granularity=row scale_layout=columns] 1 rows"
            "|[granularity=row scale_layout=columns_4] 1 rows^4"
            "|[scale_layout=columns] h/group_size rows"
            "|[scale_layout=columns_4] h/group_size rows^4"
            "|rows h/group_size", .requires_ = "dynamic", .doc = "what codes are multiplied by to have the values back; finite and above 0 whatever these are"},
    },
    .params_bytes = sizeof(struct quantize_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"output_dtype", ROPED_PARAM_CHOICE, AT(output_dtype), .choices = "e4m3|e5m2|int8", .doc = "format of y"},
        {"dynamic", ROPED_PARAM_BOOL, AT(dynamic), 0, 1, .doc = "scales from the values, instead of dequant_scale"},
        {"dequant_scale", ROPED_PARAM_FLOAT, AT(dequant_scale), 0, 1, FLT_TRUE_MIN, FLT_MAX, .doc = "values are divided by it before rounding; int8 saturates at -128 and 127"},
        {"granularity", ROPED_PARAM_CHOICE, AT(granularity), 0, QUANTIZE_ROW, .choices = "tensor|row|group|block", .doc = "dynamic: what has a scale: all, each row, each group of it, each block of 128 rows and 128 columns, fewer at the edges"},
        {"group_size", ROPED_PARAM_INT, AT(group_size), 0, 128, 16, 128, .doc = "granularity=group: columns of a group, 16, 32, 64 or 128"},
        {"scale_ub", ROPED_PARAM_FLOAT, AT(scale_ub), ROPED_NO_DEFAULT, 0, -FLT_MAX, FLT_MAX, .doc = "dynamic: values above it do not enlarge the scale"},
        {"scale_rounding", ROPED_PARAM_CHOICE, AT(power_of_two), .choices = "none|power_of_two", .doc = "dynamic: power_of_two: up to one, as DeepGEMM and DeepSeek V3.1"},
        {"scale_layout", ROPED_PARAM_CHOICE, AT(scale_layout), .choices = "rows|rows_2d|columns|columns_4", .doc = "row and group: rows: [n] or [n, g]; rows_2d: [n, 1] or [n, g]; columns: [g, n]; columns_4: [g, n rounded up to 4 with zeros], for TMA"},
    },
    .rows = "rows",
    .tokens = "rows",
    .widths = "h",
    .plan = plan,
    .plan_bytes = sizeof(struct quantize_plan),
};
/* clang-format on */
