/*
 * rope_quantize.c - the descriptor of rope_quantize: rotate, scale and round
 * to FP8, for MLA, GQA and MHA attention.
 */
#include "ops/rope_quantize.h"

#include "ops/angle_params.h"
#include "ops/rotary.h"

static const struct rope_quantize_params *
params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

static struct rotary_shape shape_of(const struct roped_call *call)
{
    const struct rope_quantize_params *params = params_of(call);
    const struct roped_tensor *q = &call->in[ROPE_QUANTIZE_Q_ROPE];
    return (struct rotary_shape){.first_port = ROPE_QUANTIZE_POSITIONS,
                                 .n_tokens = q->dims[0],
                                 .tokens_per_sequence = q->dims[0],
                                 .head_dim = q->dims[2],
                                 .rotary_dim = params->rotary_dim,
                                 .rotary_offset = params->rotary_offset,
                                 .offset = params->offset,
                                 .style = params->style,
                                 .inverse = params->inverse};
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = shape_of(call);
    int64_t given = params_of(call)->head_dim;
    bool has_q = roped_tensor_given(&call->in[ROPE_QUANTIZE_Q_NOPE]);
    bool has_k = roped_tensor_given(&call->in[ROPE_QUANTIZE_K_NOPE]);
    if (has_q != has_k)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': '%s' is given and needs it",
                          has_q ? "k_nope" : "q_nope",
                          has_q ? "q_nope" : "k_nope");
    if (shape.head_dim == 0)
        return roped_fail(err, ROPED_INVALID,
                          "tensor 'q_rope': dim 2 is 0, expected a rotary "
                          "width above 0");
    if (given && given != shape.head_dim)
        return roped_fail(err, ROPED_INVALID,
                          "parameter 'head_dim': %lld, expected r = %lld (set "
                          "by 'q_rope')",
                          (long long)given, (long long)shape.head_dim);
    return rotary_rule(call, &shape, err);
}

static size_t aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = shape_of(call);
    return rotary_aux_bytes(call, &shape);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rope_quantize_plan *plan = (void *)call->plan;
    const struct rope_quantize_params *params = params_of(call);
    const struct roped_tensor *k = &call->in[ROPE_QUANTIZE_K_ROPE];
    const struct roped_tensor *nope = &call->in[ROPE_QUANTIZE_Q_NOPE];
    struct rotary_shape shape = shape_of(call);
    plan->q_heads = call->in[ROPE_QUANTIZE_Q_ROPE].dims[1];
    plan->k_heads = k->rank == 3 ? k->dims[1] : 1;
    plan->rope_dim = shape.head_dim;
    plan->nope_dim = roped_tensor_given(nope) ? nope->dims[2] : 0;
    plan->rotary_offset = shape.rotary_offset;
    plan->scale_q = (float)params->scale_q;
    plan->scale_k = (float)params->scale_k;
    return rotary_plan(call, &shape, &plan->rotary, err);
}

#define AT(member) offsetof(struct rope_quantize_params, member)

/* clang-format off */
const struct roped_op roped_op_rope_quantize = {
    .name = "rope_quantize",
    .since = "0.1",
    .summary = "rotate the rotary part, scale and round both parts to FP8",
    .type = {{"T", ROPED_FLOATS}, {"Q", ROPED_FP8S}, ROPED_ANGLE_TYPES},
    .form = {
        {"heads", .doc = "GQA and MHA: k has heads"},
        {"mla", .doc = "MLA: one k per token, without a head dim"},
    },
    .in = {
        [ROPE_QUANTIZE_Q_ROPE] = {"q_rope", "T", "n hq r", .doc = "rotary part of the query heads"},
        [ROPE_QUANTIZE_K_ROPE] = {"k_rope", "T", "n hk r|n r", .doc = "rotary part of the key heads"},
        [ROPE_QUANTIZE_Q_NOPE] = {"q_nope", "T", "n hq p", ROPED_OPTIONAL, .doc = "non-rotary part of the query heads"},
        [ROPE_QUANTIZE_K_NOPE] = {"k_nope", "T", "n hk p|n p", ROPED_OPTIONAL, .doc = "non-rotary part of the key heads"},
        [ROPE_QUANTIZE_POSITIONS] = ROPED_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_QUANTIZE_Q_ROPE_OUT] = {"q_rope", "Q", "n hq r", .doc = "FP8 of q_rope, rotated, times scale_q"},
        [ROPE_QUANTIZE_K_ROPE_OUT] = {"k_rope", "Q", "n hk r|n r", .doc = "FP8 of k_rope, rotated, times scale_k"},
        [ROPE_QUANTIZE_Q_NOPE_OUT] = {"q_nope", "Q", "n hq p", .requires_ = "q_nope", .doc = "FP8 of q_nope times scale_q"},
        [ROPE_QUANTIZE_K_NOPE_OUT] = {"k_nope", "Q", "n hk p|n p", .requires_ = "k_nope", .doc = "FP8 of k_nope times scale_k"},
    },
    .params_bytes = sizeof(struct rope_quantize_params),
    .angles_offset = AT(angles),
    .param = {
        {"output_dtype", ROPED_PARAM_DTYPE, AT(output_dtype), .choices = "e4m3|e5m2", .type = "Q", .doc = "FP8 format of the outputs"},
        {"scale_q", ROPED_PARAM_FLOAT, AT(scale_q), ROPED_ABOVE_MIN, 1, 0, FLT_MAX, .doc = "q values are multiplied by it before rounding"},
        {"scale_k", ROPED_PARAM_FLOAT, AT(scale_k), ROPED_ABOVE_MIN, 1, 0, FLT_MAX, .doc = "k values are multiplied by it before rounding"},
        {"style", ROPED_PARAM_CHOICE, AT(style), .choices = "neox|gptj", .doc = "which elements pair: neox i with i + r/2, gptj 2i with 2i + 1"},
        {"head_dim", ROPED_PARAM_INT, AT(head_dim), 0, 0, 0, 65536, .doc = "width of q_rope and k_rope; 0: from the shape"},
        {"rotary_dim", ROPED_PARAM_INT, AT(rotary_dim), 0, 0, 0, 65536, .doc = "rotated width, even; 0: the width of q_rope"},
        {"rotary_offset", ROPED_PARAM_INT, AT(rotary_offset), 0, 0, 0, 65536, .doc = "first rotated element of q_rope and k_rope"},
        {"offset", ROPED_PARAM_INT, AT(offset), 0, 0, 0, (1 << 24) - 1, .doc = "implicit positions: that of the first token"},
        {"inverse", ROPED_PARAM_BOOL, AT(inverse), .doc = "rotate backwards"},
        ROPED_ANGLE_PARAMS(rope_quantize_params),
    },
    .rule = rule,
    .rule_doc = rotary_rule_doc,
    .aux_bytes = aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct rope_quantize_plan),
};
/* clang-format on */
