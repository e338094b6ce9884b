/*
 * reference_quantize.c - quantize in float64. Scales are met to the bit; codes
 * are those of the scale, and a neighbour only where float32 sees a tie.
 */
#include "kernel/reference_codes.h"

#include "ops/quantize.h"

#include <float.h>
#include <math.h>

struct tiles {
    const struct roped_tensor *x, *y, *scales;
    const struct quantize_params *params;
    int64_t n_rows, width, rows, columns; /* of all, of a tile */
};

static struct tiles tiles_of(const struct roped_call *call)
{
    struct tiles t = {&call->in[QUANTIZE_X],
                      &call->out[QUANTIZE_Y],
                      &call->out[QUANTIZE_SCALES],
                      (const void *)call->params,
                      0,
                      0,
                      1,
                      0};
    t.width = t.columns = t.x->dims[t.x->rank - 1];
    t.n_rows = t.rows = roped_tensor_elements(t.x) / t.width;
    if (t.params->dynamic && t.params->codes.granularity != CODES_TENSOR)
        t.rows = 1;
    if (t.params->codes.granularity == CODES_GROUP)
        t.columns = t.params->codes.group_size;
    if (t.params->codes.granularity == CODES_BLOCK)
        t.rows = t.columns = 128;
    return t;
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

static void judge_int8(struct reference_judge *judge, const struct tiles *t,
                       int64_t i, double exact)
{
    const double least = t->params->dynamic ? -127 : -128;
    const double found = ((const int8_t *)t->y->data)[i],
                 off = 1e-6 * fabs(exact);
    double low = nearbyint(fmax(least, smaller(127, exact - off)));
    double high = nearbyint(fmax(least, smaller(127, exact + off)));
    double nearest = nearbyint(fmax(least, smaller(127, exact)));
    if (isnan(exact))
        low = high = nearest = 0;
    judge_value(judge, found == low || found == high ? nearest : found, nearest,
                0, "y", i);
}

/* Rows [row, end) of columns [first, last), which share a scale. */
static void judge_tile(struct reference_judge *judge, const struct tiles *t,
                       const int64_t rows[2], const int64_t columns[2])
{
    double largest = 0, scale = (double)(float)t->params->codes.dequant_scale;
    for (int64_t r = rows[0]; r < rows[1]; r++)
        for (int64_t c = columns[0]; c < columns[1]; c++)
            largest =
                fmax(largest, fabs(reference_value(t->x, r * t->width + c)));
    if (t->params->dynamic) {
        int64_t at = reference_scale_at(&t->params->codes, t->scales, rows[0],
                                        columns[0], t->width);
        scale = expected_scale(t->params, largest);
        judge_value(judge, reference_value(t->scales, at), scale, 0, "scales",
                    at);
    }
    for (int64_t r = rows[0]; r < rows[1]; r++)
        for (int64_t c = columns[0]; c < columns[1]; c++) {
            int64_t i = r * t->width + c;
            double exact = reference_value(t->x, i) / scale;
            if (t->params->codes.format == CODES_INT8)
                judge_int8(judge, t, i, exact);
            else
                judge_fp8(judge, t->y, i, exact, 0, "y");
        }
}

void reference_quantize(const struct roped_call *call,
                        struct reference_judge *judge)
{
    const struct tiles t = tiles_of(call);
    const bool is_padded = t.params->codes.scale_layout == SCALES_COLUMNS_4;
    int64_t r = 0;
    if (t.params->codes.format >= CODES_MXFP8) {
        reference_groups(call, judge);
        return;
    }
    do { /* a tensor without rows has a scale too */
        const int64_t rows[] = {r,
                                r + t.rows < t.n_rows ? r + t.rows : t.n_rows};
        for (int64_t c = 0; c < t.width && (rows[1] > r || t.rows == 0);
             c += t.columns) {
            const int64_t end = c + t.columns;
            judge_tile(judge, &t, rows,
                       (int64_t[]){c, end < t.width ? end : t.width});
        }
        r += t.rows;
    } while (r < t.n_rows);
    for (int64_t i = 0; is_padded && i < roped_tensor_elements(t.scales); i++)
        if (i % t.scales->dims[1] >= t.n_rows)
            judge_value(judge, reference_value(t.scales, i), 0, 0, "padding",
                        i);
}
