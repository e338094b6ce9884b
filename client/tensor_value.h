/*
 * tensor_value.h - an element of a tensor as a number.
 */
#ifndef ROPED_CLIENT_TENSOR_VALUE_H
#define ROPED_CLIENT_TENSOR_VALUE_H

#include <roped/tensor.h>

/* Element i; integers over 2^53 are rounded. */
double tensor_value(const struct roped_tensor *tensor, int64_t i);

#endif
