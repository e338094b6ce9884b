/*
 * qk_rmsnorm_rope_append.c - the descriptor of qk_rmsnorm_rope_append: what
 * Qwen 3 and others do between their projection and attention, in one pass.
 */
#include "ops/qk_rmsnorm_rope_append.h"

#include "ops/heads_append.h"

_Static_assert(offsetof(struct qk_rmsnorm_rope_append_params, append) == 0,
               "heads_append.h reads rope_append's parameters at the start");

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return heads_append_rule(call, &shape, err);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct qk_rmsnorm_rope_append_params *params =
        (const void *)call->params;
    struct rotary_shape shape = rope_heads_shape(call);
    struct heads_plan *plan = rope_heads_plan(call, &shape);
    enum roped_status status = qk_norm_plan(
        call, QK_RMSNORM_ROPE_APPEND_Q_WEIGHT, &params->norm, plan, err);
    return status ? status : heads_append_plan(call, &shape, plan, err);
}

static const char rule_doc[] =
    "what rope says of positions and angles; " HEADS_APPEND_RULE_DOC;

#define AT(member) offsetof(struct qk_rmsnorm_rope_append_params, member)

/* clang-format off */
const struct roped_op roped_op_qk_rmsnorm_rope_append = {
    .name = "qk_rmsnorm_rope_append",
    .since = "0.1",
    .summary = "qk_rmsnorm_rope, with k and v put into slots or pages of a KV cache",
    .type = {{"T", ROPED_FLOATS}, HEADS_APPEND_TYPES, NORM_WEIGHT_TYPE, ROPED_ANGLE_TYPES},
    .form = {ROPE_HEADS_FORMS},
    .given = {
        {.all = ROPED_INPUT(ROPE_APPEND_V_CACHE)},
        HEADS_APPEND_GIVEN,
        QK_NORM_GIVEN(ROPE_APPEND_K, QK_RMSNORM_ROPE_APPEND_Q_WEIGHT),
        ROPED_ANGLE_GIVEN(QK_RMSNORM_ROPE_APPEND_POSITIONS),
    },
    .in = {
        [ROPE_APPEND_Q] = {"q", "T", ROPE_HEADS_Q_SHAPE, ROPED_STRIDED, .doc = "query heads"},
        [ROPE_APPEND_K] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_STRIDED, .doc = "key heads"},
        [ROPE_APPEND_V] = {"v", "T", ROPE_HEADS_K_SHAPE, ROPED_STRIDED, .doc = "value heads, which are not normalised"},
        HEADS_APPEND_INPUTS(HEADS_APPEND_CACHE, ROPE_HEADS_N),
        [QK_RMSNORM_ROPE_APPEND_Q_WEIGHT] = QK_NORM_INPUTS,
        [QK_RMSNORM_ROPE_APPEND_POSITIONS] = ROPE_HEADS_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_APPEND_Q_OUT] = {"q", "T", ROPE_HEADS_Q_SHAPE, ROPED_STRIDED, .in_place = "q", .doc = "q, normalised and rotated; of tokens without a slot too"},
        [ROPE_APPEND_K_OUT] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_STRIDED, .requires_ = "return_k", .in_place = "k", .doc = "k, normalised and rotated, where return_k asks for it"},
        HEADS_APPEND_OUTPUTS(HEADS_APPEND_CACHE),
    },
    .params_bytes = sizeof(struct qk_rmsnorm_rope_append_params),
    .angles_offset = AT(append.rope.angles),
    .param = {
        NORM_PARAMS(AT(norm)),
        HEADS_APPEND_PARAMS,
    },
    .tokens = ROPE_HEADS_TOKENS,
    .widths = "d",
    .rule = rule,
    .rule_doc = rule_doc,
    .aux_bytes = heads_append_aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_plan),
};
/* clang-format on */
