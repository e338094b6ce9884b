/*
 * reference_codes.c - MXFP8, MXFP4 and NVFP4 in float64. Scales are met to the
 * bit; codes are those of the scale, and a neighbour only where float32 sees a
 * tie.
 */
#include "kernel/reference_codes.h"

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

void judge_between(struct reference_judge *judge, double found, double low,
                   double high, const char *what, int64_t i)
{
    judge_value(judge, found >= low && found <= high ? low : found, low, 0,
                what, i);
}

void reference_widen(const struct reference_coded *of, int64_t i,
                     bool counts_nan, double bounds[2])
{
    double value[2];
    of->bounds(of, i, value);
    if (isnan(value[0])) {
        if (counts_nan)
            bounds[0] = bounds[1] = NAN;
        return;
    }
    double low = fmin(fabs(value[0]), fabs(value[1]));
    if (signbit(value[0]) != signbit(value[1]))
        low = 0;
    if (low > bounds[0])
        bounds[0] = low;
    if (fmax(fabs(value[0]), fabs(value[1])) > bounds[1])
        bounds[1] = fmax(fabs(value[0]), fabs(value[1]));
}

struct reference_quotient reference_divide(const struct reference_coded *of,
                                           int64_t i, double divisor)
{
    double value[2];
    of->bounds(of, i, value);
    const bool is_one = value[0] == value[1]; /* and has its sign, also of 0 */
    const double half = is_one ? 0 : (value[1] - value[0]) / 2;
    const double middle =
        is_one || !isfinite(half) ? value[1] : value[0] + half;
    struct reference_quotient quotient = {
        .exact = divisor == 0 ? middle * 0 : middle / divisor,
        .has_any_sign = signbit(value[0]) != signbit(value[1])};
    if (isfinite(half) && isfinite(quotient.exact))
        quotient.off =
            1e-6 * fabs(quotient.exact) + (divisor == 0 ? 0 : half / divisor);
    return quotient;
}

struct groups {
    const struct reference_coded *of;
    const struct quantize_params *params;
    double largest; /* of a code */
    int64_t group;
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
                       int64_t i, struct reference_quotient quotient)
{
    const uint8_t *codes = g->of->y->data;
    const int found = codes[i / 2] >> i % 2 * 4 & 15;
    const double exact = quotient.exact, x = fabs(exact);
    const int sign = quotient.has_any_sign ? found & 8 : signbit(exact) ? 8 : 0;
    bool is_right = isnan(exact)
                        ? found == 7
                        : found >= (sign | e2m1_of(x - quotient.off)) &&
                              found <= (sign | e2m1_of(x + quotient.off));
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

/* By what values are divided; judges the scale, of largest magnitudes between
 * two. */
static double judge_scale(struct reference_judge *judge, const struct groups *g,
                          const double a[2], int64_t at)
{
    const uint8_t found = ((const uint8_t *)g->of->scales->data)[at];
    struct roped_tensor codes = *g->of->scales;
    double scale[2];
    if (g->params->codes.format != CODES_NVFP4) {
        judge_between(judge, found, e8m0_of(g, a[0]), e8m0_of(g, a[1]),
                      "scales", at);
        return found == 0xFF ? (double)NAN : ldexp(1, found - 127);
    }
    for (int i = 0; i < 2; i++) {
        float sixth = (float)(a[i] / 6);
        scale[i] = reference_round(
            (double)(float)((double)sixth * g->of->global_scale),
            ROPED_F8_E4M3);
    }
    codes.dtype = ROPED_F8_E4M3;
    judge_between(judge, reference_value(&codes, at), scale[0], scale[1],
                  "scales", at);
    return reference_value(&codes, at) / g->of->global_scale;
}

static void judge_group(struct reference_judge *judge, const struct groups *g,
                        int64_t first)
{
    const bool is_nv = g->params->codes.format == CODES_NVFP4;
    const int64_t width = g->of->width;
    struct roped_tensor codes = *g->of->y;
    double a[2] = {0, 0};
    for (int64_t i = first; i < first + g->group; i++)
        reference_widen(g->of, i, !is_nv, a);
    double divisor =
        judge_scale(judge, g, a,
                    reference_scale_at(&g->params->codes, g->of->scales,
                                       first / width, first % width, width));
    codes.dtype = ROPED_F8_E4M3;
    for (int64_t i = first; i < first + g->group; i++) {
        struct reference_quotient quotient =
            reference_divide(g->of, i, divisor);
        if (g->params->codes.format == CODES_MXFP8)
            judge_fp8(judge, &codes, i, quotient.exact, 1e6 * quotient.off,
                      "y");
        else
            judge_e2m1(judge, g, i, quotient);
    }
}

/* Every scale that no group has is 0. */
static void judge_padding(struct reference_judge *judge, const struct groups *g)
{
    const struct reference_coded *of = g->of;
    const uint8_t *scales = of->scales->data;
    const int64_t columns = of->width / g->group;
    int64_t sum = 0;
    for (int64_t i = 0; i < roped_tensor_elements(of->scales); i++)
        sum += scales[i];
    for (int64_t i = 0; i < of->n_rows * columns; i++)
        sum -= scales[reference_scale_at(&of->params->codes, of->scales,
                                         i / columns, i % columns * g->group,
                                         of->width)];
    judge_value(judge, (double)sum, 0, 0, "padding", 0);
}

void reference_groups(const struct reference_coded *of,
                      struct reference_judge *judge)
{
    const struct groups g = {
        .of = of,
        .params = of->params,
        .largest = of->params->codes.format == CODES_MXFP8 ? 448 : 6,
        .group = columns_of_tile(&of->params->codes, of->width)};
    for (int64_t i = 0; i < of->n_rows * of->width; i += g.group)
        judge_group(judge, &g, i);
    judge_padding(judge, &g);
}
