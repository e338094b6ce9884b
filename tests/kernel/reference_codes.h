/*
 * reference_codes.h - what the references of quantize and dequantize share:
 * where scales are, what they stand for, and formats of groups.
 */
#ifndef ROPED_TESTS_REFERENCE_CODES_H
#define ROPED_TESTS_REFERENCE_CODES_H

#include "kernel/reference_internal.h"

#include "ops/codes.h"

/* Of the eight magnitudes of four bits. */
double reference_e2m1(int code);

/* Where the scale of an element is, of rows of so many. */
int64_t reference_scale_at(const struct code_params *params,
                           const struct roped_tensor *scales, int64_t row,
                           int64_t column, int64_t width);

/* What the input of this number, or the parameter, is. */
double reference_global_scale(const struct roped_call *call, int input,
                              const struct code_params *params);

/* Judges a call of quantize to MXFP8, MXFP4 or NVFP4. */
void reference_groups(const struct roped_call *call,
                      struct reference_judge *judge);

#endif
