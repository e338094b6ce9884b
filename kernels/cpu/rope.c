/*
 * rope.c - rope on the CPU: tokens over threads; a token's angles are found
 * once and serve all its heads.
 */
#include "cpu/cpu_internal.h"

struct rope_loop {
    struct cpu_angles angles;
    const struct rope_plan *plan;
    const struct roped_call *call;
    bool is_large;
};

static struct cpu_heads heads_of(const struct rope_loop *loop, int input,
                                 int output, int64_t n_heads)
{
    const struct rope_plan *plan = loop->plan;
    const struct roped_tensor *in = &loop->call->in[input];
    const struct roped_tensor *out = &loop->call->out[output];
    return (struct cpu_heads){
        .from = in->dtype,
        .to = out->dtype,
        .is_gptj = plan->rotary.style == ROPE_GPTJ,
        .is_streamed = loop->is_large && in->data != out->data,
        .n_heads = n_heads,
        .width = plan->head_dim,
        .from_pitch = plan->head_dim,
        .to_pitch = plan->head_dim,
        .first = plan->rotary_offset,
        .n_pairs = plan->rotary.n_pairs,
    };
}

static void rotate_heads(const struct rope_loop *loop,
                         const struct cpu_heads *heads, int input, int output,
                         int64_t token, int64_t first, int64_t n,
                         const float *c, const float *s)
{
    int64_t at = token * heads->n_heads * heads->width;
    size_t bytes = roped_dtype_bytes(heads->from);
    if (heads->n_heads == 0)
        return;
    loop->angles.rows->rotate(
        heads, cpu_at(loop->call->out[output].data, at, bytes),
        cpu_at(loop->call->in[input].data, at, bytes), first, n, c, s);
}

static void rotate_tokens(void *context, int64_t begin, int64_t end)
{
    const struct rope_loop *loop = context;
    const struct rope_plan *plan = loop->plan;
    const struct cpu_heads q =
        heads_of(loop, ROPE_Q, ROPE_Q_OUT, plan->q_heads);
    const struct cpu_heads k =
        heads_of(loop, ROPE_K, ROPE_K_OUT, plan->k_heads);
    float c[CPU_PAIRS], s[CPU_PAIRS];
    for (int64_t token = begin; token < end; token++)
        for (int64_t first = 0; first < plan->rotary.n_pairs;
             first += CPU_PAIRS) {
            int64_t n = plan->rotary.n_pairs - first;
            n = n < CPU_PAIRS ? n : CPU_PAIRS;
            cpu_angles_fill(&loop->angles, token, first, n, c, s);
            rotate_heads(loop, &q, ROPE_Q, ROPE_Q_OUT, token, first, n, c, s);
            rotate_heads(loop, &k, ROPE_K, ROPE_K_OUT, token, first, n, c, s);
        }
}

enum roped_status roped_cpu_rope(const struct roped_call *call,
                                 struct roped_queue *queue,
                                 struct roped_error *err)
{
    const struct rope_plan *plan = (const void *)call->plan;
    struct rope_loop loop = {
        cpu_angles_of(call, &plan->rotary, ROPE_POSITIONS, queue), plan, call,
        cpu_is_large(queue, roped_call_bytes(call))};
    (void)err;
    cpu_for(queue, roped_call_bytes(call), plan->rotary.n_tokens, rotate_tokens,
            &loop);
    return ROPED_OK;
}
