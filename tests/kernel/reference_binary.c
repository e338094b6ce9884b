/*
 * reference_binary.c - binary_backward in float64, element by element of
 * grad_output with its full index: no collapsing, no tiles, no order.
 */
#include "kernel/reference_internal.h"

#include "ops/binary_backward.h"

#include <math.h>
#include <stdlib.h>

/* Element of an operand's shape at an index of the broadcast shape. */
static int64_t element_of(const struct roped_tensor *shape,
                          const struct roped_tensor *whole,
                          const int64_t *index)
{
    int64_t at = 0;
    int lead = whole->rank - shape->rank;
    for (int i = 0; i < shape->rank; i++)
        at = at * shape->dims[i] + (shape->dims[i] == 1 ? 0 : index[lead + i]);
    return at;
}

static void next_index(const struct roped_tensor *whole, int64_t *index)
{
    for (int i = whole->rank - 1; i >= 0; i--) {
        if (++index[i] < whole->dims[i])
            return;
        index[i] = 0;
    }
}

static double term_of(int function, bool is_a, double g, double a, double b)
{
    switch (function) {
    case BINARY_SUB:
        return is_a ? g : -g;
    case BINARY_MUL:
        return is_a ? g * b : g * a;
    case BINARY_DIV:
        return is_a ? g / b : -(g * (a / b / b));
    default:
        return g;
    }
}

static double *zeros(int64_t n)
{
    double *memory = calloc(n ? (size_t)n : 1, sizeof *memory);
    if (!memory)
        abort();
    return memory;
}

/* Adds the terms of one gradient, or their magnitudes, into sum. */
static void add_terms(const struct roped_call *call, int output,
                      bool is_magnitude, double *sum)
{
    const struct roped_tensor *g = &call->in[BINARY_GRAD_OUTPUT];
    const struct roped_tensor *a = &call->in[BINARY_A];
    const struct roped_tensor *b = &call->in[BINARY_B];
    const struct roped_tensor *shape_a = &call->out[BINARY_GRAD_A];
    const struct roped_tensor *shape_b = &call->out[BINARY_GRAD_B];
    const struct binary_params *params = (const void *)call->params;
    bool has_values = binary_needs_values(params->function);
    bool is_a = output == BINARY_GRAD_A;
    int64_t n = roped_tensor_elements(g);
    int64_t index[ROPED_MAX_RANK] = {0};
    for (int64_t i = 0; i < n; i++, next_index(g, index)) {
        int64_t at_a = element_of(shape_a, g, index);
        int64_t at_b = element_of(shape_b, g, index);
        double term = term_of(params->function, is_a, reference_value(g, i),
                              has_values ? reference_value(a, at_a) : 0,
                              has_values ? reference_value(b, at_b) : 0);
        sum[is_a ? at_a : at_b] += is_magnitude ? fabs(term) : term;
    }
}

double *reference_binary_magnitudes(const struct roped_call *call, int output)
{
    double *sum = zeros(roped_tensor_elements(&call->out[output]));
    add_terms(call, output, true, sum);
    return sum;
}

void reference_binary_backward(const struct roped_call *call,
                               struct reference_judge *judge)
{
    const struct roped_tensor *whole = &call->in[BINARY_GRAD_OUTPUT];
    for (int output = BINARY_GRAD_A; output <= BINARY_GRAD_B; output++) {
        const struct roped_tensor *out = &call->out[output];
        int64_t n = roped_tensor_elements(out);
        double *magnitude = reference_binary_magnitudes(call, output);
        double *sum = zeros(n);
        const int64_t terms = n ? roped_tensor_elements(whole) / n : 0;
        /* of a term that is a product, where float32 is subnormal */
        const double lost = 0x1p-150 / 1e-6 * (double)terms;
        add_terms(call, output, false, sum);
        for (int64_t i = 0; i < n; i++)
            judge_float(judge, out, i, sum[i], magnitude[i] + lost,
                        call->op->out[output].name);
        free(sum);
        free(magnitude);
    }
}
