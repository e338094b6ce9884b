/*
 * rope_append.c - the descriptor of rope_append: rope, and what it makes put
 * into a KV cache in the same pass.
 */
#include "ops/rope_append.h"

#include "ops/rope_heads.h"

_Static_assert(offsetof(struct rope_append_params, rope) == 0,
               "rope_heads.h reads rope's parameters at the start");

static struct rotary_shape shape_of(const struct roped_call *call)
{
    return rope_heads_shape(call, ROPE_APPEND_POSITIONS);
}

static enum roped_status check_dim(const struct roped_call *call, int port,
                                   int dim, int64_t expected, const char *what,
                                   struct roped_error *err)
{
    if (call->in[port].dims[dim] == expected)
        return ROPED_OK;
    return roped_fail(
        err, ROPED_INVALID, "tensor '%s': dim %d is %lld, expected %s = %lld",
        call->op->in[port].name, dim, (long long)call->in[port].dims[dim], what,
        (long long)expected);
}

/* What the packed and bsd forms have no common dims to say. */
static enum roped_status rule(struct roped_call *call, struct roped_error *err)
{
    struct rotary_shape shape = shape_of(call);
    int cache = ROPE_APPEND_K_CACHE;
    enum roped_status status = rope_heads_rule(call, &shape, err);
    if (!status)
        status =
            check_dim(call, cache, 1,
                      rope_heads_of(call, ROPE_APPEND_K, &shape), "hk", err);
    if (!status)
        status = check_dim(call, cache, 2, shape.head_dim, "d", err);
    if (!status)
        status =
            check_dim(call, ROPE_APPEND_SLOTS, 0, shape.n_tokens, "n", err);
    return status;
}

static size_t rotary_bytes(const struct roped_call *call,
                           const struct rotary_shape *shape)
{
    return (rotary_aux_bytes(call, shape) + 15) / 16 * 16;
}

static size_t aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = shape_of(call);
    return rotary_bytes(call, &shape) + append_aux_bytes(shape.n_tokens);
}

static enum roped_status plan(struct roped_call *call, struct roped_error *err)
{
    struct rope_append_plan *plan = (void *)call->plan;
    struct rotary_shape shape = shape_of(call);
    enum roped_status status = rope_heads_plan(call, &shape, &plan->rope, err);
    if (status)
        return status;
    plan->append = (struct append_plan){
        .map = {.kind = APPEND_SLOTS,
                .is_wide = call->in[ROPE_APPEND_SLOTS].dtype == ROPED_I64,
                .slot_step = plan->rope.k_heads ? plan->rope.k_heads : 1,
                .head_step = 1},
        .first_port = ROPE_APPEND_SLOTS,
        .positions_port = ROPE_APPEND_POSITIONS,
        .n_tokens = shape.n_tokens,
        .n_places = call->in[ROPE_APPEND_K_CACHE].dims[0],
        .cells_offset = (int64_t)rotary_bytes(call, &shape)};
    return append_plan(call, &plan->append, err);
}

static const char rule_doc[] =
    "what rope says of positions and angles; a slot is -1, which leaves the "
    "caches as they are for that token, as position -1 does, or one of the "
    "caches', and no other token's";

#define AT(member)  offsetof(struct rope_append_params, member)
#define CACHE_SHAPE "slots hk d"

/* clang-format off */
const struct roped_op roped_op_rope_append = {
    .name = "rope_append",
    .since = "0.1",
    .summary = "rotate q and k, and put k and v into slots of a KV cache",
    .type = {{"T", ROPED_FLOATS}, {"S", ROPED_INDEXES}, ROPED_ANGLE_TYPES},
    .form = {ROPE_HEADS_FORMS},
    .in = {
        [ROPE_APPEND_Q] = {"q", "T", ROPE_HEADS_Q_SHAPE, .doc = "query heads"},
        [ROPE_APPEND_K] = {"k", "T", ROPE_HEADS_K_SHAPE, .doc = "key heads"},
        [ROPE_APPEND_V] = {"v", "T", ROPE_HEADS_K_SHAPE, .doc = "value heads"},
        [ROPE_APPEND_K_CACHE] = {"k_cache", "T", CACHE_SHAPE, ROPED_UPDATED, .doc = "keys of earlier tokens; takes k, rotated"},
        [ROPE_APPEND_V_CACHE] = {"v_cache", "T", CACHE_SHAPE, ROPED_UPDATED, .doc = "values of earlier tokens; takes v bit for bit"},
        [ROPE_APPEND_SLOTS] = {"slots", "S", "n", ROPED_INDEX, .doc = "slot of each token in the caches; -1: none"},
        [ROPE_APPEND_POSITIONS] = ROPED_ANGLE_INPUTS,
    },
    .out = {
        [ROPE_APPEND_Q_OUT] = {"q", "T", ROPE_HEADS_Q_SHAPE, .in_place = "q", .doc = "q, rotated; of tokens without a slot too"},
        [ROPE_APPEND_K_OUT] = {"k", "T", ROPE_HEADS_K_SHAPE, .requires_ = "return_k", .in_place = "k", .doc = "k, rotated, where return_k asks for it"},
        [ROPE_APPEND_K_CACHE_OUT] = {"k_cache", "T", CACHE_SHAPE, .in_place = "k_cache", .doc = "k_cache with the keys of this call"},
        [ROPE_APPEND_V_CACHE_OUT] = {"v_cache", "T", CACHE_SHAPE, .in_place = "v_cache", .doc = "v_cache with the values of this call"},
    },
    .params_bytes = sizeof(struct rope_append_params),
    .angles_offset = AT(rope.angles),
    .param = {
        {"return_k", ROPED_PARAM_BOOL, AT(return_k), .doc = "also return k, rotated"},
        ROPE_HEADS_PARAMS,
    },
    .rule = rule,
    .rule_doc = rule_doc,
    .aux_bytes = aux_bytes,
    .plan = plan,
    .plan_bytes = sizeof(struct rope_append_plan),
};
/* clang-format on */
