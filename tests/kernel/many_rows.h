/*
 * many_rows.h - shapes of norms and their gradients: more rows than a device
 * has blocks for at once, so blocks take several, and add them up, or wide
 * rows that each have one; or a few rows of any width, from which a test makes
 * many.
 */
#ifndef ROPED_TESTS_MANY_ROWS_H
#define ROPED_TESTS_MANY_ROWS_H

#include "calls/random_call.h"

/* Gives the inputs of any width, packed rows, their shapes. */
void many_rows_shapes(struct random_call *made, struct random_source *source);

/* The same of norms: 2 to 6 rows of 17 to 4,224 packets of 16 bytes, or 7,168
 * of float32, half of them narrow, and half of whole packets, as FP8 with every
 * kind of scale, int8, MXFP8, MXFP4 or NVFP4, where there are codes. */
void any_width_shapes(struct random_call *made, struct random_source *source);

/* Norms of 272 to 1,280 heads of 385 to 2,048 elements, which mostly begin at
 * addresses that 16 bytes do not divide. */
void many_heads_shapes(struct random_call *made, struct random_source *source);

/* Sums of scaled terms, of more rows than a device holds in registers at once,
 * into codes. */
void many_terms_shapes(struct random_call *made, struct random_source *source);

/* Norms of 264 to 2,400 rows of 17 to 128 packets, which a warp of a GPU
 * takes, or a part of one. */
void rows_of_warps_shapes(struct random_call *made,
                          struct random_source *source);

#endif
