/*
 * reference_compare.c - compare in float64, of float32 differences. An element
 * that float32 sees at the tolerance may count or not.
 */
#include "kernel/reference_internal.h"

#include "ops/compare.h"

#include <math.h>

struct expected {
    double dot, aa, bb, largest, relative, steps;
    int64_t first, first_nan, n_nan, surely_beyond, perhaps_beyond;
};

/* How many numbers of the type are between 0 and x, x included. */
static double place_of(double x, enum roped_dtype dtype)
{
    const double least = reference_unit(0, dtype);
    const double largest = dtype == ROPED_F16   ? 65504
                           : dtype == ROPED_F32 ? 0x1.fffffep127
                                                : 0x1.fep127;
    double magnitude =
        fabs(dtype == ROPED_F32 ? x : reference_round_float(x, dtype));
    if (isinf(magnitude))
        return copysign(place_of(largest, dtype) + 1, x);
    const double unit = reference_unit(magnitude, dtype);
    /* every exponent above the least has as many numbers as there are below */
    const double of_exponent = dtype == ROPED_F16   ? 1024
                               : dtype == ROPED_F32 ? 8388608
                                                    : 128;
    return copysign(log2(unit / least) * of_exponent + magnitude / unit, x);
}

static void add_products(struct expected *e, double a, double b)
{
    if (!isfinite(a) || !isfinite(b))
        return;
    e->dot += a * b;
    e->aa += a * a;
    e->bb += b * b;
}

static void add(struct expected *e, const struct roped_call *call, int64_t i,
                enum roped_dtype coarser)
{
    const struct compare_params *params = (const void *)call->params;
    const double a = reference_value(&call->in[COMPARE_A], i);
    const double b = reference_value(&call->in[COMPARE_B], i);
    add_products(e, a, b);
    if (isnan(a) != isnan(b)) {
        e->first_nan = e->n_nan++ ? e->first_nan : i;
        return;
    }
    if (isnan(a) || a == b)
        return;
    const double d = fabs((double)(float)(a - b));
    const double bound = (double)(float)params->atol +
                         (isinf(b) ? 0 : (double)(float)params->rtol * fabs(b));
    e->surely_beyond += isinf(a) || isinf(b) || d > bound * (1 + 1e-6) + 1e-44;
    e->perhaps_beyond += isinf(d) || d >= bound * (1 - 1e-6) - 1e-44;
    if (d > e->largest) {
        e->largest = d;
        e->first = i;
    }
    e->relative =
        fmax(e->relative, isinf(d) ? d : (double)(float)(d / fabs(b)));
    e->steps =
        fmax(e->steps, fabs(place_of(a, coarser) - place_of(b, coarser)));
}

static double cosine_of(const struct expected *e)
{
    if (e->aa == 0 || e->bb == 0)
        return e->aa == e->bb;
    return e->dot / sqrt(e->aa) / sqrt(e->bb);
}

void reference_compare(const struct roped_call *call,
                       struct reference_judge *judge)
{
    const enum roped_dtype a = call->in[COMPARE_A].dtype;
    const enum roped_dtype b = call->in[COMPARE_B].dtype;
    const enum roped_dtype coarser = a == ROPED_BF16 || b == ROPED_BF16
                                         ? ROPED_BF16
                                     : a == ROPED_F16 ? a
                                                      : b;
    struct expected e = {.first = -1, .first_nan = -1};
    for (int64_t i = 0; i < roped_tensor_elements(&call->in[COMPARE_A]); i++)
        add(&e, call, i, coarser);
    const int64_t *counts = call->out[COMPARE_COUNTS].data;
    const float *stats = call->out[COMPARE_STATS].data;
    const double exact[] = {e.largest, e.relative, (double)(float)e.steps};
    judge_value(judge, (double)*(const int64_t *)call->out[COMPARE_INDEX].data,
                (double)(e.first_nan < 0 ? e.first : e.first_nan), 0, "index",
                0);
    judge_bits(judge,
               counts[0] >= e.surely_beyond && counts[0] <= e.perhaps_beyond, 0,
               "counts");
    judge_value(judge, (double)counts[1], (double)e.n_nan, 0, "counts", 1);
    for (int i = 0; i < 3; i++)
        judge_value(judge, (double)stats[i], exact[i], 0, "stats", i);
    judge_value(judge, (double)stats[3], cosine_of(&e), 1e-6, "stats", 3);
}
