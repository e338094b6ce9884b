/*
 * binary_backward.c - the descriptor of binary_backward.
 */
#include "ops/binary_backward.h"

#include <stdio.h>

static const char *const function_names[] = {"add", "sub", "mul", "div"};

static const struct binary_params *params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

/* Size of the shape's dim at place i of a broadcast shape of this rank. */
static int64_t dim_at(const struct roped_tensor *shape, int rank, int i)
{
    int own = i - (rank - shape->rank);
    return own < 0 ? 1 : shape->dims[own];
}

static const char *operand(const struct roped_call *call, int input)
{
    bool is_given = roped_tensor_given(&call->in[input]);
    if (input == BINARY_A)
        return is_given ? "tensor 'a'" : "parameter 'a_shape'";
    return is_given ? "tensor 'b'" : "parameter 'b_shape'";
}

/* The operands' shapes are those of the gradients. */
static enum roped_status broadcast(const struct roped_call *call,
                                   struct roped_tensor *shape,
                                   struct roped_error *err)
{
    const struct roped_tensor *a = &call->out[BINARY_GRAD_A];
    const struct roped_tensor *b = &call->out[BINARY_GRAD_B];
    char text[128];
    shape->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int i = 0; i < shape->rank; i++) {
        int64_t of_a = dim_at(a, shape->rank, i);
        int64_t of_b = dim_at(b, shape->rank, i);
        if (of_a != of_b && of_a != 1 && of_b != 1)
            return roped_fail(
                err, ROPED_BAD_SHAPE,
                "%s: dim %d is %lld, expected %lld or 1 to broadcast with "
                "%s of shape %s",
                operand(call, BINARY_B), i - (shape->rank - b->rank),
                (long long)of_b, (long long)of_a, operand(call, BINARY_A),
                roped_shape_text(a->dims, a->rank, text, sizeof text));
        shape->dims[i] = of_a == 1 ? of_b : of_a;
    }
    return ROPED_OK;
}

static enum roped_status check_values(const struct roped_call *call,
                                      struct roped_error *err)
{
    int32_t function = params_of(call)->function;
    for (int i = BINARY_A; i <= BINARY_B && binary_needs_values(function); i++)
        if (!roped_tensor_given(&call->in[i]))
            return roped_fail(err, ROPED_INVALID,
                              "missing tensor '%s': function %s needs its "
                              "values",
                              call->op->in[i].name, function_names[function]);
    return ROPED_OK;
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    const struct roped_tensor *found = &call->in[BINARY_GRAD_OUTPUT];
    struct roped_tensor expected = {.dtype = found->dtype};
    char texts[4][128];
    enum roped_status status = check_values(call, err);
    if (!status)
        status = broadcast(call, &expected, err);
    if (status)
        return status;
    bool is_same = found->rank == expected.rank;
    for (int i = 0; i < expected.rank && is_same; i++)
        is_same = found->dims[i] == expected.dims[i];
    if (is_same)
        return ROPED_OK;
    const struct roped_tensor *shown[] = {
        found, &expected, &call->out[BINARY_GRAD_A], &call->out[BINARY_GRAD_B]};
    for (int i = 0; i < 4; i++)
        roped_shape_text(shown[i]->dims, shown[i]->rank, texts[i],
                         sizeof texts[i]);
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor 'grad_output': shape %s, expected %s, to which "
                      "%s of %s and %s of %s broadcast",
                      texts[0], texts[1], operand(call, BINARY_A), texts[2],
                      operand(call, BINARY_B), texts[3]);
}

/* Appends a dim, or merges it with the last one where that is alike. */
static void add_dim(struct binary_plan *plan, int64_t size, int32_t in)
{
    struct binary_dim *last = plan->dim + plan->rank - 1;
    if (plan->rank > 0 && last->in == in)
        last->size *= size;
    else
        plan->dim[plan->rank++] = (struct binary_dim){.size = size, .in = in};
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct binary_plan *plan = (void *)call->plan;
    const struct roped_tensor *g = &call->in[BINARY_GRAD_OUTPUT];
    const struct roped_tensor *a = &call->out[BINARY_GRAD_A];
    const struct roped_tensor *b = &call->out[BINARY_GRAD_B];
    (void)err;
    plan->function = params_of(call)->function;
    plan->rank = 0;
    plan->n = roped_tensor_elements(g);
    for (int i = 0; i < g->rank && plan->n > 0; i++) {
        int32_t in = 0;
        in |= dim_at(a, g->rank, i) == g->dims[i] ? BINARY_IN_A : 0;
        in |= dim_at(b, g->rank, i) == g->dims[i] ? BINARY_IN_B : 0;
        if (g->dims[i] != 1)
            add_dim(plan, g->dims[i], in);
    }
    return ROPED_OK;
}

#define AT(member) offsetof(struct binary_params, member)
#define MAX_DIM    9007199254740992.0 /* 2^53: what JSON numbers can say */

/* clang-format off */
const struct roped_op roped_op_binary_backward = {
    .name = "binary_backward",
    .since = "0.1",
    .summary = "gradients of a + b, a - b, a * b or a / b with broadcasting, summed to each operand's shape",
    .type = {{"T", ROPED_FLOATS}},
    .in = {
        [BINARY_GRAD_OUTPUT] = {"grad_output", "T", "...o", .doc = "gradient of the result, of the shape to which a and b broadcast"},
        [BINARY_A] = {"a", "T", "...a", ROPED_OPTIONAL, .doc = "left operand; add and sub need its shape only"},
        [BINARY_B] = {"b", "T", "...b", ROPED_OPTIONAL, .doc = "right operand; add and sub need its shape only"},
    },
    .out = {
        [BINARY_GRAD_A] = {"grad_a", "T", "...a", .doc = "gradient of a, summed over every dim in which a was broadcast"},
        [BINARY_GRAD_B] = {"grad_b", "T", "...b", .doc = "gradient of b, summed over every dim in which b was broadcast"},
    },
    .params_bytes = sizeof(struct binary_params),
    .angles_offset = ROPED_NO_ANGLES,
    .param = {
        {"function", ROPED_PARAM_CHOICE, AT(function), .choices = "add|sub|mul|div", .doc = "what the forward pass computed"},
        {"a_shape", ROPED_PARAM_INTS, AT(a_shape), ROPED_NO_DEFAULT, 0, 0, MAX_DIM, .shape = "a", .doc = "shape of a where a itself is not sent, as 4,1,8; empty for a scalar"},
        {"b_shape", ROPED_PARAM_INTS, AT(b_shape), ROPED_NO_DEFAULT, 0, 0, MAX_DIM, .shape = "b", .doc = "shape of b where b itself is not sent"},
    },
    .rule = rule,
    .rule_doc = "a and b broadcast to the shape of grad_output by NumPy's rule; mul and div need their values",
    .plan = plan,
    .plan_bytes = sizeof(struct binary_plan),
};
/* clang-format on */
