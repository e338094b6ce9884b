/*
 * act_and_mul_backward.h - ports of act_and_mul_backward: with the slope of
 * the activation,
 *
 *     grad_gate = grad_y * (up + beta) * slope(gate)
 *     grad_up = grad_y * act(gate)
 *
 * and 0 where gate or up is at the limit or beyond. Parameters and plan are
 * those of act_and_mul.
 */
#ifndef ROPED_OPS_ACT_AND_MUL_BACKWARD_H
#define ROPED_OPS_ACT_AND_MUL_BACKWARD_H

#include "ops/act_and_mul.h"

enum {
    ACT_BACKWARD_GRAD_Y,
    ACT_BACKWARD_X,
    ACT_BACKWARD_GATE,
    ACT_BACKWARD_UP
};
enum { ACT_BACKWARD_GRAD_X, ACT_BACKWARD_GRAD_GATE, ACT_BACKWARD_GRAD_UP };

#endif
