/*
 * rope_heads.c - q and k in the forms of rope, and in two parts, brought to one
 * geometry.
 */
#include "ops/rope_heads.h"

#include <string.h>

_Static_assert(sizeof(struct heads_plan) <= ROPED_PLAN_BYTES,
               "the plan of every rotary operator");
_Static_assert(offsetof(struct rope_quantize_params, rope) == 0,
               "which are read as rope's");

static const struct rope_params *params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

struct rotary_shape rope_heads_shape(const struct roped_call *call)
{
    const struct rope_params *params = params_of(call);
    const struct roped_tensor *q = &call->in[ROPE_Q];
    struct rotary_shape shape = {.first_port = rope_angle_port(call),
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

size_t rope_heads_aux_bytes(const struct roped_call *call)
{
    struct rotary_shape shape = rope_heads_shape(call);
    return rotary_aux_bytes(call, &shape);
}

/* ------------------------------------------------------------------- plan */

int64_t rope_heads_of(const struct roped_call *call, int port,
                      const struct rotary_shape *shape)
{
    const struct roped_tensor *tensor = &call->in[port];
    if (!roped_tensor_given(tensor))
        return 0;
    if (params_of(call)->layout == ROPE_LAYOUT_BSD)
        return 1;
    return tensor->rank == 3 ? tensor->dims[1]
                             : tensor->dims[1] / shape->head_dim;
}

static struct heads_plan *plan_begin(struct roped_call *call,
                                     const struct rotary_shape *shape)
{
    struct heads_plan *plan = (void *)call->plan;
    memset(plan, 0, sizeof *plan);
    plan->first = (int32_t)shape->rotary_offset;
    return plan;
}

struct heads_part *heads_plan_add(struct heads_plan *plan, int from,
                                  int64_t heads, int64_t width)
{
    struct heads_part *part = &plan->part[plan->n_parts++];
    *part = (struct heads_part){.from = (int16_t)from,
                                .to = HEADS_NO_PORT,
                                .cache = HEADS_NO_PORT,
                                .weight = HEADS_NO_PORT,
                                .heads = heads,
                                .width = width,
                                .scale = 1};
    return part;
}

struct heads_plan *rope_heads_plan(struct roped_call *call,
                                   const struct rotary_shape *shape)
{
    struct heads_plan *plan = plan_begin(call, shape);
    for (int i = ROPE_Q; i <= ROPE_K; i++) {
        if (!roped_tensor_given(&call->in[i]))
            continue;
        struct heads_part *part = heads_plan_add(
            plan, i, rope_heads_of(call, i, shape), shape->head_dim);
        part->rotates = true;
        if (roped_tensor_given(&call->out[i]))
            part->to = (int16_t)i;
    }
    return plan;
}

enum roped_status rope_parts_plan(struct roped_call *call,
                                  const struct rotary_shape *shape,
                                  struct heads_plan **out,
                                  struct roped_error *err)
{
    const struct rope_quantize_params *params = (const void *)call->params;
    const struct roped_tensor *k = &call->in[ROPE_QUANTIZE_K_ROPE];
    const int64_t heads[2] = {call->in[ROPE_QUANTIZE_Q_ROPE].dims[1],
                              k->rank == 3 ? k->dims[1] : 1};
    float scale[2];
    enum roped_status status = scale_plan(call, ROPE_QUANTIZE_SCALE_Q,
                                          params->scale_q, &scale[0], err);
    if (!status)
        status = scale_plan(call, ROPE_QUANTIZE_SCALE_K, params->scale_k,
                            &scale[1], err);
    if (status)
        return status;
    *out = plan_begin(call, shape);
    for (int i = ROPE_QUANTIZE_Q_ROPE; i <= ROPE_QUANTIZE_K_NOPE; i++) {
        const struct roped_tensor *from = &call->in[i];
        bool is_k = i == ROPE_QUANTIZE_K_ROPE || i == ROPE_QUANTIZE_K_NOPE;
        if (!roped_tensor_given(from))
            continue;
        struct heads_part *part =
            heads_plan_add(*out, i, heads[is_k], from->dims[from->rank - 1]);
        part->rotates = i <= ROPE_QUANTIZE_K_ROPE;
        part->scale = scale[is_k];
    }
    return rotary_plan(call, shape, &(*out)->rotary, err);
}
