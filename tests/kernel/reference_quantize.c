/*
 * reference_quantize.c - quantize in float64. Scales are met to the bit; codes
 * are those of the scale, and a neighbour only where float32 sees a tie.
 */
#include "kernel/reference_codes.h"

#include <float.h>
#include <math.h>

/* Rows and columns of a tile; rows 0: of all. */
struct tile {
    int64_t rows, columns;
};

static struct tile tile_of(const struct reference_coded *of)
{
    const struct quantize_params *params = of->params;
    struct tile tile = {of->n_rows, of->width};
    if (params->dynamic && params->codes.granularity != CODES_TENSOR)
        tile.rows = 1;
    if (params->codes.granularity == CODES_GROUP)
        tile.columns = params->codes.group_size;
    if (params->codes.granularity == CODES_BLOCK)
        tile.rows = tile.columns = 128;
    return tile;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double expected_scale(const struct quantize_params *params, double a)
{
    const double largest[] = {448, 57344, 127};
    const double m = largest[params->codes.format];
    double bound = isnan(params->scale_ub) ? (double)FLT_MAX
                                           : (double)(float)params->scale_ub;
    double least =
        params->codes.format == CODES_INT8 ? 0 : (double)(float)(1 / (512 * m));
    double scale = (double)(float)(smaller(a, bound) / m);
    scale = scale > least ? scale : least;
    if (scale == 0)
        scale = 1;
    if (params->scale_rounding == SCALE_ROUND_POWER_OF_TWO)
        scale =
            exp2(ceil(log2(scale < (double)FLT_MIN ? (double)FLT_MIN : scale)));
    return scale;
}

static void judge_int8(struct reference_judge *judge,
                       const struct reference_coded *of, int64_t i,
                       struct reference_quotient quotient)
{
    const double least = of->params->dynamic ? -127 : -128;
    const double exact = quotient.exact, off = quotient.off;
    const double found = ((const int8_t *)of->y->data)[i];
    double low = nearbyint(fmax(least, smaller(127, exact - off)));
    double high = nearbyint(fmax(least, smaller(127, exact + off)));
    double nearest = nearbyint(fmax(least, smaller(127, exact)));
    if (isnan(exact))
        low = high = nearest = 0;
    judge_value(judge, found >= low && found <= high ? nearest : found, nearest,
                0, "y", i);
}

/* Rows [row, end) of columns [first, last), which share a scale. */
static void judge_tile(struct reference_judge *judge,
                       const struct reference_coded *of, const int64_t rows[2],
                       const int64_t columns[2])
{
    const struct quantize_params *params = of->params;
    double largest[2] = {0, 0};
    double scale = (double)(float)params->codes.dequant_scale;
    for (int64_t r = rows[0]; r < rows[1]; r++)
        for (int64_t c = columns[0]; c < columns[1]; c++)
            reference_widen(of, r * of->width + c, false, largest);
    if (params->dynamic) {
        int64_t at = reference_scale_at(&params->codes, of->scales, rows[0],
                                        columns[0], of->width);
        scale = reference_value(of->scales, at);
        const double high = expected_scale(params, largest[1]);
        double low = expected_scale(params, largest[0]);
        if (low > high && scale <= high) /* a scale of 0 would be 1 */
            low = 0;
        judge_between(judge, scale, low, high, "scales", at);
    }
    for (int64_t r = rows[0]; r < rows[1]; r++)
        for (int64_t c = columns[0]; c < columns[1]; c++) {
            int64_t i = r * of->width + c;
            struct reference_quotient quotient = reference_divide(of, i, scale);
            if (params->codes.format == CODES_INT8)
                judge_int8(judge, of, i, quotient);
            else
                judge_fp8(judge, of->y, i, quotient.exact, 1e6 * quotient.off,
                          "y");
        }
}

void reference_codes(const struct reference_coded *of,
                     struct reference_judge *judge)
{
    const struct tile tile = tile_of(of);
    const struct code_params *codes = &of->params->codes;
    int64_t r = 0;
    if (codes->format >= CODES_MXFP8) {
        reference_groups(of, judge);
        return;
    }
    do { /* a tensor without rows has a scale too */
        const int64_t end = r + tile.rows;
        const int64_t rows[] = {r, end < of->n_rows ? end : of->n_rows};
        for (int64_t c = 0; c < of->width && (rows[1] > r || tile.rows == 0);
             c += tile.columns) {
            const int64_t last = c + tile.columns;
            judge_tile(judge, of, rows,
                       (int64_t[]){c, last < of->width ? last : of->width});
        }
        r += tile.rows;
    } while (r < of->n_rows);
    for (int64_t i = 0; codes->scale_layout == SCALES_COLUMNS_4 &&
                        i < roped_tensor_elements(of->scales);
         i++)
        if (i % of->scales->dims[1] >= of->n_rows)
            judge_value(judge, reference_value(of->scales, i), 0, 0, "padding",
                        i);
}

static void bounds_of_x(const struct reference_coded *of, int64_t i,
                        double bounds[2])
{
    bounds[0] = bounds[1] = reference_value(&of->call->in[QUANTIZE_X], i);
}

void reference_quantize(const struct roped_call *call,
                        struct reference_judge *judge)
{
    const struct quantize_params *params = (const void *)call->params;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    const int64_t width = x->dims[x->rank - 1];
    const struct reference_coded of = {
        .call = call,
        .params = params,
        .y = &call->out[QUANTIZE_Y],
        .scales = &call->out[QUANTIZE_SCALES],
        .n_rows = roped_tensor_elements(x) / width,
        .width = width,
        .global_scale =
            reference_global_scale(call, QUANTIZE_GLOBAL_SCALE, &params->codes),
        .bounds = bounds_of_x};
    reference_codes(&of, judge);
}
