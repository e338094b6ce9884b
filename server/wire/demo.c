/*
 * demo.c - sum, difference and identity.
 */
#include "wire/demo.h"

#include <string.h>

enum { SIMPLE_MAX_BATCH = 8 };

/* Nothing is planned: demo_run reads the call. */
static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    (void)call;
    (void)err;
    return ROPED_OK;
}

static enum roped_status check_batch(struct roped_call *call,
                                     struct roped_error *err)
{
    int64_t batch = call->in[0].dims[0];
    if (batch <= SIMPLE_MAX_BATCH)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "inference request batch-size must be <= %d for '%s', "
                      "got %lld",
                      SIMPLE_MAX_BATCH, call->op->name, (long long)batch);
}

/* clang-format off */
static const struct roped_op simple = {
    .name = "simple",
    .since = "0.1",
    .summary = "sum and difference of two integer tensors",
    .type = {{"T", ROPED_SET(ROPED_I32)}},
    .in = {
        {"INPUT0", "T", "b 16", .doc = "first operand"},
        {"INPUT1", "T", "b 16", .doc = "second operand"},
    },
    .out = {
        {"OUTPUT0", "T", "b 16", .doc = "INPUT0 + INPUT1"},
        {"OUTPUT1", "T", "b 16", .doc = "INPUT0 - INPUT1"},
    },
    .angles_offset = ROPED_NO_ANGLES,
    .rule = check_batch,
    .rule_doc = "the first dim is a batch of at most 8",
    .plan = plan,
};

static const struct roped_op identity = {
    .name = "identity_fp32",
    .since = "0.1",
    .summary = "what it is given",
    .type = {{"T", ROPED_SET(ROPED_F32)}},
    .in = {{"INPUT0", "T", "n", .doc = "any values"}},
    .out = {{"OUTPUT0", "T", "n", .doc = "the same"}},
    .angles_offset = ROPED_NO_ANGLES,
    .plan = plan,
};
/* clang-format on */

static const struct roped_op *const demos[DEMO_COUNT] = {&simple, &identity};

const struct roped_op *demo_at(int index)
{
    return demos[index];
}

bool demo_is(const struct roped_op *op)
{
    return op == &simple || op == &identity;
}

int demo_max_batch(const struct roped_op *op)
{
    return op == &simple ? SIMPLE_MAX_BATCH : 0;
}

/* Wraps around, as integers do in the original. */
static void add_and_subtract(struct roped_call *call)
{
    int64_t n = roped_tensor_elements(&call->in[0]);
    const unsigned char *left = call->in[0].data, *right = call->in[1].data;
    unsigned char *sum = call->out[0].data, *difference = call->out[1].data;
    for (int64_t i = 0; i < n; i++) {
        uint32_t a, b, out[2];
        memcpy(&a, left + i * 4, 4);
        memcpy(&b, right + i * 4, 4);
        out[0] = a + b;
        out[1] = a - b;
        memcpy(sum + i * 4, &out[0], 4);
        memcpy(difference + i * 4, &out[1], 4);
    }
}

void demo_run(struct roped_call *call)
{
    size_t bytes = (size_t)roped_tensor_bytes(&call->in[0]);
    if (call->op == &simple)
        add_and_subtract(call);
    else if (bytes > 0)
        memcpy(call->out[0].data, call->in[0].data, bytes);
}
