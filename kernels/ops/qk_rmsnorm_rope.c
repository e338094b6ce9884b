/*
 * qk_rmsnorm_rope.c - the descriptor of qk_rmsnorm_rope: what Qwen 3, Gemma 3
 * and others do to q and k before attention, in one pass.
 */
#include "ops/qk_rmsnorm_rope.h"

#include "ops/norm.h"
#include "ops/rope_heads.h"

_Static_assert(offsetof(struct qk_rmsnorm_rope_params, rope) == 0,
               "rope_heads.h reads rope's parameters at the start");

static struct rotary_shape shape_of(const struct roped_call *call)
{
    return rope_heads_shape(call, QK_RMSNORM_ROPE_POSITIONS);
}

/* With k both heads have a weight or none has; each is d long. */
static enum roped_status check_weights(const struct roped_call *call,
                                       const struct rotary_shape *shape,
                                       struct roped_error *err)
{
    const struct roped_tensor *weight = &call->in[QK_RMSNORM_ROPE_Q_WEIGHT];
    bool has_q = roped_tensor_given(&weight[0]);
    bool has_k = roped_tensor_given(&weight[1]);
    if (has_k && !roped_tensor_given(&call->in[ROPE_K]))
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor 'k': 'k_weight' is given and needs "
                          "it");
    if (roped_tensor_given(&call->in[ROPE_K]) && has_q != has_k)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': '%s' is given and needs it",
                          has_q ? "k_weight" : "q_weight",
                          has_q ? "q_weight" : "k_weight");
    for (int i = 0; i < 2; i++)
        if (roped_tensor_given(&weight[i]) &&
            weight[i].dims[0] != shape->head_dim)
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': dim 0 is %lld, expected d = %lld",
                              i ? "k_weight" : "q_weight",
                              (long long)weight[i].dims[0],
                              (long long)shape->head_dim);
    enum roped_dtype t = call->in[ROPE_Q].dtype, w = weight[0].dtype;
    if (!has_q || w == t || w == ROPED_F32 || t == ROPED_F32)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor 'q_weight': %s, expected %s or F32 beside q of "
                      "%s",
                      roped_dtype_name(w), roped_dtype_name(t),
                      roped_dtype_name(t));
}

static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = shape_of(call);
    enum roped_status status = rope_heads_rule(call, &shape, err);
    return status ? status : check_weights(call, &shape, err);
}

static size_t aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = shape_of(call);
    return rotary_aux_bytes(call, &shape);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct qk_rmsnorm_rope_plan *plan = (void *)call->plan;
    const struct qk_rmsnorm_rope_params *params = (const void *)call->params;
    struct rotary_shape shape = shape_of(call);
    plan->eps = (float)params->norm.eps;
    plan->weight_bias =
        norm_weight_bias(&params->norm, &call->in[QK_RMSNORM_ROPE_Q_WEIGHT]);
    plan->rounding = params->norm.rounding;
    plan->weight_dtype = (int32_t)call->in[QK_RMSNORM_ROPE_Q_WEIGHT].dtype;
    return rope_heads_plan(call, &shape, &plan->rope, err);
}

static const char rule_doc[] =
    "what rope says of positions and angles; q_weight and k_weight both or "
    "neither, of q's type, or F32 beside narrow q, or F16 or BF16 beside q of "
    "F32";

#define AT(member) offsetof(struct qk_rmsnorm_rope_params, member)

/* clang-format off */
const struct roped_op roped_op_qk_rmsnorm_rope = {
    .name = "qk_rmsnorm_rope",
    .since = "0.1",
    .summary = "normalise every head of q and k over its width, weight it, then rotate it",
    .type = {{"T", ROPED_FLOATS}, {"W", ROPED_FLOATS}, ROPED_ANGLE_TYPES},
    .form = {ROPE_HEADS_FORMS},
    .in = {
        [QK_RMSNORM_ROPE_Q] = {"q", "T", ROPE_HEADS_Q_SHAPE, .doc = "query heads"},
        [QK_RMSNORM_ROPE_K] = {"k", "T", ROPE_HEADS_K_SHAPE, ROPED_OPTIONAL, .doc = "key heads"},
        [QK_RMSNORM_ROPE_Q_WEIGHT] = {"q_weight", "W", "d", ROPED_OPTIONAL, .doc = "gain per element of a query head; absent: 1"},
        [QK_RMSNORM_ROPE_K_WEIGHT] = {"k_weight", "W", "d", ROPED_OPTIONAL, .doc = "gain per element of a key head"},
        [QK_RMSNORM_ROPE_POSITIONS] = ROPED_ANGLE_INPUTS,
    },
    .out = {
        [QK_RMSNORM_ROPE_Q_OUT] = {"q", "T", ROPE_HEADS_Q_SHAPE, .in_place = "q", .doc = "q, normalised and rotated"},
        [QK_RMSNORM_ROPE_K_OUT] = {"k", "T", ROPE_HEADS_K_SHAPE, .requires_ = "k", .in_place = "k", .doc = "k, normalised and rotated"},
    },
    .params_bytes = sizeof(struct qk_rmsnorm_rope_params),
    .angles_offset = AT(rope.angles),
    .param = {
        NORM_PARAMS(AT(norm)),
        ROPE_HEADS_PARAMS,
    },
    .rows = "n",
    .rule = rule,
    .rule_doc = rule_doc,
    .aux_bytes = aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct qk_rmsnorm_rope_plan),
};
/* clang-format on */
