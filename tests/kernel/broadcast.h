/*
 * broadcast.h - shapes of two operands that broadcast, for binary_backward.
 */
#ifndef ROPED_TESTS_BROADCAST_H
#define ROPED_TESTS_BROADCAST_H

#include "calls/random_call.h"

/* Gives grad_output and the operands, or a_shape and b_shape, their shapes. */
void broadcast_shapes(struct random_call *made, struct random_source *source);

#endif
