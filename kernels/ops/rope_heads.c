/*
 * rope_heads.c - q and k in the three forms of rope, brought to one geometry.
 */
#include "ops/rope_heads.h"

static const struct rope_params *params_of(const struct roped_call *call)
{
    return (const void *)call->params;
}

struct rotary_shape rope_heads_shape(const struct roped_call *call,
                                     int positions_port)
{
    const struct rope_params *params = params_of(call);
    const struct roped_tensor *q = &call->in[ROPE_Q];
    struct rotary_shape shape = {.first_port = positions_port,
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

/* [n, heads * d] needs head_dim, and whole heads. */
static enum roped_status check_packed(const struct roped_call *call, int port,
                                      struct roped_error *err)
{
    const struct roped_tensor *tensor = &call->in[port];
    int64_t d = params_of(call)->head_dim;
    bool is_mla = call->in[ROPE_Q].rank == 3; /* and k [n, d] */
    if (!roped_tensor_given(tensor) || tensor->rank == 3 || is_mla)
        return ROPED_OK;
    if (d == 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "missing parameter 'head_dim': tensor '%s' is [n, "
                          "heads * head_dim]",
                          call->op->in[port].name);
    if (tensor->dims[1] % d)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim 1 is %lld, expected a multiple of "
                          "head_dim = %lld",
                          call->op->in[port].name, (long long)tensor->dims[1],
                          (long long)d);
    return ROPED_OK;
}

enum roped_status rope_heads_rule(const struct roped_call *call,
                                  const struct rotary_shape *shape,
                                  struct roped_error *err)
{
    int64_t given = params_of(call)->head_dim;
    enum roped_status status = check_packed(call, ROPE_Q, err);
    if (!status)
        status = check_packed(call, ROPE_K, err);
    if (!status && given && given != shape->head_dim)
        status = roped_fail(err, ROPED_BAD_PARAMETER,
                            "parameter 'head_dim': %lld, expected d = %lld "
                            "(set by 'q')",
                            (long long)given, (long long)shape->head_dim);
    if (!status && shape->head_dim == 0)
        status = roped_fail(err, ROPED_BAD_SHAPE,
                            "tensor 'q': dim 2 is 0, expected a head width "
                            "above 0");
    return status ? status : rotary_rule(call, shape, err);
}

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

enum roped_status rope_heads_plan(struct roped_call *call,
                                  const struct rotary_shape *shape,
                                  struct rope_plan *out,
                                  struct roped_error *err)
{
    out->q_heads = rope_heads_of(call, ROPE_Q, shape);
    out->k_heads = rope_heads_of(call, ROPE_K, shape);
    out->head_dim = shape->head_dim;
    out->rotary_offset = shape->rotary_offset;
    return rotary_plan(call, shape, &out->rotary, err);
}
