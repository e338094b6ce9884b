/*
 * reference_dequantize.c - dequantize in float64.
 */
#include "kernel/reference_codes.h"

#include "ops/dequantize.h"

#include <math.h>

static double code_value(const struct roped_tensor *x, int32_t format,
                         int64_t i)
{
    struct roped_tensor as = *x;
    if (x->dtype == ROPED_I8 || (x->dtype == ROPED_U8 && format == CODES_INT8))
        return ((const int8_t *)x->data)[i];
    if (format == CODES_MXFP4 || format == CODES_NVFP4)
        return reference_e2m1(((const uint8_t *)x->data)[i / 2] >> i % 2 * 4 &
                              15);
    if (x->dtype == ROPED_U8)
        as.dtype = format == CODES_E5M2 ? ROPED_F8_E5M2 : ROPED_F8_E4M3;
    return reference_value(&as, i);
}

/* The scale of an element. */
static double scale_of(const struct roped_call *call, int64_t row,
                       int64_t column, int64_t width)
{
    const struct dequantize_params *params = (const void *)call->params;
    struct roped_tensor scales = call->in[DEQUANTIZE_SCALES];
    if (!roped_tensor_given(&scales))
        return (double)(float)params->codes.dequant_scale;
    int64_t at =
        reference_scale_at(&params->codes, &scales, row, column, width);
    if (params->codes.format < CODES_MXFP8)
        return reference_value(&scales, at);
    if (params->codes.format < CODES_NVFP4) {
        int code = ((const uint8_t *)scales.data)[at];
        return code == 0xFF ? (double)NAN : ldexp(1, code - 127);
    }
    scales.dtype = ROPED_F8_E4M3;
    return (double)(float)(reference_value(&scales, at) /
                           reference_global_scale(call, DEQUANTIZE_GLOBAL_SCALE,
                                                  &params->codes));
}

void reference_dequantize(const struct roped_call *call,
                          struct reference_judge *judge)
{
    const struct dequantize_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[DEQUANTIZE_X];
    const struct roped_tensor *y = &call->out[DEQUANTIZE_Y];
    const int64_t width = y->dims[y->rank - 1], n = roped_tensor_elements(y);
    for (int64_t i = 0; i < n; i++) {
        double exact = code_value(x, params->codes.format, i) *
                       scale_of(call, i / width, i % width, width);
        judge_float(judge, y, i, exact, fabs(exact), "y");
    }
}
