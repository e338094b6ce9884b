/*
 * many_rows.h - shapes of norms and their gradients with more rows than a
 * device has blocks for at once: blocks take several, and add them up.
 */
#ifndef ROPED_TESTS_MANY_ROWS_H
#define ROPED_TESTS_MANY_ROWS_H

#include "calls/random_call.h"

/* Gives the inputs of any width, packed rows, their shapes. */
void many_rows_shapes(struct random_call *made, struct random_source *source);

#endif
