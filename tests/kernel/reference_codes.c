/*
 * reference_codes.c - MXFP8, MXFP4 and NVFP4 in float64. Scales are met to the
 * bit; codes are those of the scale, and a neighbour only where float32 sees a
 * tie.
 */
#include "kernel/reference_codes.h"

#include "ops/quantize.h"

#include <math.h>

double reference_e2m1(int code)
{
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

static int64_t columns_of_tile(const struct code_params *params, int64_t width)
{
    if (params->format == CODES_NVFP4)
        return 16;
    if (params->format == CODES_MXFP8 || params->format == CODES_MXFP4)
        return 32;
    if (params->granularity == CODES_GROUP)
        return params->group_size;
    return params->granularity == CODES_BLOCK ? 128 : width;
}

int64_t reference_scale_at(const struct code_params *params,
                           const struct roped_tensor *scales, int64_t row,
                           int64_t column, int64_t width)
{
    const int64_t last = scales->dims[scales->rank - 1];
    const int64_t columns = columns_of_tile(params, width);
    const int64_t c = column / columns, g = width / columns;
    const bool is_micro = params->format >= CODES_MXFP8;
    if (params->scale_layout == SCALES_SWIZZLED)
        return (row / 128 * ((g + 3) / 4) + c / 4) * 512 + row % 32 * 16 +
               row / 32 % 4 * 4 + c % 4;
    if (!is_micro && params->granularity == CODES_TENSOR)
        return 0;
    if (!is_micro && params->granularity == CODES_ROW)
        return row;
    if (!is_micro && params->granularity == CODES_BLOCK)
        return row / 128 * last + c;
    if (params->scale_layout == SCALES_COLUMNS ||
        params->scale_layout == SCALES_COLUMNS_4)
        return c * last + row;
    return row * last + c;
}

double reference_global_scale(const struct roped_call *call, int input,
                              const struct code_params *params)
{
    if (roped_tensor_given(&call->in[input]))
        return reference_value(&call->in[input], 0);
    return (double)(float)params->global_scale;
}

/* ------------------------------------------------------------------ codes */

struct groups {
    const struct quantize_params *params;
    const struct roped_tensor *x, *y, *scales;
    double global_scale, largest; /* of a code */
    int64_t width, group;
};

/* The code of a magnitude, ties to the even one. */
static int e2m1_of(double x)
{
    int code = 0;
    while (code < 7) {
        double middle = (reference_e2m1(code) + reference_e2m1(code + 1)) / 2;
        if (x < middle || (x == middle && code % 2 == 0))
            break;
        code++;
    }
    return code;
}

static void judge_e2m1(struct reference_judge *judge, const struct groups *g,
                       int64_t i, double exact)
{
    const int found = ((const uint8_t *)g->y->data)[i / 2] >> i % 2 * 4 & 15;
    const double x = fabs(exact), off = 1e-6 * x;
    const int sign = signbit(exact) ? 8 : 0;
    bool is_right = isnan(exact) ? found == 7
                                 : found >= (sign | e2m1_of(x - off)) &&
                                       found <= (sign | e2m1_of(x + off));
    if (isinf(exact))
        is_right = found == (sign | 7);
    judge_bits(judge, is_right, i, "y");
}

/* What the largest magnitude of a group makes of its scale's code. */
static uint8_t e8m0_of(const struct groups *g, double a)
{
    if (isnan(a) || (isinf(a) && g->params->infinity == INFINITY_IS_NAN))
        return 0xFF;
    if (isinf(a))
        return 0xFE;
    if (a == 0)
        return 0;
    int power = ilogb(a) - ilogb(g->largest);
    if (g->params->scale_rounding != SCALE_ROUND_FLOOR &&
        a > ldexp(g->largest, power))
        power++;
    return (uint8_t)(power < -127 ? 0 : power + 127);
}

/* By what values are divided; judges the scale. */
static double judge_scale(struct reference_judge *judge, const struct groups *g,
                          double a, int64_t at)
{
    const uint8_t found = ((const uint8_t *)g->scales->data)[at];
    struct roped_tensor codes = *g->scales;
    if (g->params->codes.format != CODES_NVFP4) {
        uint8_t code = e8m0_of(g, a);
        judge_value(judge, found, code, 0, "scales", at);
        return code == 0xFF ? (double)NAN : ldexp(1, code - 127);
    }
    float sixth = (float)(a / 6);
    double scale = reference_round(
        (double)(float)((double)sixth * g->global_scale), ROPED_F8_E4M3);
    codes.dtype = ROPED_F8_E4M3;
    judge_value(judge, reference_value(&codes, at), scale, 0, "scales", at);
    return scale / g->global_scale;
}

static void judge_group(struct reference_judge *judge, const struct groups *g,
                        int64_t first)
{
    struct roped_tensor codes = *g->y;
    double a = 0;
    const bool is_nv = g->params->codes.format == CODES_NVFP4;
    for (int64_t i = first; i < first + g->group; i++) {
        double x = fabs(reference_value(g->x, i));
        if (isnan(x) ? !is_nv : x > a)
            a = x;
    }
    double divisor = judge_scale(
        judge, g, a,
        reference_scale_at(&g->params->codes, g->scales, first / g->width,
                           first % g->width, g->width));
    codes.dtype = ROPED_F8_E4M3;
    for (int64_t i = first; i < first + g->group; i++) {
        double x = reference_value(g->x, i);
        double exact = divisor == 0 ? x * 0 : x / divisor;
        if (g->params->codes.format == CODES_MXFP8)
            judge_fp8(judge, &codes, i, exact, 0, "y");
        else
            judge_e2m1(judge, g, i, exact);
    }
}

/* Every scale that no group has is 0. */
static void judge_padding(struct reference_judge *judge, const struct groups *g,
                          int64_t n_rows)
{
    const int64_t n = roped_tensor_elements(g->scales);
    const int64_t columns = g->width / g->group;
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((const uint8_t *)g->scales->data)[i];
    for (int64_t i = 0; i < n_rows * columns; i++)
        sum -= ((const uint8_t *)g->scales->data)[reference_scale_at(
            &g->params->codes, g->scales, i / columns, i % columns * g->group,
            g->width)];
    judge_value(judge, (double)sum, 0, 0, "padding", 0);
}

void reference_groups(const struct roped_call *call,
                      struct reference_judge *judge)
{
    const struct quantize_params *params = (const void *)call->params;
    struct groups g = {.params = params,
                       .x = &call->in[QUANTIZE_X],
                       .y = &call->out[QUANTIZE_Y],
                       .scales = &call->out[QUANTIZE_SCALES],
                       .largest =
                           params->codes.format == CODES_MXFP8 ? 448 : 6};
    g.width = g.x->dims[g.x->rank - 1];
    g.group = columns_of_tile(&params->codes, g.width);
    g.global_scale =
        reference_global_scale(call, QUANTIZE_GLOBAL_SCALE, &params->codes);
    const int64_t n = roped_tensor_elements(g.x);
    for (int64_t i = 0; i < n; i += g.group)
        judge_group(judge, &g, i);
    judge_padding(judge, &g, n / g.width);
}
