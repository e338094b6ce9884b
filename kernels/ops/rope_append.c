/*
 * rope_append.c - the descriptor of rope_append: rope, and what it makes put
 * into a KV cache in the same pass.
 */
#include "ops/heads_append.h"

_Static_assert(offsetof(struct rope_append_params, rope) == 0,
               "rope_heads.h reads rope's parameters at the start");

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return heads_append_rule(call, &shape, err);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = rope_heads_shape(call);
    struct heads_plan *plan = rope_heads_plan(call, &shape);
    return heads_append_plan(call, &shape, plan, err);
}

static const char rule_doc[] =
    "what rope says of positions and angles; " HEADS_APPEND_RULE_DOC;

/* clang-format off */
const struct roped_op roped_op_rope_append = {
    .name = "rope_append",
    .since = "0.1",
    .summary = "rotate q and k, and put k and v into slots or pages of a KV cache",
    .type = {{"T", ROPED_FLOATS}, HEADS_APPEND_TYPES, ROPED_ANGLE_TYPES},
    .form = {
        ROPE_HEADS_FORMS,
        {"mla", "layout", ROPE_LAYOUT_NHD, "MLA: one k per token, in one cache behind v"},
    },
    .given = {
        {.when = "form=mla", .none = ROPED_INPUT(ROPE_APPEND_V_CACHE)},
        {.when = "form=heads,packed,bsd", .all = ROPED_INPUT(ROPE_APPEND_V_CACHE)},
        HEADS_APPEND_GIVEN,
        ROPED_ANGLE_GIVEN(ROPE_APPEND_POSITIONS),
    },
    .in = {
        [ROPE_APPEND_Q] = {"q", "T", ROPE_HEADS_Q_SHAPE "|n hq d", ROPED_STRIDED, .doc = "query heads"},
        [ROPE_APPEND_K] = {"k", "T", ROPE_HEADS_K_SHAPE "|n d", ROPED_STRIDED, .doc = "key heads; MLA: what rotates of the key"},
        [ROPE_APPEND_V] = {"v", "T", ROPE_HEADS_K_SHAPE "|n p", ROPED_STRIDED, .doc = "value heads; MLA: the latent part"},
        HEADS_APPEND_INPUTS(HEADS_APPEND_CACHE HEADS_APPEND_MLA_CACHE, ROPE_HEADS_N "|n"),
        [ROPE_APPEND_POSITIONS] = ROPED_ANGLE_INPUTS(
            ROPED_AXES("n") "|" ROPED_AXES("n") "|" ROPED_AXES("bs*s") "|" ROPED_AXES("n"),
            ROPED_PER_TOKEN("n") "|" ROPED_PER_TOKEN("n") "|" ROPED_PER_TOKEN("bs*s") "|" ROPED_PER_TOKEN("n")),
    },
    .out = {
        [ROPE_APPEND_Q_OUT] = {"q", "T", ROPE_HEADS_Q_SHAPE "|n hq d", ROPED_STRIDED, .in_place = "q", .doc = "q, rotated; of tokens without a slot too"},
        [ROPE_APPEND_K_OUT] = {"k", "T", ROPE_HEADS_K_SHAPE "|n d", ROPED_STRIDED, .requires_ = "return_k", .in_place = "k", .doc = "k, rotated, where return_k asks for it"},
        HEADS_APPEND_OUTPUTS(HEADS_APPEND_CACHE HEADS_APPEND_MLA_CACHE),
    },
    .params_bytes = sizeof(struct rope_append_params),
    .angles_offset = offsetof(struct rope_append_params, rope.angles),
    .param = {HEADS_APPEND_PARAMS},
    .tokens = ROPE_HEADS_TOKENS,
    .widths = "d",
    .rule = rule,
    .rule_doc = rule_doc,
    .aux_bytes = heads_append_aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_plan),
};
/* clang-format on */
