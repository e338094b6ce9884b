/*
 * scale.h - what values are multiplied by before they become FP8: a parameter,
 * or a tensor of one F32 by the same name, for clients that keep their scales
 * as tensors.
 */
#ifndef ROPED_OPS_SCALE_H
#define ROPED_OPS_SCALE_H

#include <roped/op.h>

#include <float.h>

/* clang-format off */
#define SCALE_PARAM(name, at, of) \
    {name, ROPED_PARAM_FLOAT, at, ROPED_ABOVE_MIN, 1, 0, FLT_MAX, .doc = of " values are multiplied by it before rounding to FP8"}
#define SCALE_INPUT(name) \
    {name, "F", "1", ROPED_OPTIONAL | ROPED_INDEX | ROPED_PLANNED, .holds = "numbers above 0", .doc = "the parameter of this name as a tensor, [1]"}
/* clang-format on */

/* The value: the tensor's where there is one, else param. */
ROPED_MUST_CHECK enum roped_status scale_plan(const struct roped_call *call,
                                              int port, double param,
                                              float *out,
                                              struct roped_error *err);

#endif
