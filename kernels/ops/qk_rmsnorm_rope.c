/*
 * qk_rmsnorm_rope.c - the descriptor of qk_rmsnorm_rope: what Qwen 3, Gemma 3
 * and others do to q and k before attention, in one pass.
 */
#include "ops/qk_rmsnorm_rope.h"

#include "ops/rope_heads.h"

_Static_assert(offsetof(struct qk_rmsnorm_rope_params, rope) == 0,
               "rope_heads.h reads rope's parameters at the start");

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return rotary_rule(call, &shape, err);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    const struct qk_rmsnorm_rope_params *params = (const void *)call->params;
    struct rotary_shape shape = rope_heads_shape(call);
    struct heads_plan *plan = rope_heads_plan(call, &shape);
    enum roped_status status =
        qk_norm_plan(call, QK_RMSNORM_ROPE_Q_WEIGHT, &params->norm, plan, err);
    return status ? status : rotary_plan(call, &shape, &plan->rotary, err);
}

#define AT(member) offsetof(struct qk_rmsnorm_rope_params, member)

/* clang-format off */
const struct roped_op roped_op_qk_rmsnorm_rope = {
    .name = "qk_rmsnorm_rope",
    .since = "0.1",
    .summary = "normalise every head of q and k over its width, weight it, then rotate it",
    .type = {{"T", ROPED_FLOATS}, NORM_WEIGHT_TYPE, ROPED_ANGLE_TYPES},
    .form = {ROPE_HEADS_FORMS},
    .given = {
        QK_NORM_GIVEN(QK_RMSNORM_ROPE_K, QK_RMSNORM_ROPE_Q_WEIGHT),
        ROPED_ANGLE_GIVEN(QK_RMSNORM_ROPE_POSITIONS),
    },
    .in = {
        [QK_RMSNORM_ROPE_Q] = {"q", "T", ROPE_HEADS_Q_SHAPE, ROPED_STRIDED, .doc = "query heads"},
        [QK_RMSNORM_ROPE_K] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_OPTIONAL | ROPED_STRIDED, .doc = "key heads"},
        [QK_RMSNORM_ROPE_Q_WEIGHT] = QK_NORM_INPUTS,
        [QK_RMSNORM_ROPE_POSITIONS] = ROPE_HEADS_ANGLE_INPUTS,
    },
    .out = {
        [QK_RMSNORM_ROPE_Q_OUT] = {"q", "T", ROPE_HEADS_Q_SHAPE, ROPED_STRIDED, .in_place = "q", .doc = "q, normalised and rotated"},
        [QK_RMSNORM_ROPE_K_OUT] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_STRIDED, .requires_ = "k", .in_place = "k", .doc = "k, normalised and rotated"},
    },
    .params_bytes = sizeof(struct qk_rmsnorm_rope_params),
    .angles_offset = AT(rope.angles),
    .param = {
        NORM_PARAMS(AT(norm)),
        ROPE_HEADS_PARAMS,
    },
    .rows = "n",
    .tokens = ROPE_HEADS_TOKENS,
    .widths = "d",
    .rule = rule,
    .rule_doc = rotary_rule_doc,
    .aux_bytes = rope_heads_aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_plan),
};
/* clang-format on */
