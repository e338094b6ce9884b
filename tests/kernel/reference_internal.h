/*
 * reference_internal.h - what the references of different operators share:
 * rounding to a type, and judging one element.
 */
#ifndef ROPED_TESTS_REFERENCE_INTERNAL_H
#define ROPED_TESTS_REFERENCE_INTERNAL_H

#include "kernel/reference.h"

/* Element i of an I32 or I64 tensor. */
int64_t reference_index(const struct roped_tensor *tensor, int64_t i);

/* Distance between neighbours of a float type at x. */
double reference_unit(double x, enum roped_dtype dtype);

/* x rounded to nearest even; FP8 saturated, other types without a largest. */
double reference_round(double x, enum roped_dtype dtype);

/* x rounded to F16 or BF16: Inf beyond it. F32 stays as it is. */
double reference_round_float(double x, enum roped_dtype dtype);

/* What the product of three loses where that of two is below float32's normal
 * range, and one of these brings it back. */
double reference_lost(double a, double b);

/*
 * Judges a value that may be off by allowed; NaN and Inf must be met. what and
 * i name the element.
 */
void judge_value(struct reference_judge *judge, double found, double exact,
                 double allowed, const char *what, int64_t i);

/*
 * Judges one element of a float output. scale is the magnitude that float32
 * arithmetic worked at (the row's largest, the pair's larger): 1e-6 of it is
 * float32's share, one unit of the type the rounding's.
 */
void judge_float(struct reference_judge *judge, const struct roped_tensor *out,
                 int64_t i, double exact, double scale, const char *what);

/*
 * Judges one FP8 code: that of the exact value, or of one within 1e-6 (of
 * scale) of it: the neighbour near a midpoint.
 */
void judge_fp8(struct reference_judge *judge, const struct roped_tensor *out,
               int64_t i, double exact, double scale, const char *what);

/* Counts an element that must be bit for bit right, and is or is not. */
void judge_bits(struct reference_judge *judge, bool is_right, int64_t i,
                const char *what);

/* Of rmsnorm, with heads or rounding=scale. */
void reference_heads_rmsnorm(const struct roped_call *call,
                             struct reference_judge *judge);

#endif
