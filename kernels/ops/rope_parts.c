/*
 * rope_parts.c - rotary and non-rotary parts of q and k, brought to one
 * geometry.
 */
#include "ops/rope_parts.h"

static const struct rope_quantize_params *
params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

struct rotary_shape rope_parts_shape(const struct roped_call *call,
                                     int positions_port)
{
    const struct rope_quantize_params *params = params_of(call);
    const struct roped_tensor *q = &call->in[ROPE_QUANTIZE_Q_ROPE];
    return (struct rotary_shape){.first_port = positions_port,
                                 .n_tokens = q->dims[0],
                                 .tokens_per_sequence = q->dims[0],
                                 .head_dim = q->dims[2],
                                 .rotary_dim = params->rotary_dim,
                                 .rotary_offset = params->rotary_offset,
                                 .offset = params->offset,
                                 .style = params->style,
                                 .inverse = params->inverse};
}

enum roped_status rope_parts_rule(const struct roped_call *call,
                                  const struct rotary_shape *shape,
                                  struct roped_error *err)
{
    int64_t given = params_of(call)->head_dim;
    bool has_q = roped_tensor_given(&call->in[ROPE_QUANTIZE_Q_NOPE]);
    bool has_k = roped_tensor_given(&call->in[ROPE_QUANTIZE_K_NOPE]);
    if (has_q != has_k)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': '%s' is given and needs it",
                          has_q ? "k_nope" : "q_nope",
                          has_q ? "q_nope" : "k_nope");
    if (shape->head_dim == 0)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor 'q_rope': dim 2 is 0, expected a rotary "
                          "width above 0");
    if (given && given != shape->head_dim)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'head_dim': %lld, expected r = %lld (set "
                          "by 'q_rope')",
                          (long long)given, (long long)shape->head_dim);
    enum roped_status status = scale_rule(call, ROPE_QUANTIZE_SCALE_Q, err);
    if (!status)
        status = scale_rule(call, ROPE_QUANTIZE_SCALE_K, err);
    return status ? status : rotary_rule(call, shape, err);
}

enum roped_status rope_parts_plan(struct roped_call *call,
                                  const struct rotary_shape *shape,
                                  struct rope_quantize_plan *out,
                                  struct roped_error *err)
{
    const struct rope_quantize_params *params = params_of(call);
    const struct roped_tensor *k = &call->in[ROPE_QUANTIZE_K_ROPE];
    const struct roped_tensor *nope = &call->in[ROPE_QUANTIZE_Q_NOPE];
    out->q_heads = call->in[ROPE_QUANTIZE_Q_ROPE].dims[1];
    out->k_heads = k->rank == 3 ? k->dims[1] : 1;
    out->rope_dim = shape->head_dim;
    out->nope_dim = roped_tensor_given(nope) ? nope->dims[2] : 0;
    out->rotary_offset = shape->rotary_offset;
    enum roped_status status = scale_plan(call, ROPE_QUANTIZE_SCALE_Q,
                                          params->scale_q, &out->scale_q, err);
    if (!status)
        status = scale_plan(call, ROPE_QUANTIZE_SCALE_K, params->scale_k,
                            &out->scale_k, err);
    return status ? status : rotary_plan(call, shape, &out->rotary, err);
}
