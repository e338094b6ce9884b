/*
 * rope.c - the descriptor of rope: rotate q (and k) by their positions.
 */
#include "ops/rope_heads.h"

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return rotary_rule(call, &shape, err);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    struct heads_plan *plan = rope_heads_plan(call, &shape);
    return rotary_plan(call, &shape, &plan->rotary, err);
}

/* clang-format off */
const struct roped_op roped_op_rope = {
    .name = "rope",
    .since = "0.1",
    .summary = "rotate query and key heads by their positions",
    .type = {{"T", ROPED_FLOATS}, ROPED_ANGLE_TYPES},
    .form = {ROPE_HEADS_FORMS},
    .given = {ROPED_ANGLE_GIVEN(ROPE_POSITIONS)},
    .in = {
        [ROPE_Q] = {"q", "T", ROPE_HEADS_Q_SHAPE, ROPED_STRIDED, .doc = "query heads"},
        [ROPE_K] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_OPTIONAL | ROPED_STRIDED, .doc = "key heads"},
        [ROPE_POSITIONS] = ROPE_HEADS_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_Q_OUT] = {"q", "T", ROPE_HEADS_Q_SHAPE, ROPED_STRIDED, .in_place = "q", .doc = "q, rotated"},
        [ROPE_K_OUT] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_STRIDED, .requires_ = "k", .in_place = "k", .doc = "k, rotated"},
    },
    .params_bytes = sizeof(struct rope_params),
    .angles_offset = offsetof(struct rope_params, angles),
    .param = {ROPE_HEADS_PARAMS},
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
