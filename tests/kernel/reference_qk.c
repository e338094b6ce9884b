/*
 * reference_qk.c - heads in float64 that are normalised over their whole width,
 * weighted, and then rotated.
 */
#include "kernel/reference_rotary.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct norm_rows {
    const struct head_rows *heads;
    const struct roped_tensor *weight;
    const struct rmsnorm_params *params;
};

static double gain_of(const struct norm_rows *rows, int64_t i)
{
    if (!roped_tensor_given(rows->weight))
        return 1;
    return (double)(float)rows->params->weight_bias +
           reference_value(rows->weight, i);
}

/* The head at element at, normalised and weighted; returns the largest finite
 * magnitude. slack: what rounding hf may move an element by. */
static double normalize_head(const struct norm_rows *rows, int64_t at,
                             double *y, double *slack)
{
    int64_t d = rows->heads->width;
    enum roped_dtype dtype = rows->heads->in->dtype;
    bool is_hf = rows->params->rounding == RMSNORM_ROUND_HF;
    double sum = 0, largest = 0;
    for (int64_t i = 0; i < d; i++) {
        double x = reference_value(rows->heads->in, at + i);
        sum += x * x;
    }
    double s = 1 / sqrt(sum / (double)d + rows->params->eps);
    if (s > (double)FLT_MAX)
        s = INFINITY;
    for (int64_t i = 0; i < d; i++) {
        double gain = gain_of(rows, i);
        double x = reference_value(rows->heads->in, at + i) * s;
        slack[i] = reference_lost(s, gain);
        if (is_hf)
            slack[i] += reference_unit(x, dtype) * fabs(gain);
        y[i] = (is_hf ? reference_round(x, dtype) : x) * gain;
        if (isfinite(y[i]))
            largest = fmax(largest, fabs(y[i]));
    }
    return largest;
}

/* A head's value, of which y are a pair's, or the product of a gain and an
 * angle, whichever is made first: beyond float32 it is Inf there, and what
 * comes of it no number. */
static bool is_beyond(const struct norm_rows *rows, const double *y, int64_t a,
                      int64_t b, double angle)
{
    double gain = fmax(fabs(gain_of(rows, a)), fabs(gain_of(rows, b)));
    return fmax(gain * angle, fmax(fabs(y[a]), fabs(y[b]))) > (double)FLT_MAX;
}

static void judge_head(struct reference_judge *judge,
                       const struct angle_view *view,
                       const struct norm_rows *rows, int64_t token,
                       int64_t from, int64_t at, double *y)
{
    const struct head_rows *heads = rows->heads;
    double *slack = y + heads->width;
    double largest = normalize_head(rows, from, y, slack);
    if (is_padding(view, token)) {
        for (int64_t i = 0; i < heads->width; i++)
            judge_copied(judge, heads, from + i, at + i);
        return;
    }
    int64_t end = heads->first + 2 * view->n_pairs;
    for (int64_t i = 0; i < heads->width; i++)
        if (i < heads->first || i >= end)
            judge_one(judge, heads, at + i, y[i], largest + slack[i] * 1e6);
    for (int64_t pair = 0; pair < view->n_pairs; pair++) {
        int64_t a, b;
        double c, s;
        pair_places(heads->style, heads->first, view->n_pairs, pair, &a, &b);
        angle_of(view, token, pair, &c, &s);
        double angle = fmax(fabs(c), fabs(s));
        double scale = (largest + 1e6 * (slack[a] + slack[b])) * angle;
        scale += 1e6 * reference_lost(sqrt((double)heads->width), 0);
        if (is_beyond(rows, y, a, b, angle))
            scale = fmax(scale, (double)FLT_MAX);
        judge_one(judge, heads, at + a, y[a] * c - y[b] * s, scale);
        judge_one(judge, heads, at + b, y[b] * c + y[a] * s, scale);
    }
}

void judge_normal_rows(struct reference_judge *judge,
                       const struct angle_view *view,
                       const struct head_rows *heads,
                       const struct norm_view *norm, int which)
{
    struct norm_rows rows = {heads, &norm->weight[which], norm->params};
    double *y = malloc((size_t)heads->width * 2 * sizeof *y);
    int64_t from, to;
    if (!y)
        abort();
    for (int64_t token = 0; token < view->n_tokens; token++)
        for (int64_t head = 0; head < heads->heads; head++)
            if (find_row(heads, token, head, &from, &to))
                judge_head(judge, view, &rows, token, from, to, y);
    free(y);
}
