/*
 * compare.c - element by element, row by row.
 */
#include "compare.h"

#include "tensor_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double relative = 2e-6; /* 1e-6 of both */
/* in the last place; of FP8; one code in so many */
enum { UNITS = 2, CODES = 1, CODES_APART = 1000 };

/* Two results to compare. */
struct pair {
    const struct roped_tensor *got, *expected, *magnitudes;
    int64_t width; /* of a row */
};

/* The largest finite magnitude of the row that element i begins. */
static double row_scale(const struct pair *pair, int64_t i)
{
    double scale = 0;
    for (int64_t j = i; j < i + pair->width; j++) {
        double value = fabs(tensor_value(pair->expected, j));
        if (isfinite(value) && value > scale)
            scale = value;
    }
    return scale;
}

/* The distance between neighbours at a value of the type. */
static double unit_at(enum roped_dtype dtype, double value)
{
    int mantissa = dtype == ROPED_F16 ? 10 : 7,
        least = dtype == ROPED_F16 ? -14 : -126, exponent;
    frexp(value, &exponent);
    exponent = value == 0 || exponent - 1 < least ? least : exponent - 1;
    return ldexp(1, exponent - mantissa);
}

static bool is_code(enum roped_dtype dtype)
{
    return dtype == ROPED_U8 || dtype == ROPED_F8_E4M3 ||
           dtype == ROPED_F8_E5M2;
}

static double tolerance_at(const struct pair *pair, int64_t i, double scale)
{
    enum roped_dtype dtype = pair->expected->dtype;
    if (is_code(dtype))
        return CODES;
    if (dtype == ROPED_F32)
        return relative * scale + 0x1p-149;
    if (dtype == ROPED_F16 || dtype == ROPED_BF16)
        return UNITS * unit_at(dtype, tensor_value(pair->expected, i)) +
               relative * scale;
    return 0;
}

/* Place of an FP8 code among all, from the most negative one. */
static int place_of(const struct roped_tensor *tensor, int64_t i)
{
    int code = ((const unsigned char *)tensor->data)[i];
    return code & 0x80 ? -(code & 0x7f) : code;
}

/* How far element i is off: in codes, or in values. */
static double difference_at(const struct pair *pair, int64_t i)
{
    double got = tensor_value(pair->got, i),
           expected = tensor_value(pair->expected, i);
    if (isnan(got) || isnan(expected))
        return isnan(got) && isnan(expected) ? 0 : INFINITY;
    if (is_code(pair->expected->dtype))
        return abs(place_of(pair->got, i) - place_of(pair->expected, i));
    return got == expected ? 0 : fabs(got - expected);
}

static bool has_other_bits(const struct pair *pair, int64_t i)
{
    size_t bytes = roped_dtype_bytes(pair->expected->dtype);
    return memcmp((const char *)pair->got->data + (size_t)i * bytes,
                  (const char *)pair->expected->data + (size_t)i * bytes,
                  bytes) != 0;
}

/* Counts element i, and keeps it if it is the farthest off so far. */
static void judge(struct comparison *out, const struct pair *pair, int64_t i,
                  double scale)
{
    double difference = difference_at(pair, i),
           tolerance = tolerance_at(pair, i, scale);
    out->n_differing++;
    if (difference > tolerance)
        out->is_within = false;
    /* without quotients: either tolerance may be 0 */
    if (out->worst >= 0 &&
        difference * out->tolerance <= out->difference * tolerance)
        return;
    out->worst = i;
    out->difference = difference;
    out->tolerance = tolerance;
    out->got = tensor_value(pair->got, i);
    out->expected = tensor_value(pair->expected, i);
}

struct comparison compare_tensors(const struct roped_tensor *got,
                                  const struct roped_tensor *expected,
                                  const struct roped_tensor *magnitudes)
{
    struct roped_tensor named = *got; /* U8 and U16 may stand for others */
    int rank = expected->rank;
    struct pair pair = {&named, expected, magnitudes,
                        rank ? expected->dims[rank - 1] : 1};
    struct comparison out = {
        .n = roped_tensor_elements(expected), .worst = -1, .is_within = true};
    named.dtype = expected->dtype;
    for (int64_t row = 0; row < out.n; row += pair.width) {
        double scale = -1;
        for (int64_t i = row; i < row + pair.width; i++) {
            if (!has_other_bits(&pair, i))
                continue;
            if (magnitudes)
                scale = fabs(tensor_value(magnitudes, i));
            else if (scale < 0)
                scale = row_scale(&pair, row);
            judge(&out, &pair, i, scale);
        }
    }
    if (is_code(expected->dtype) && out.n_differing > 1 + out.n / CODES_APART)
        out.is_within = false;
    return out;
}
