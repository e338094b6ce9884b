/*
 * rope_quantize.c - the descriptor of rope_quantize: rotate, scale and round
 * to FP8, for MLA, GQA and MHA attention.
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
    struct heads_plan *plan;
    enum roped_status status = rope_parts_plan(call, &shape, &plan, err);
    for (int i = 0; !status && i < plan->n_parts; i++)
        plan->part[i].to = plan->part[i].from; /* outputs are as inputs */
    return status;
}

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
    .given = {ROPE_PARTS_GIVEN(ROPE_QUANTIZE_POSITIONS)},
    .in = {
        [ROPE_QUANTIZE_Q_ROPE] = {"q_rope", "T", "n hq r", ROPED_STRIDED, .doc = "rotary part of the query heads"},
        [ROPE_QUANTIZE_K_ROPE] = {"k_rope", "T", "n hk r|n r", ROPED_STRIDED, .doc = "rotary part of the key heads"},
        [ROPE_QUANTIZE_Q_NOPE] = {"q_nope", "T", "n hq p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "non-rotary part of the query heads"},
        [ROPE_QUANTIZE_K_NOPE] = {"k_nope", "T", "n hk p|n p", ROPED_OPTIONAL | ROPED_STRIDED, .doc = "non-rotary part of the key heads"},
        [ROPE_QUANTIZE_SCALE_Q] = SCALE_INPUT("scale_q"),
        [ROPE_QUANTIZE_SCALE_K] = SCALE_INPUT("scale_k"),
        [ROPE_QUANTIZE_POSITIONS] = ROPE_PARTS_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_QUANTIZE_Q_ROPE_OUT] = {"q_rope", "Q", "n hq r", ROPED_STRIDED, .doc = "FP8 of q_rope, rotated, times scale_q"},
        [ROPE_QUANTIZE_K_ROPE_OUT] = {"k_rope", "Q", "n hk r|n r", ROPED_STRIDED, .doc = "FP8 of k_rope, rotated, times scale_k"},
        [ROPE_QUANTIZE_Q_NOPE_OUT] = {"q_nope", "Q", "n hq p", ROPED_STRIDED, .requires_ = "q_nope", .doc = "FP8 of q_nope times scale_q"},
        [ROPE_QUANTIZE_K_NOPE_OUT] = {"k_nope", "Q", "n hk p|n p", ROPED_STRIDED, .requires_ = "k_nope", .doc = "FP8 of k_nope times scale_k"},
    },
    .params_bytes = sizeof(struct rope_quantize_params),
    .angles_offset = offsetof(struct rope_quantize_params, rope.angles),
    .param = {ROPE_PARTS_PARAMS},
    .rows = "n",
    .tokens = "n",
    .widths = "r",
    .rule = rule,
    .rule_doc = rotary_rule_doc,
    .aux_bytes = rope_heads_aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct heads_plan),
};
/* clang-format on */
