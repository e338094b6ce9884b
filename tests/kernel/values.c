/*
 * values.c - values at the edges of types.
 */
#include "kernel/values.h"

#include <roped/numeric.h>

#include <math.h>
#include <string.h>

const char *values_name(enum values kind)
{
    static const char *const names[VALUES_KINDS] = {
        "normal", "small",  "large",   "beyond", "away",  "positive",
        "listed", "spread", "extreme", "far",    "equal", "non-finite"};
    return names[kind];
}

void values_set(const struct roped_tensor *tensor, int64_t i, double value)
{
    if (tensor->dtype == ROPED_F32)
        ((float *)tensor->data)[i] = (float)value;
    else if (tensor->dtype == ROPED_F16)
        ((uint16_t *)tensor->data)[i] = roped_float_to_f16((float)value);
    else
        ((uint16_t *)tensor->data)[i] = roped_float_to_bf16((float)value);
}

static double pick(struct random_source *source, const double *from, int n)
{
    return from[random_int(source, 0, n - 1)];
}

static int64_t width_of(const struct roped_tensor *tensor)
{
    return tensor->rank ? tensor->dims[tensor->rank - 1] : 1;
}

/* Uniform in [-1, 1]. */
static double part(struct random_source *source)
{
    return (double)random_int(source, -1000, 1000) / 1000;
}

static void fill_away(struct random_source *source,
                      const struct roped_tensor *tensor, bool is_positive)
{
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++) {
        double x = 2 * part(source);
        values_set(tensor, i,
                   is_positive ? 0.5 + fabs(x) : x + copysign(0.5, x));
    }
}

static void fill_listed(struct random_source *source,
                        const struct roped_tensor *tensor)
{
    static const double list[] = {
        0,        -0.0,      1,         -1,       2,  -3,  17,    19,
        0x1p-9,   -0x1p-9,   0x3p-10,   0x1p-10,  -8, 25,  60000, -27,
        0x1p-126, -0x1p-133, 0x1.1p-10, 0x1p-140, 21, -23, 29,    448};
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++)
        values_set(tensor, i, pick(source, list, sizeof list / sizeof *list));
}

static void fill_spread(struct random_source *source,
                        const struct roped_tensor *tensor)
{
    int most = tensor->dtype == ROPED_F16 ? 14 : 126;
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++)
        values_set(tensor, i,
                   ldexp(copysign(1 + fabs(part(source)), part(source)),
                         (int)random_int(source, -most, most)));
}

static void fill_extreme(struct random_source *source,
                         const struct roped_tensor *tensor)
{
    static const double wide[] = {1e38, 3e37, 1e-30, 0x1p80, 0x1p-80};
    static const double narrow[] = {60000, 300, 0x1p-14, 0x1p-20};
    double value = tensor->dtype == ROPED_F16 ? pick(source, narrow, 4)
                                              : pick(source, wide, 5);
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++)
        values_set(tensor, i, random_once_in(source, 2) ? value : -value);
}

static void fill_far(struct random_source *source,
                     const struct roped_tensor *tensor)
{
    static const double middles[] = {-3, 1000, -60000, 1e6, 3e7, 1e-20, 1e37};
    static const double widths[] = {0.05, 1e-5};
    int n_middles = tensor->dtype == ROPED_F16 ? 3 : 7;
    int64_t n = roped_tensor_elements(tensor), h = width_of(tensor);
    double middle = 0, width = widths[tensor->dtype == ROPED_F32];
    for (int64_t i = 0; i < n; i++) {
        if (i % h == 0)
            middle = pick(source, middles, n_middles);
        double off = i % h || random_once_in(source, 2) ? 1 : -0.9;
        values_set(tensor, i, middle * off * (1 + width * part(source)));
    }
}

static void fill_equal(struct random_source *source,
                       const struct roped_tensor *tensor)
{
    static const double list[] = {0, 1, -1000.1, 3e-30, 1e6 + 0.7, 5e37};
    int n_values = tensor->dtype == ROPED_F16 ? 3 : 6;
    int64_t n = roped_tensor_elements(tensor), h = width_of(tensor);
    double value = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % h == 0)
            value = pick(source, list, n_values);
        values_set(tensor, i, value);
    }
}

/* NaN whose lower bits look like those of a number among them. */
static void spoil(struct random_source *source,
                  const struct roped_tensor *tensor)
{
    static const uint32_t wide[] = {0x7FD55555, 0xFFFFFFFF, 0x7FC00000};
    static const uint16_t narrow[] = {0x7FFF, 0xFFFF, 0x7FD5};
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t some = n ? 1 + n / 500 : 0; some > 0; some--) {
        int64_t i = random_int(source, 0, n - 1);
        int which = (int)random_int(source, 0, 4);
        if (which > 2)
            values_set(tensor, i, which == 3 ? INFINITY : -INFINITY);
        else if (tensor->dtype == ROPED_F32)
            memcpy((float *)tensor->data + i, &wide[which], sizeof(float));
        else
            ((uint16_t *)tensor->data)[i] = narrow[which];
    }
}

void values_fill(struct random_source *source,
                 const struct roped_tensor *tensor, enum values kind)
{
    static const double scales[VALUES_KINDS] = {
        [VALUES_SMALL] = 0.001, [VALUES_LARGE] = 60, [VALUES_BEYOND] = 40000};
    switch (kind) {
    case VALUES_AWAY:
    case VALUES_POSITIVE:
        fill_away(source, tensor, kind == VALUES_POSITIVE);
        break;
    case VALUES_LISTED:
        fill_listed(source, tensor);
        break;
    case VALUES_SPREAD:
        fill_spread(source, tensor);
        break;
    case VALUES_EXTREME:
        fill_extreme(source, tensor);
        break;
    case VALUES_FAR:
        fill_far(source, tensor);
        break;
    case VALUES_EQUAL:
        fill_equal(source, tensor);
        break;
    default:
        random_fill(source, tensor, scales[kind] > 0 ? scales[kind] : 1, true);
        if (kind == VALUES_NON_FINITE)
            spoil(source, tensor);
    }
}
