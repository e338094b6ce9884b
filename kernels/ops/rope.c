/*
 * rope.c - the descriptor of rope: rotate q (and k) by their positions.
 */
#include "ops/rope.h"

#include "ops/angle_params.h"
#include "ops/rotary.h"

static const struct rope_params *params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

static struct rotary_shape shape_of(const struct roped_call *call)
{
    const struct rope_params *params = params_of(call);
    const struct roped_tensor *q = &call->in[ROPE_Q];
    struct rotary_shape shape = {.first_port = ROPE_POSITIONS,
                                 .rotary_dim = params->rotary_dim,
                                 .rotary_offset = params->rotary_offset,
                                 .offset = params->offset,
                                 .style = params->style,
                                 .inverse = params->inverse};
    shape.head_dim = q->rank == 3 ? q->dims[2] : params->head_dim;
    shape.n_tokens = q->dims[0];
    shape.tokens_per_sequence = q->dims[0];
    if (params->layout == ROPE_LAYOUT_BSD) {
        shape.n_tokens = q->dims[0] * q->dims[1];
        shape.tokens_per_sequence = q->dims[1];
    }
    return shape;
}

static enum roped_status check_packed(const struct roped_call *call, int port,
                                      struct roped_error *err)
{
    const struct roped_tensor *tensor = &call->in[port];
    int64_t d = params_of(call)->head_dim;
    if (!roped_tensor_given(tensor) || tensor->rank == 3)
        return ROPED_OK;
    if (d == 0)
        return roped_fail(err, ROPED_INVALID,
                          "missing parameter 'head_dim': tensor '%s' is [n, "
                          "heads * head_dim]",
                          call->op->in[port].name);
    if (tensor->dims[1] % d)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': dim 1 is %lld, expected a multiple of "
                          "head_dim = %lld",
                          call->op->in[port].name, (long long)tensor->dims[1],
                          (long long)d);
    return ROPED_OK;
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = shape_of(call);
    int64_t given = params_of(call)->head_dim;
    enum roped_status status = check_packed(call, ROPE_Q, err);
    if (!status)
        status = check_packed(call, ROPE_K, err);
    if (!status && given && given != shape.head_dim)
        status = roped_fail(err, ROPED_INVALID,
                            "parameter 'head_dim': %lld, expected d = %lld "
                            "(set by 'q')",
                            (long long)given, (long long)shape.head_dim);
    if (!status && shape.head_dim == 0)
        status = roped_fail(err, ROPED_INVALID,
                            "tensor 'q': dim 2 is 0, expected a head width "
                            "above 0");
    return status ? status : rotary_rule(call, &shape, err);
}

static size_t aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = shape_of(call);
    return rotary_aux_bytes(call, &shape);
}

static int64_t heads_of(const struct roped_tensor *tensor,
                        const struct rotary_shape *shape, bool is_bsd)
{
    if (!roped_tensor_given(tensor))
        return 0;
    if (is_bsd)
        return 1;
    return tensor->rank == 3 ? tensor->dims[1]
                             : tensor->dims[1] / shape->head_dim;
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rope_plan *plan = (void *)call->plan;
    struct rotary_shape shape = shape_of(call);
    bool is_bsd = params_of(call)->layout == ROPE_LAYOUT_BSD;
    plan->q_heads = heads_of(&call->in[ROPE_Q], &shape, is_bsd);
    plan->k_heads = heads_of(&call->in[ROPE_K], &shape, is_bsd);
    plan->head_dim = shape.head_dim;
    plan->rotary_offset = shape.rotary_offset;
    return rotary_plan(call, &shape, &plan->rotary, err);
}

#define AT(member) offsetof(struct rope_params, member)

/* clang-format off */
const struct roped_op roped_op_rope = {
    .name = "rope",
    .since = "0.1",
    .summary = "rotate query and key heads by their positions",
    .type = {{"T", ROPED_FLOATS}, ROPED_ANGLE_TYPES},
    .form = {
        {"heads", "layout", ROPE_LAYOUT_NHD, "a token is heads of head_dim elements"},
        {"packed", "layout", ROPE_LAYOUT_NHD, "a token is one row of heads * head_dim elements"},
        {"bsd", "layout", ROPE_LAYOUT_BSD, "batches of sequences of one head each"},
    },
    .in = {
        [ROPE_Q] = {"q", "T", "n hq d|n hqd|bs s d", .doc = "query heads"},
        [ROPE_K] = {"k", "T", "n hk d|n hkd|bs s d", ROPED_OPTIONAL, .doc = "key heads"},
        [ROPE_POSITIONS] = ROPED_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_Q_OUT] = {"q", "T", "n hq d|n hqd|bs s d", .in_place = "q", .doc = "q, rotated"},
        [ROPE_K_OUT] = {"k", "T", "n hk d|n hkd|bs s d", .requires_ = "k", .in_place = "k", .doc = "k, rotated"},
    },
    .params_bytes = sizeof(struct rope_params),
    .angles_offset = AT(angles),
    .param = {
        {"style", ROPED_PARAM_CHOICE, AT(style), .choices = "neox|gptj", .doc = "which elements pair: neox i with i + r/2, gptj 2i with 2i + 1"},
        {"layout", ROPED_PARAM_CHOICE, AT(layout), .choices = "nhd|bsd", .doc = "nhd: [n, heads, d] or [n, heads * d]; bsd: [b, s, d]"},
        {"head_dim", ROPED_PARAM_INT, AT(head_dim), 0, 0, 0, 65536, .doc = "head width d; needed for [n, heads * d]"},
        {"rotary_dim", ROPED_PARAM_INT, AT(rotary_dim), 0, 0, 0, 65536, .doc = "rotated width r, even; 0: the whole head"},
        {"rotary_offset", ROPED_PARAM_INT, AT(rotary_offset), 0, 0, 0, 65536, .doc = "first rotated element of the head"},
        {"offset", ROPED_PARAM_INT, AT(offset), 0, 0, 0, (1 << 24) - 1, .doc = "implicit positions: that of each sequence's first token"},
        {"inverse", ROPED_PARAM_BOOL, AT(inverse), .doc = "rotate backwards: the gradient of rope"},
        ROPED_ANGLE_PARAMS(rope_params),
    },
    .rule = rule,
    .rule_doc = rotary_rule_doc,
    .aux_bytes = aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct rope_plan),
};
/* clang-format on */
