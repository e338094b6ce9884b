/*
 * binary_backward.h - ports, parameters and plan of binary_backward: the
 * gradients of out = a (function) b with NumPy broadcasting, each summed over
 * the dims in which its operand was broadcast.
 *
 *     function   term of grad_a   term of grad_b
 *     add        g                g
 *     sub        g                -g
 *     mul        g * b            g * a
 *     div        g / b            -(g * ((a / b) / b))
 */
#ifndef ROPED_OPS_BINARY_BACKWARD_H
#define ROPED_OPS_BINARY_BACKWARD_H

#include <roped/angles.h>
#include <roped/tensor.h>

enum { BINARY_GRAD_OUTPUT, BINARY_A, BINARY_B };
enum { BINARY_GRAD_A, BINARY_GRAD_B };

enum binary_function { BINARY_ADD, BINARY_SUB, BINARY_MUL, BINARY_DIV };

struct binary_params {
    int32_t function; /* enum binary_function */
    int32_t reserved;
    struct roped_ints a_shape, b_shape;
};

/* Which operands have a dim of their own there; the other is broadcast. */
enum { BINARY_IN_A = 1, BINARY_IN_B = 2 };

struct binary_dim {
    int64_t size;
    int32_t in; /* BINARY_IN_A, BINARY_IN_B or both */
    int32_t reserved;
};

/*
 * The broadcast shape, collapsed: no dims of size 1, and neighbours with the
 * same 'in' are one, so two to four dims are left of most calls, none of one
 * element. A gradient's elements are the dims that its operand is in; it is
 * summed over the others.
 */
struct binary_plan {
    int32_t function; /* enum binary_function */
    int32_t rank;
    struct binary_dim dim[ROPED_MAX_RANK];
    int64_t n; /* elements of grad_output; 0: the gradients are zeros */
};

/* Does the function need the values of a and b? */
static inline bool binary_needs_values(int32_t function)
{
    return function == BINARY_MUL || function == BINARY_DIV;
}

#endif
