/*
 * qk_rmsnorm_rope.c - qk_rmsnorm_rope on the CPU: tokens over threads. Heads
 * are read once for their sums of squares and again, from the cache, to be
 * scaled, weighted and rotated.
 */
#include "ops/qk_rmsnorm_rope.h"
#include "cpu/head_norm.h"

/* q, or k. */
struct norm_heads {
    const struct roped_tensor *in, *out;
    struct cpu_heads heads;
};

struct norm_loop {
    struct cpu_angles angles;
    const struct qk_rmsnorm_rope_plan *plan;
    struct norm_heads part[2];
};

static void write_heads(const struct norm_loop *loop,
                        const struct norm_heads *part, struct cpu_token *token)
{
    const struct cpu_heads *heads = &part->heads;
    int64_t n = heads->n_heads * heads->width;
    size_t bytes = roped_dtype_bytes(heads->from);
    void *from =
        cpu_at(part->in->data, token->index * cpu_step(part->in, n), bytes);
    void *to =
        cpu_at(part->out->data, token->index * cpu_step(part->out, n), bytes);
    if (heads->n_heads > 0 && cpu_is_padding(&loop->angles, token->index))
        cpu_heads_copy(loop->angles.rows, heads, to, from);
    else
        cpu_heads_rotate(token, heads, loop->plan->norm.eps, to, from);
}

static void write_tokens(void *context, int64_t begin, int64_t end)
{
    const struct norm_loop *loop = context;
    struct cpu_token token = {.angles = &loop->angles};
    for (int64_t i = begin; i < end; i++) {
        cpu_token_set(&token, i);
        write_heads(loop, &loop->part[0], &token);
        write_heads(loop, &loop->part[1], &token);
    }
}

/* Of q (which 0) or k (1). */
static struct norm_heads heads_of(const struct roped_call *call, int which,
                                  const struct cpu_head_norm *norm,
                                  bool is_large)
{
    const struct qk_rmsnorm_rope_plan *plan = (const void *)call->plan;
    const struct rope_plan *rope = &plan->rope;
    const struct roped_tensor *in = &call->in[QK_RMSNORM_ROPE_Q + which];
    const struct roped_tensor *out = &call->out[QK_RMSNORM_ROPE_Q_OUT + which];
    return (struct norm_heads){
        .in = in,
        .out = out,
        .heads = {.from = in->dtype,
                  .to = in->dtype,
                  .is_gptj = rope->rotary.style == ROPE_GPTJ,
                  .is_streamed = is_large && in->data != out->data,
                  .n_heads = which ? rope->k_heads : rope->q_heads,
                  .width = rope->head_dim,
                  .from_pitch = rope->head_dim,
                  .to_pitch = rope->head_dim,
                  .first = rope->rotary_offset,
                  .n_pairs = rope->rotary.n_pairs,
                  .weight = norm->weight[which],
                  .rounds_product = norm->rounds_product}};
}

enum roped_status roped_cpu_qk_rmsnorm_rope(const struct roped_call *call,
                                            struct roped_queue *queue,
                                            struct roped_error *err)
{
    const struct qk_rmsnorm_rope_plan *plan = (const void *)call->plan;
    int64_t bytes = roped_call_bytes(call);
    struct cpu_head_norm norm;
    struct norm_loop loop = {.angles = cpu_angles_of(call, &plan->rope.rotary,
                                                     QK_RMSNORM_ROPE_POSITIONS,
                                                     queue),
                             .plan = plan};
    enum roped_status status =
        cpu_head_norm_of(&call->in[QK_RMSNORM_ROPE_Q_WEIGHT], &plan->rope,
                         &plan->norm, queue, &norm, err);
    if (status)
        return status;
    for (int which = 0; which < 2; which++)
        loop.part[which] =
            heads_of(call, which, &norm, cpu_is_large(queue, bytes));
    cpu_for(queue, bytes, plan->rope.rotary.n_tokens, write_tokens, &loop);
    return ROPED_OK;
}
