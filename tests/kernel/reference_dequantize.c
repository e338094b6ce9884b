/*
 * reference_dequantize.c - dequantize in float64.
 */
#include "kernel/reference_internal.h"

#include "ops/dequantize.h"

#include <math.h>

static double code_value(const struct roped_tensor *x, int32_t format,
                         int64_t i)
{
    static const enum roped_dtype types[] = {ROPED_F8_E4M3, ROPED_F8_E5M2};
    struct roped_tensor as = *x;
    if (x->dtype == ROPED_I8 || (x->dtype == ROPED_U8 && format == CODES_INT8))
        return ((const int8_t *)x->data)[i];
    if (x->dtype == ROPED_U8)
        as.dtype = types[format];
    return reference_value(&as, i);
}

/* Where the scale of an element is. */
static int64_t scale_at(const struct code_params *params,
                        const struct roped_tensor *scales, int64_t row,
                        int64_t column)
{
    const bool is_by_columns = params->scale_layout == SCALES_COLUMNS ||
                               params->scale_layout == SCALES_COLUMNS_4;
    const int64_t last = scales->dims[scales->rank - 1];
    switch (params->granularity) {
    case CODES_TENSOR:
        return 0;
    case CODES_ROW:
        return row;
    case CODES_GROUP:
        column /= params->group_size;
        return is_by_columns ? column * last + row : row * last + column;
    default:
        return row / 128 * last + column / 128;
    }
}

void reference_dequantize(const struct roped_call *call,
                          struct reference_judge *judge)
{
    const struct dequantize_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[DEQUANTIZE_X];
    const struct roped_tensor *scales = &call->in[DEQUANTIZE_SCALES];
    const int64_t width = x->dims[x->rank - 1], n = roped_tensor_elements(x);
    for (int64_t i = 0; i < n; i++) {
        double scale = (double)(float)params->codes.dequant_scale;
        if (roped_tensor_given(scales))
            scale = reference_value(
                scales, scale_at(&params->codes, scales, i / width, i % width));
        double exact = code_value(x, params->codes.format, i) * scale;
        judge_float(judge, &call->out[DEQUANTIZE_Y], i, exact, fabs(exact),
                    "y");
    }
}
