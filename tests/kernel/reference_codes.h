/*
 * reference_codes.h - what the references of operators with codes share:
 * where scales are, what they stand for, and formats of groups.
 */
#ifndef ROPED_TESTS_REFERENCE_CODES_H
#define ROPED_TESTS_REFERENCE_CODES_H

#include "kernel/reference_internal.h"

#include "ops/quantize.h"

#include <stdbool.h>

/* Of the eight magnitudes of four bits. */
double reference_e2m1(int code);

/* Where the scale of an element is, of rows of so many. */
int64_t reference_scale_at(const struct code_params *params,
                           const struct roped_tensor *scales, int64_t row,
                           int64_t column, int64_t width);

/* What the input of this number, or the parameter, is. */
double reference_global_scale(const struct roped_call *call, int input,
                              const struct code_params *params);

/* Values as codes, and between which numbers each of them may be: one number
 * where it is given, float32's share apart where it is computed. */
struct reference_coded {
    const struct roped_call *call;
    const struct quantize_params *params;
    const struct roped_tensor *y, *scales;
    int64_t n_rows, width;
    double global_scale;
    void (*bounds)(const struct reference_coded *of, int64_t i,
                   double bounds[2]);
};

/* Of a call whose outputs are those of quantize. */
void reference_codes(const struct reference_coded *of,
                     struct reference_judge *judge);

/* The same to MXFP8, MXFP4 or NVFP4. */
void reference_groups(const struct reference_coded *of,
                      struct reference_judge *judge);

/* Makes bounds those of the largest magnitude so far and that of value i; where
 * NaN counts it stays. */
void reference_widen(const struct reference_coded *of, int64_t i,
                     bool counts_nan, double bounds[2]);

/* A quotient, how far it may be off in float32, and whether it is so near to 0
 * that it may have either sign. */
struct reference_quotient {
    double exact, off;
    bool has_any_sign;
};
struct reference_quotient reference_divide(const struct reference_coded *of,
                                           int64_t i, double divisor);

/* found must be from low to high. */
void judge_between(struct reference_judge *judge, double found, double low,
                   double high, const char *what, int64_t i);

#endif
