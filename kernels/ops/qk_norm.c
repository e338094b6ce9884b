/*
 * qk_norm.c - weights of the norm of heads of q and k.
 */
#include "ops/qk_norm.h"

#include "core/call_internal.h"

enum { Q, K };

/* With k both heads have a weight or none has; each is d long. */
enum roped_status qk_norm_rule(const struct roped_call *call, int weight_port,
                               int64_t head_dim, struct roped_error *err)
{
    const struct roped_tensor *weight = &call->in[weight_port];
    bool has_q = roped_tensor_given(&weight[0]);
    bool has_k = roped_tensor_given(&weight[1]);
    if (has_k && !roped_tensor_given(&call->in[K]))
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor 'k': 'k_weight' is given and needs "
                          "it");
    if (roped_tensor_given(&call->in[K]) && has_q != has_k)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': '%s' is given and needs it",
                          has_q ? "k_weight" : "q_weight",
                          has_q ? "q_weight" : "k_weight");
    for (int i = 0; i < 2; i++)
        if (roped_tensor_given(&weight[i]) && weight[i].dims[0] != head_dim)
            return roped_fail(err, ROPED_BAD_SHAPE,
                              "tensor '%s': dim 0 is %lld, expected d = %lld",
                              i ? "k_weight" : "q_weight",
                              (long long)weight[i].dims[0],
                              (long long)head_dim);
    enum roped_dtype t = call->in[Q].dtype, w = weight[0].dtype;
    if (!has_q || w == t || w == ROPED_F32 || t == ROPED_F32)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_TYPE,
                      "tensor 'q_weight': %s, expected %s or F32 beside q of "
                      "%s",
                      roped_dtype_name(w), roped_dtype_name(t),
                      roped_dtype_name(t));
}

enum roped_status qk_norm_plan(const struct roped_call *call, int weight_port,
                               const struct rmsnorm_params *params,
                               struct qk_norm_plan *out,
                               struct roped_error *err)
{
    *out = (struct qk_norm_plan){
        .eps = (float)params->eps,
        .weight_bias = norm_weight_bias(params, &call->in[weight_port]),
        .rounding = params->rounding};
    return call_type_of(call, weight_port, weight_port + 1, &out->weight_dtype,
                        err);
}
